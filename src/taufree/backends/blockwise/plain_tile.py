"""Tiles by their weights exp(logit), which are in range: no maximum is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taufree.backends.blockwise.directions import Side, added
from taufree.backends.blockwise.formulas import base_and_slope
from taufree.backends.blockwise.left_out import LeftOut
from taufree.links import Link

LN2 = math.log(2)
MAX_LOG_Z = 80.0  # whose exp(-log_z) is in float32's range; beyond, coefficients are products in float64


class PlainSums:
    """Sums of weights exp(logit) as they are."""

    empty_sum = 0.0  # the sum over no pair

    @staticmethod
    def merge(total: Tensor, logits: Tensor) -> Tensor:
        """``total`` with the weights of ``logits`` [..., K] added."""
        return total + logits.exp().sum(-1)

    @staticmethod
    def join(total: Tensor, more: Tensor) -> Tensor:
        """Two sums as one."""
        return total + more

    @staticmethod
    def log(total: Tensor) -> Tensor:
        return total.clamp(min=0).log()  # rounding of pairs with c = -1


class PlainTile(PlainSums):
    """A link with a formula, by its weights exp(logit), which are in range, see :func:`tile_kind`; those of
    pairs that are near in float64."""

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None, known: tuple[Tensor, Tensor | float] | None = None,
    ) -> None:  # fmt: skip
        """``known`` is what :func:`.formulas.base_and_slope` gives, if that has been computed already."""
        self.near, self.same = rise is not None, same
        if rise is not None:
            gap, rise = gap.double(), rise.double()
        scale = float(link.formula_scale())
        base, self.slope = known or base_and_slope(link, gap, rise)
        self.steep = self.slope * scale if isinstance(self.slope, float) else scale
        bits = (base * (scale / LN2)) if learns else base.mul_(scale / LN2)
        self.base = base if learns else None  # logit / scale, for the derivative with respect to the scale
        self.positives: tuple[Tensor, Tensor | float] | None = None
        if positives_at is not None:
            slope = self.slope if isinstance(self.slope, float) else self.slope.diagonal(positives_at)
            self.positives = bits.diagonal(positives_at) * LN2, slope * scale
        self.weight = bits.exp2_()
        if left_out is not None:
            left_out.fill(self.weight, 0)

    @property
    def nbytes(self) -> int:
        slope = 0 if isinstance(self.slope, float) else self.slope.nbytes
        return self.weight.nbytes + slope + (0 if self.base is None else self.base.nbytes)

    def add(
        self, total: Tensor, dim: int, among: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        return self.join(total, self.sum(dim, among))

    def sum(self, dim: int, among: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        return (self.weight if among is None else self.weight * among).sum(dim)

    def logits(self, among: Tensor) -> Tensor:
        return self.weight.where(among, 1).log_()

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """dL/dc of each pair, and dL/dscale if it is learned; consumes the tile."""
        outer = self._outer(sides)
        learned: Sequence[Tensor | None] = ()
        if params and self.base is not None:
            learned = [torch.linalg.vecdot(outer, self.base).sum() / self.steep]
        return outer if isinstance(self.slope, float) else outer.mul_(self.slope), learned

    def _outer(self, sides: Sequence[Side]) -> Tensor:
        """dL/dlogit times ``steep``."""
        weight, dtype = self.weight, self.weight.dtype
        in_range = dtype == torch.float64 or all(side.log_z.max().item() <= MAX_LOG_Z for side in sides)
        if self.same is None and in_range:
            shares = [(self.steep * side.grad * torch.exp(-side.log_z)).to(dtype) for side in sides]
            return weight.mul_(added(shares))
        weight = weight.double()
        shares = [self.steep * side.grad * torch.exp(-side.log_z) * weight for side in sides]
        if self.same is None:
            return added(shares).to(dtype)
        kept = [
            side.keep * share - self.steep * side.target for side, share in zip(sides, shares, strict=True)
        ]
        return torch.where(self.same, added(kept), added(shares)).to(dtype)
