"""Which dtypes are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def result_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if any input is float64, else float32: the dtype of losses and of tile arithmetic."""
    for t in tensors:
        if t is not None and t.dtype == torch.float64:
            return torch.float64
    return torch.float32


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest dtype the device has; what must be exact is computed in it."""
    return torch.float32 if device.type == "mps" else torch.float64
