"""Tiles of the log-odds at gain 1, whose weights (1+c)/(1-c) need no exponential."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taufree.backends.blockwise.directions import Side, added
from taufree.backends.blockwise.formulas import offset_of
from taufree.backends.blockwise.left_out import LeftOut
from taufree.backends.blockwise.plain_tile import PlainSums, by_pair
from taufree.links import Link


class OddsTile(PlainSums):
    """LogOdds at gain 1, with r = 1/(1 + delta - c): weight = 2(1+delta)r - 1, its slope 2(1+delta)r^2."""

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None,
    ) -> None:  # fmt: skip
        resolution = offset_of(link)
        self.twice = 2 * (1 + resolution)
        self.same = same
        self.near = rise is not None
        self.r = gap.reciprocal_()
        self.left_out = left_out
        self.positives: tuple[Tensor, Tensor] | None = None  # of a diagonal: weights, derivatives of logits
        if positives_at is not None:
            r = self.r.diagonal(positives_at)
            weight = (r * self.twice).sub_(1)
            self.positives = weight, (r * r).mul_(self.twice).div_(weight)
        self.weight: Tensor | None = None  # formed only where the sum of r does not give it
        if rise is not None:
            self.weight = rise.add_(resolution).mul_(self.r)
        elif same is not None:
            self.weight = (self.r * self.twice).sub_(1)
        if left_out is not None:
            left_out.fill(self.r, 0)
            if self.weight is not None:
                left_out.fill(self.weight, 0)

    @property
    def nbytes(self) -> int:
        return self.r.nbytes * (1 if self.weight is None else 2)

    def add(
        self, total: Tensor, dim: int, among: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        """``total`` with :meth:`sum` added."""
        return self.join(total, self.sum(dim, among, scale))

    def sum(self, dim: int, among: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        """The weights along ``dim`` as one sum, of all pairs or of those ``among``.

        ``scale`` is that of each anchor, which only :class:`SoftmaxTile` has.
        """
        if self.weight is None:
            count = self.r.shape[dim] - (0 if self.left_out is None else self.left_out.count(self.r, dim))
            return self.r.sum(dim).mul_(self.twice).sub_(count)
        return (self.weight if among is None else self.weight * among).sum(dim)

    def logits(self, among: Tensor) -> Tensor:
        """The logits of the pairs ``among``, 0 elsewhere."""
        assert self.weight is not None
        return self.weight.where(among, 1).log_()

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """dL/dc of each pair, summed over the directions; consumes the tile."""
        shares = [self.twice * side.grad * torch.exp(-side.log_z) for side in sides]
        if self.same is None:
            return self.r.square_().mul_(added([share.to(self.r.dtype) for share in shares])), ()
        assert self.weight is not None
        scale = added(shares).to(self.r.dtype)
        kept = added([side.keep * share for side, share in zip(sides, shares, strict=True)]).to(self.r.dtype)
        target = added([self.twice * side.target for side in sides]).to(self.r.dtype)
        scale = torch.where(self.same, kept - target / self.weight, scale)
        return self.r.square_().mul_(scale), ()

    def of_negatives(
        self, grad: Tensor | float, z: Tensor, params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """See :meth:`.plain_tile.PlainTile.of_negatives`."""
        share = z.reciprocal().mul_(grad * self.twice)
        return self.r.square_().mul_(by_pair(share.to(self.r.dtype))), ()
