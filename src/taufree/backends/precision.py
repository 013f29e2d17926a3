"""Which precision is computed in, and unit vectors that survive any finite input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, else float32: the dtype of losses and of tile arithmetic."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest dtype the device has; what must be exact is computed in it."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products in the precision of their inputs, whatever autocast or TF32 settings say."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def shortest(dtype: torch.dtype) -> float:
    """The length below which a row of this dtype is no longer stretched to length 1.

    The gradient of a normalised row grows like 1/length: below this length it would leave the
    dtype's range. 1e-3 for float16, 2e-37 for float32 and bfloat16.
    """
    return 64 / torch.finfo(dtype).max


def normalize(x: Tensor, shortest: float) -> tuple[Tensor, Tensor]:
    """Unit rows of ``x``, and what each row's squared length lacks to 1.

    Rows are scaled by their largest entry first, so that no square leaves the range. The lack is
    exactly 0 but for rows shorter than ``shortest``, which keep their (too short) length: their
    cosines fade to 0. An all-zero row stays zero and gets no gradient.
    """
    scale = torch.linalg.vector_norm(x.detach(), torch.inf, dim=-1, keepdim=True)
    x = (x / scale.clamp(min=shortest)).masked_fill(scale == 0, 0)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # at least 1 if scale >= shortest
    unit = x / length.clamp(min=1)
    return unit, torch.where(length >= 1, 0, 1 - length.square()).squeeze(-1)


def chords(u: Tensor, u_lack: Tensor, v: Tensor, v_lack: Tensor) -> tuple[Tensor, Tensor]:
    """1 - c and 1 + c of rows u against rows v (elementwise over the leading dimensions).

    Half the squared chord, |u - v|^2 / 2 = 1 - c for unit vectors: no digit is lost as c
    approaches 1, and likewise |u + v|^2 / 2 = 1 + c. ``lack`` corrects rows that are too short.
    """
    lack = (u_lack + v_lack) / 2
    return (u - v).square().sum(-1) / 2 + lack, (u + v).square().sum(-1) / 2 + lack
