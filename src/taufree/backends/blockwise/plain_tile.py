"""Tiles by their weights exp(logit), which are in range: no maximum is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taufree.backends.blockwise.directions import Side, Single, added
from taufree.backends.blockwise.formulas import base_and_slope
from taufree.backends.blockwise.left_out import LeftOut
from taufree.links import Link

LN2 = math.log(2)
MAX_LOG_Z = 80.0  # whose exp(-log_z) is in float32's range; beyond, coefficients are products in float64
MAX_Z = math.exp(MAX_LOG_Z)


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

    @staticmethod
    def raised(total: Tensor, by: Tensor) -> Tensor:
        """The sum with this added to all logits."""
        return total * by.exp()

    @staticmethod
    def of_logit(logit: Tensor) -> Tensor:
        """A single pair as a sum."""
        return logit.exp()

    @staticmethod
    def close(total: Tensor, positive: Tensor, decoupled: bool) -> Single:
        """Of anchors with one positive, in float64: weights are in range, so is the ratio of two."""
        total = total.clamp(min=0)
        odds = total / positive
        if decoupled:
            return Single(odds.log_(), total, None)
        z = total + positive
        return Single(odds.log1p_(), z, total.div_(z))  # exact where either loss or probability is tiny


class PlainTile(PlainSums):
    """A link with a formula, by its weights exp(logit), in range by :func:`.tiles.tile_kind`; those
    of pairs that are near in float64.

    The derivative of the log-odds by c is 1/(2(1+delta) q(1-q)) with q = (1+delta+c)/(2(1+delta)), by which
    torch multiplies in one pass: that of the backward of torch.logit. So q is kept in place of a slope.
    """

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None, known: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:  # fmt: skip
        """``known`` are logit / scale and q, if they have been computed already; ``gap`` is not used then."""
        formula, scale = link.formula, float(link.formula_scale())
        assert formula is not None
        self.near, self.same = rise is not None, same
        self.slope: Tensor | float = 1.0  # but for what q says
        self.q: Tensor | None = None
        self.steep = scale
        if rise is None and formula.kind == "log-odds":
            twice = 2 * (1 + formula.resolution)
            if known is None:
                q = gap.mul_(-1 / twice).add_(1)
                known = torch.logit(q), q
            base, self.q = known
            self.steep = scale / twice
        elif known is not None:
            base = known[0]
        else:
            gap, rise = (gap, None) if rise is None else (gap.double(), rise.double())
            base, self.slope = base_and_slope(link, gap, rise)
        bits = (base * (scale / LN2)) if learns else base.mul_(scale / LN2)
        self.base = base if learns else None  # logit / scale, for the derivative with respect to the scale
        self.weight = bits.exp2_()
        self.positives: tuple[Tensor, Tensor | float] | None = None
        if positives_at is not None:
            self.positives = self.weight.diagonal(positives_at).clone(), self._slope_at(positives_at)
        if left_out is not None:
            left_out.fill(self.weight, 0)

    def _slope_at(self, diagonal: int) -> Tensor | float:
        """The derivative of the logits of a diagonal."""
        if self.q is not None:
            q = self.q.diagonal(diagonal)
            return (q - q * q).reciprocal_().mul_(self.steep)
        return (self.slope.diagonal(diagonal) if isinstance(self.slope, Tensor) else 1.0) * self.steep

    @property
    def nbytes(self) -> int:
        held = (self.weight, self.q, self.slope, self.base)
        return sum(x.nbytes for x in held if isinstance(x, Tensor))

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
        return self._by_cosine(self._outer(sides), params)

    def of_negatives(
        self, grad: Tensor | float, z: Tensor, params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The same of a whole matrix of negatives, for the weights ``grad`` of its anchors' losses and
        :class:`.directions.Single`'s z: [n] of the rows, or [2, n] with the columns'."""
        weight = self.weight
        if weight.dtype == torch.float64:
            outer = weight.mul_(by_pair(z.reciprocal().mul_(grad * self.steep)))
        elif z.max().item() <= MAX_Z:
            # z is lower than its bound only where no pair counts: an infinite share times 0 would be NaN.
            share = z.clamp(min=1 / MAX_Z).reciprocal_().mul_(grad * self.steep)
            outer = weight.mul_(by_pair(share.to(weight.dtype)))
        else:
            outer = (weight * by_pair(z.reciprocal().mul_(grad * self.steep))).to(weight.dtype)
        return self._by_cosine(outer, params)

    def _by_cosine(self, outer: Tensor, params: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor | None]]:
        """From dL/dlogit times ``steep``."""
        learned: Sequence[Tensor | None] = ()
        if params and self.base is not None:
            learned = [torch.linalg.vecdot(outer, self.base).sum() / self.steep]
        if self.q is not None:
            return torch.ops.aten.logit_backward.grad_input(outer, self.q, None, grad_input=outer), learned
        return outer.mul_(self.slope) if isinstance(self.slope, Tensor) else outer, learned

    def _outer(self, sides: Sequence[Side]) -> Tensor:
        """dL/dlogit times ``steep``."""
        weight, dtype = self.weight, self.weight.dtype
        in_range = dtype == torch.float64 or all(side.log_z.max().item() <= MAX_LOG_Z for side in sides)
        if self.same is None and in_range:
            # In float32 log_z is lower only where no pair counts, and an infinite share times 0 would be NaN.
            low = -MAX_LOG_Z if dtype == torch.float32 else -torch.inf
            inverse = [torch.exp(-side.log_z.clamp(min=low)) for side in sides]
            shares = [(self.steep * x.grad * z).to(dtype) for x, z in zip(sides, inverse, strict=True)]
            return weight.mul_(added(shares))
        weight = weight.double()
        shares = [self.steep * side.grad * torch.exp(-side.log_z) * weight for side in sides]
        if self.same is None:
            return added(shares).to(dtype)
        kept = [
            side.keep * share - self.steep * side.target for side, share in zip(sides, shares, strict=True)
        ]
        return torch.where(self.same, added(kept), added(shares)).to(dtype)


def by_pair(share: Tensor) -> Tensor:
    """What each row has, [n, 1], or the sum of what row and column have, [n, n]."""
    if share.dim() == 1:
        return share.unsqueeze(1)
    rows, columns = share.unbind()
    return rows.unsqueeze(1) + columns
