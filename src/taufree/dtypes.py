"""Which dtypes are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def result_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if any input is float64, else float32: the dtype of losses and of tile arithmetic."""
    double = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if double else torch.float32


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest dtype the device has; what must be exact is computed in it."""
    return torch.float32 if device.type == "mps" else torch.float64
