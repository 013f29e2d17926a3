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
        divisor, self.lack = lengths(self.x, x.dtype)
        self.inverse = 1 / divisor
        # The radial part of a gradient does not survive the normalisation, so v - u may stand for v as
        # the derivative of u.v with respect to u, without the digits lost where u and v nearly agree;
        # only a row too short to be normalised keeps its radial part, so v - full * u.
        self.full = (self.lack == 0).to(self.wide)
        self.grad = torch.zeros(x.shape, dtype=dtype, device=x.device) if wanted else None

    def exact(self, part: slice | Tensor) -> Tensor:
        """Unit rows in float64, straight from the input."""
        return self.x[part] * self.inverse[part]

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
                unit, grad = self.exact(part), self.grad[part].to(self.wide)
                radial = (grad * unit).sum(-1, keepdim=True) * self.full[part]
                self.grad[part] = grad.addcmul_(unit, radial, value=-1).mul_(self.inverse[part])
        return self.grad


def spans(n: int, step: int) -> list[range]:
    """0..n in pieces of ``step`` (at least 1)."""
    step = max(1, step)
    return [range(start, min(start + step, n)) for start in range(0, n, step)]


def cut(span: range) -> slice:
    return slice(span.start, span.stop)
