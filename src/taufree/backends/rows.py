"""The rows of an input as blockwise needs them: normalised once, and again exactly where it matters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taufree.backends.precision import chords, normalize, shortest, wide_dtype
from taufree.links import Link

CHUNK = 2**18  # elements of row-wise work done at a time


class Rows:
    """Unit rows of one input [R, D], and where the gradient with respect to them is gathered."""

    def __init__(self, x: Tensor, dtype: torch.dtype, wanted: bool) -> None:
        self.x = x.detach()
        self.unit = torch.empty(x.shape, dtype=dtype, device=x.device)
        for part in self.parts():
            self.unit[part] = self.exact(part)[0].to(dtype)
        self.grad = torch.zeros_like(self.unit) if wanted else None

    def parts(self) -> list[slice]:
        return [cut(span) for span in spans(self.x.shape[0], CHUNK // self.x.shape[1])]

    def exact(self, part: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Unit rows in float64 and what they lack to length 1, straight from the input."""
        return exact_unit(self.x[part])

    def finish(self) -> Tensor | None:
        """The gradient with respect to the input."""
        if self.grad is not None:
            for part in self.parts():
                self.grad[part] = through_normalize(self.x[part], self.grad[part])
        return self.grad


@dataclass
class Pairs:
    """Some anchors u [B, D], each with keys of its own v [B, K, D], as exact unit vectors."""

    part: slice
    u: Tensor
    u_lack: Tensor
    v: Tensor
    v_lack: Tensor

    def similarity(self) -> tuple[Tensor, Tensor, Tensor]:
        """Cosine, 1 - cosine and 1 + cosine, [B, K]."""
        gap, rise = chords(self.u[:, None], self.u_lack[:, None], self.v, self.v_lack)
        return (rise - gap) / 2, gap, rise

    def logit(self, link: Link) -> Tensor:
        return link.logit(*self.similarity())

    def gradients(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of sum(a * cosine) with respect to u and v."""
        u, a = self.u[:, None], a[..., None]
        du = (a * (self.v - full(u, self.u_lack[:, None]))).sum(1)
        return du, a * (u - full(self.v, self.v_lack))


def exact_unit(x: Tensor) -> tuple[Tensor, Tensor]:
    return normalize(x.to(wide_dtype(x.device)), shortest(x.dtype))


def through_normalize(x: Tensor, grad: Tensor) -> Tensor:
    """From the gradient with respect to unit rows to that with respect to the rows ``x``."""
    with torch.enable_grad():
        leaf = x.to(wide_dtype(x.device), copy=True).requires_grad_()
        unit, _ = normalize(leaf, shortest(x.dtype))
        (result,) = torch.autograd.grad(unit, leaf, grad.to(leaf.dtype))
    return result.to(grad.dtype)


def full(x: Tensor, lack: Tensor) -> Tensor:
    """The rows of full length, 0 for the others.

    The radial part of a gradient does not survive the normalisation, so v - u may stand for v as the
    derivative of u.v with respect to u, without the digits lost where u and v nearly agree; only a row
    too short to be normalised keeps its radial part.
    """
    return x * (lack == 0)[..., None]


def spans(n: int, step: int) -> list[range]:
    """0..n in pieces of ``step`` (at least 1)."""
    step = max(1, step)
    return [range(start, min(start + step, n)) for start in range(0, n, step)]


def cut(span: range) -> slice:
    return slice(span.start, span.stop)
