"""Tiles of any link, by logits and their maximum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.backends.blockwise.directions import Side, Single, added
from taufree.backends.blockwise.formulas import base_and_slope
from taufree.backends.blockwise.learned import link_gradient
from taufree.backends.blockwise.left_out import LeftOut
from taufree.links import Link


class SoftmaxTile:
    """Any link, by its logits and slopes; sums are kept as logarithms, relative to their maximum."""

    empty_sum = -torch.inf

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None,
    ) -> None:  # fmt: skip
        self.link, self.same, self.near, self.left_out = link, same, rise is not None, left_out
        self.similarity: tuple[Tensor, Tensor, Tensor] | None = None
        self.base: Tensor | None = None  # logit / scale, for the derivative with respect to the scale
        self.top: Tensor | None = None  # the rows' largest logits, once these have been summed,
        self.weight: Tensor | None = None  # and exp(logit - top)
        if link.formula is not None:
            scale = link.formula_scale()
            self.base, slope = base_and_slope(link, gap, rise)
            self.slope = (gap.new_ones(()) if isinstance(slope, float) else slope).mul_(scale)
            self.logit = self.base * scale if learns else self.base.mul_(scale)
        else:
            cosine, rise = (1 - gap, 2 - gap) if rise is None else ((rise - gap) / 2, rise)
            # In the tile's dtype: a link with float64 parameters gives another.
            self.slope = link.slope(cosine, gap, rise).to(gap.dtype)
            self.logit = link.logit(cosine, gap, rise).to(gap.dtype, copy=True)
            if learns:
                self.similarity = (cosine, gap, rise)
        self.positives: tuple[Tensor, Tensor] | None = None
        if positives_at is not None:
            slope = self.slope.diagonal(positives_at) if self.slope.dim() else self.slope
            self.positives = self.logit.diagonal(positives_at).clone(), slope
        if left_out is not None:
            left_out.fill(self.logit, -torch.inf)
        if not learns:
            self.base = None

    @property
    def nbytes(self) -> int:
        held = (self.logit, self.weight, self.slope, self.base, *(self.similarity or ()))
        return sum(x.untyped_storage().nbytes() for x in held if x is not None)

    def add(
        self, total: Tensor, dim: int, among: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        return self.join(total, self.sum(dim, among, scale))

    def sum(self, dim: int, among: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        logit = self.logit if among is None else self.logit.where(among, -torch.inf)
        if scale is not None:
            logit = logit * scale.to(logit.dtype).unsqueeze(dim)
        top = logit.amax(dim, keepdim=True).nan_to_num_(torch.nan)  # finite, or inf - inf would be NaN
        weight = _exp(logit - top)
        if dim == 1 and among is None:
            self.top, self.weight = top, weight
        return weight.sum(dim).log_().add_(top.squeeze(dim))

    @staticmethod
    def merge(total: Tensor, logits: Tensor) -> Tensor:
        return torch.logaddexp(total, logits.logsumexp(-1))

    @staticmethod
    def join(total: Tensor, more: Tensor) -> Tensor:
        return torch.logaddexp(total, more.to(total.dtype))

    @staticmethod
    def log(total: Tensor) -> Tensor:
        return total

    @staticmethod
    def raised(total: Tensor, by: Tensor) -> Tensor:
        return total + by

    @staticmethod
    def of_logit(logit: Tensor) -> Tensor:
        return logit

    @staticmethod
    def close(total: Tensor, positive: Tensor, decoupled: bool) -> Single:
        """See :meth:`.plain_tile.PlainSums.close`."""
        losses = total - positive
        if decoupled:
            return Single(losses, total, None)
        # softplus is exact below, and exp overflows at 709
        return Single(softplus(losses, threshold=700), torch.logaddexp(total, positive), losses.sigmoid())

    def logits(self, among: Tensor) -> Tensor:
        return self.logit.where(among, 0)

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """dL/dc of each pair, and the derivatives of the link's ``params`` if there are any; of a scale for
        each anchor those of either side."""
        shares = [self._share(side) for side in sides]
        learned: Sequence[Tensor | None] = ()
        if sides[0].scale is not None:
            if params and self.base is not None:
                learned = [(share * self.base).sum(1 - i) for i, share in enumerate(shares)]
            scaled = zip(shares, sides, strict=True)
            shares = [share * side.scale.to(share.dtype) for share, side in scaled if side.scale is not None]
            return added(shares).mul_(self.slope), learned
        outer = added(shares)
        if params and self.similarity is not None:
            learned = link_gradient(self.link, self.similarity, outer, params)
        elif params and self.base is not None:
            learned = [(outer * self.base).sum()]
        return outer.mul_(self.slope), learned

    def of_negatives(
        self, grad: Tensor | float, z: Tensor, params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """See :meth:`.plain_tile.PlainTile.of_negatives`."""
        sides = [Side.of_negatives(grad, x, dim) for dim, x in enumerate(z if z.dim() == 2 else (z,))]
        return self.coefficients(sides, params)

    def _share(self, side: Side) -> Tensor:
        """dL/dlogit in one direction."""
        dtype = self.logit.dtype
        if self.weight is not None and self.top is not None and self.top.shape == side.log_z.shape:
            share: Tensor = self.weight * (side.grad * (self.top - side.log_z).exp()).to(dtype)
        else:
            logit = self.logit if side.scale is None else self.logit * side.scale.to(dtype)
            grad = side.grad.to(dtype) if isinstance(side.grad, Tensor) else side.grad
            share = _exp(logit - side.log_z.to(dtype)).mul_(grad)
        if self.same is None:
            return share
        kept = (side.keep * share).where(side.keep != 0, 0)  # not 0 times a decoupled share, perhaps infinite
        return torch.where(self.same, (kept - side.target).to(share.dtype), share)


def _exp(x: Tensor) -> Tensor:
    """In place, by exp2, which takes half the time of exp on a CPU."""
    return x.mul_(1 / math.log(2)).exp2_()
