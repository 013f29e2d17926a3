"""The rows of an input as blockwise needs them: normalised once, and again exactly where it matters."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.precision import lengths, wide_dtype

CHUNK = 2**16  # elements of row-wise work done at a time: half a MiB in float64


class Rows:
    """Unit rows of one input [R, D] or [R, K, D], and where the gradient with respect to them is gathered."""

    def __init__(self, x: Tensor, dtype: torch.dtype, wanted: bool) -> None:
        self.x, self.wide = x.detach(), wide_dtype(x.device)
        self.parts = [cut(span) for span in spans(len(x), CHUNK // max(1, x[:1].numel()))]
        found = [lengths(self.x[part].to(self.wide), x.dtype) for part in self.parts] or [
            lengths(self.x, x.dtype)
        ]
        divisor, self.lack = (torch.cat(column) for column in zip(*found, strict=True))
        self.inverse = 1 / divisor
        self.full = (self.lack == 0).to(self.wide)  # which rows are of length 1
        self.grad = torch.zeros(x.shape, dtype=dtype, device=x.device) if wanted else None

    def exact(self, part: slice | Tensor) -> Tensor:
        """Unit rows in float64, straight from the input."""
        return self.x[part] * self.inverse[part]

    def tangent(self, part: slice | Tensor, unit: Tensor, grad: Tensor) -> Tensor:
        """``grad`` without its part along the unit rows, which the normalisation takes away anyway.

        Taking it away in float64, before it is rounded, keeps the digits of the rest where the
        gradient is nearly radial. Only a row too short to be normalised keeps its radial part.
        """
        radial = (grad * unit).sum(-1, keepdim=True) * self.full[part]
        return grad.addcmul_(unit, radial, value=-1)

    def unit(self, dtype: torch.dtype) -> Tensor:
        """All unit rows, rounded to ``dtype``."""
        unit = torch.empty(self.x.shape, dtype=dtype, device=self.x.device)
        for part in self.parts:
            unit[part] = self.exact(part)
        return unit

    def finish(self) -> Tensor | None:
        """The gradient with respect to the input, from that with respect to the unit rows, in place."""
        if self.grad is not None:
            for part in self.parts:
                grad = self.tangent(part, self.exact(part), self.grad[part].to(self.wide, copy=True))
                self.grad[part] = grad.mul_(self.inverse[part])
        return self.grad


def spans(n: int, step: int) -> list[range]:
    """0..n in pieces of ``step`` (at least 1)."""
    step = max(1, step)
    return [range(start, min(start + step, n)) for start in range(0, n, step)]


def cut(span: range) -> slice:
    return slice(span.start, span.stop)
