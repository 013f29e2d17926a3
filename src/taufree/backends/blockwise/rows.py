"""The rows of an input as blockwise needs them: normalised once, and again exactly where it matters."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.numerics import lengths
from taufree.dtypes import wide_dtype

CHUNK_NUMBERS = 2**18  # of row-wise work done at a time: 2 MiB in float64


class UnitRows:
    """Unit rows of one input [R, D] or [R, K, D], and where the gradient with respect to them is added up.

    ``unit`` holds all unit rows rounded to ``dtype``, for the tiles; None unless ``tiled``.
    """

    def __init__(self, x: Tensor, dtype: torch.dtype, wanted: bool, tiled: bool = True) -> None:
        self.x, self.wide = x.detach(), wide_dtype(x.device)
        self.parts = [cut(span) for span in spans(len(x), CHUNK_NUMBERS // max(1, x[:1].numel()))]
        self.unit = torch.empty(x.shape, dtype=dtype, device=x.device) if tiled else None
        self.inverse = torch.empty(*x.shape[:-1], 1, dtype=self.wide, device=x.device)
        self.deficit = torch.empty_like(self.inverse)
        for part in self.parts:
            rows = self.x[part].to(self.wide, copy=True)
            divisor, self.deficit[part] = lengths(rows, x.dtype)
            self.inverse[part] = 1 / divisor
            if self.unit is not None:
                self.unit[part] = rows.mul_(self.inverse[part])
        self.full = self.deficit == 0  # which rows are of length 1
        self.along = torch.zeros_like(self.inverse)
        self.grad = torch.zeros(x.shape, dtype=dtype, device=x.device) if wanted else None

    def exact(self, part: slice) -> Tensor:
        """Unit rows in float64, straight from the input."""
        return self.x[part].to(self.wide, copy=True).mul_(self.inverse[part])

    def add_gradient(self, part: slice, towards: Tensor, by: Tensor, along: Tensor) -> None:
        """Adds ``by * towards`` to the gradient, and ``along`` times the unit rows, which only rows too
        short to be normalised keep."""
        if self.grad is not None:
            self.grad[part].addcmul_(towards, by.to(towards.dtype))
            self.along[part] += along

    def tangent(self, part: slice, grad: Tensor) -> Tensor:
        """``grad`` [rows of the part, D], in float64, without its part along the unit rows.

        The normalisation takes that part away anyway; taking it away before it is rounded keeps the
        digits of the rest where the gradient is nearly radial.
        """
        unit = self.exact(part)
        return grad.addcmul_(unit, torch.linalg.vecdot(grad, unit).unsqueeze(-1) * self.full[part], value=-1)

    def finish(self) -> Tensor | None:
        """The gradient with respect to the input, from that with respect to the unit rows, in place."""
        if self.grad is not None:
            dtype = self.grad.dtype
            for part in self.parts:
                unit = self.exact(part).to(dtype) if self.unit is None else self.unit[part]
                grad = self.grad[part]
                radial = torch.linalg.vecdot(grad, unit).unsqueeze(-1)
                radial = radial.where(self.full[part], -self.along[part].to(dtype))
                grad.addcmul_(unit, radial, value=-1).mul_(self.inverse[part].to(dtype))
        return self.grad


def spans(n: int, step: int) -> list[range]:
    """0..n in pieces of ``step`` (at least 1)."""
    step = max(1, step)
    return [range(start, min(start + step, n)) for start in range(0, n, step)]


def cut(span: range) -> slice:
    return slice(span.start, span.stop)
