"""What a training loop prints beside its loss, from the same pass over the pairs as the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

MARGIN = 1e-5  # by which a positive's cosine must exceed a negative's, above the rounding of half precision


class Stats(NamedTuple):
    """The statistics of one batch, as a module with ``track=True`` has them in ``stats`` after a call.

    All are scalars without gradient, on the device of the loss and of its dtype; ``float(stats.accuracy)``
    waits for that device, nothing before does. They are unweighted, and over the anchors of all ranks if
    these are gathered; in a symmetric loss the keys are anchors too. The first two pass over anchors without
    a positive or without negatives. What is left without a pair is NaN, and all but the gain if an embedding
    is.

    Attributes:
        accuracy: the share of the anchors whose most similar candidate is a positive. A negative within 1e-5
            of the positive's cosine is a tie, and a tie is no success: embeddings that are all the same have
            accuracy 0.
        positive_cosine: the mean over the anchors of the mean cosine of their positives.
        negative_cosine: the mean cosine over all pairs of an anchor and a negative.
        gain: what the link multiplies by: the gain of log-odds, 1 / tau of a temperature, NaN for a link
            without a formula.
        dimension: the effective dimension of the negatives, 1 / mean(c^2), at most that of the embeddings.
            Unlike that of ``CalibratedLogOdds`` it is of this batch alone.
    """

    accuracy: Tensor
    positive_cosine: Tensor
    negative_cosine: Tensor
    gain: Tensor
    dimension: Tensor


class Tracker:
    """Where a backend leaves the sums of a batch, see :meth:`Tally.sums`."""

    sums: Tensor | None = None

    def stats(self, scale: float | Tensor, columns: int, like: Tensor) -> Stats | None:
        """Of embeddings with so many columns, a link of that scale, and the loss ``like``; detached."""
        if self.sums is None:
            return None
        anchors, hits, positive, negatives, cosine, squares = self.sums.detach().unbind()
        unknown = 0 * (positive + cosine)  # NaN if a cosine is: no comparison with it is true
        found = (
            (hits + unknown) / anchors,
            positive / anchors,
            cosine / negatives,
            scale.detach() if isinstance(scale, Tensor) else torch.full_like(anchors, scale),
            (negatives / squares).clamp(max=columns),
        )
        return Stats(*(x.reshape(()).to(like.device, like.dtype) for x in found))


class Tally:
    """What the anchors of one direction have met while their candidates are visited: [6, N].

    The rows are an anchor's largest cosine of a negative, that of a positive, the sum over the positives'
    cosines, and how many negatives there were, the sum of their cosines and that of the squares. Of the last
    three only the sum over the anchors has a meaning.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table

    @classmethod
    def empty(cls, like: Tensor, dtype: torch.dtype) -> Tally:
        """For the anchors ``like`` [N, ...]."""
        table = torch.zeros(6, like.shape[0], dtype=dtype, device=like.device)
        table[:2] = -torch.inf
        return cls(table)

    def add_positives(self, cosine: Tensor) -> None:
        """One for each anchor, [N]."""
        self.table[1], self.table[2] = cosine, cosine

    def raise_to(self, row: int, part: slice, best: Tensor) -> None:
        """The largest cosines of further negatives (row 0) or positives (row 1) of some anchors; below -2 for
        an anchor that has none."""
        best = best.to(self.table.dtype).masked_fill(best < -2, -torch.inf)
        self.table[row, part] = torch.maximum(self.table[row, part], best)

    def add_moments(self, other: Tally) -> None:
        """The number, cosines and squares of the negatives of other anchors."""
        self.table[3:, 0] += other.table[3:].sum(1).to(self.table.dtype)

    def sums(self, count: Tensor) -> Tensor:
        """[6]: how many anchors have positives, ``count`` [N] each, and negatives; how many of these have a
        positive ahead; the sum of their positives' mean cosines; the sums of the last three rows."""
        table = self.table
        some = (table[0] != -torch.inf) & (count > 0)
        ahead = some & (table[1] > table[0] + MARGIN)
        cosines = (table[2] / count).where(some, 0)
        each = torch.stack([some.to(table.dtype), ahead.to(table.dtype), cosines, *table[3:]])
        return each.sum(1)


Omitted: TypeAlias = tuple[Callable[[Tensor, float], Tensor], Tensor | int]
"""What fills the pairs of a tile that do not count with a number, in place, and how many they are."""


def masked(mask: Tensor | None) -> Omitted | None:
    return None if mask is None else (lambda tile, value: tile.masked_fill_(mask, value), mask.sum())


def add_tile(
    gap: Tensor,
    one: float,
    left_out: Omitted | None,
    same: Tensor | None,
    places: Sequence[tuple[Tally, slice, int]],
) -> None:
    """Adds a tile of anchors and candidates, with its ``gap`` = one - c, to tallies along its dimensions.

    The pairs that are ``left_out`` read ``one`` in ``gap`` afterwards. ``same`` are the positives, where they
    are in the tile.
    """
    if not gap.numel():
        return
    fill, count = left_out or (None, 0)
    if fill is not None:
        fill(gap, torch.inf)
    # Masks take five times as long as arithmetic, which moves the pairs that are not meant out of [-1, 1].
    chosen = None if same is None else same.to(gap.dtype)
    nearest = gap if chosen is None else torch.add(gap, chosen, alpha=8)
    for tally, part, dim in places:
        tally.raise_to(0, part, one - nearest.amin(dim))
    if fill is not None:
        fill(gap, one)
    cosine = one - gap
    flat = cosine.flatten()
    total, squares = flat.sum(), flat.dot(flat)
    if chosen is not None:
        above = (cosine + 3).mul_(chosen)
        cosine.mul_(chosen)
        for tally, part, dim in places:
            tally.raise_to(1, part, above.amax(dim) - 3)
            tally.table[2, part] += cosine.sum(dim)
        flat, count = cosine.flatten(), count + chosen.sum()
        total, squares = total - flat.sum(), squares - flat.dot(flat)
    for tally, _, _ in places:
        tally.table[3, 0] += gap.numel() - count
        tally.table[4, 0] += total
        tally.table[5, 0] += squares
