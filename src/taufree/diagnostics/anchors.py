"""Anchors against their candidates, block by block, and the gradient scale of each anchor.

An anchor's candidates are the rows of a table; those of its own group are its positives, all others its
negatives. Pairs are groups of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from taufree import Link, LogOdds, Temperature
from taufree.backends.numerics import full_precision
from taufree.diagnostics.gradient_scale import chance_scale, gradient_scale, logit_and_slope

TAUS = (0.05, 0.1, 0.25, 0.5, 1.0)
HARDEST_SHARE = 0.01
"""The share of an anchor's negatives, by cosine, that counts as its hardest; one negative at least."""

_TIE = 1e-6
"""Cosines that differ by less are equal: float32 rounds at 1e-7."""
_PRODUCT_SIZE = 2**24
"""Cosines of one matrix product, 64 MB: large enough for a fast one."""
_PIECE_ROWS = 4096
"""Rows of a table that are normalised at a time."""
_CACHE_SIZE = 2**20
"""Cosines of a block on a CPU, 4 MB: small enough to stay in its cache."""


@dataclass(frozen=True)
class AnchorBlock:
    """The cosines of B anchors and their N candidates.

    Shape:
        positive: [B, P], cosines of the positives; entries where ``counts`` is False are padding.
        counts: [B, P].
        negative: [B, N], cosines of the negatives, -1 in the columns of the anchor's group.
        group: [B, P], those columns (padded by repetition).
        positives, negatives: [B], how many there are.
        hardest: [B, H], columns of the hardest negatives in falling order; a row's first
            ceil(HARDEST_SHARE * negatives) count.
    """

    positive: Tensor
    counts: Tensor
    negative: Tensor
    group: Tensor
    positives: Tensor
    negatives: Tensor
    hardest: Tensor


class AnchorStatistics(NamedTuple):
    """What is kept of B anchors for each of S links.

    Shape:
        positives, negatives: [B], how many there are.
        cosine, local: [B], means over the anchor's positives of c and of (1 - c^2) / 2.
        first: [B], 1 where the most similar candidate is a positive, else 0; the share of the positives
            among the most similar where several are equally similar.
        scale, chance, hardest, loss: [S, B], the gradient scale, what it is at chance, the share of the
            negatives' gradient that is spent on the hardest, and the loss.
    """

    positives: Tensor
    negatives: Tensor
    cosine: Tensor
    local: Tensor
    first: Tensor
    scale: Tensor
    chance: Tensor
    hardest: Tensor
    loss: Tensor


def schemes(taus: Sequence[float] = TAUS) -> dict[str, Link]:
    """The links to compare, by name: the free one, then the temperatures.

    >>> list(schemes([0.1]))
    ['free', 'tau=0.1']
    """
    if not isinstance(taus, Iterable):
        raise TypeError(f"taus must be a list of temperatures, got {type(taus).__name__}.")
    return {"free": LogOdds(), **{f"tau={float(tau):g}": Temperature(tau) for tau in taus}}


def unit(x: Tensor) -> Tensor:
    """Rows of length 1 in float32; a zero row stays zero, so its cosines are 0."""
    x = x if x.dtype == torch.float64 else x.float()
    # Scaled by their largest entry first, no square of which can leave the range.
    largest = torch.linalg.vector_norm(x, torch.inf, dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return normalize(x / largest).float()


@torch.no_grad()
def blocks(first: Tensor, second: Tensor | None, groups: Tensor, rows: Tensor) -> Iterator[AnchorBlock]:
    """Compare the anchors ``first[rows]`` with every row of ``second``, or of ``first`` but themselves.

    float32 is enough: its rounding of a cosine, 1e-7, is a thousandth of the free link's resolution.

    Args:
        first, second: [N, D] of any floating dtype; ``second`` None compares ``first`` with itself.
        groups: [N] integers from 0 on; row i of both tables is in group ``groups[i]``.
        rows: [A] row numbers of anchors that have a positive and a negative.
    """
    table, total = (first if second is None else second), len(first)
    order, sizes = groups.argsort(), groups.bincount()
    starts, slot = sizes.cumsum(0) - sizes, torch.arange(int(sizes.max()), device=first.device)
    hard = -(-total // round(1 / HARDEST_SHARE))
    tall = min(len(rows), max(1, _PRODUCT_SIZE // total))
    buffer = torch.empty(tall, total, dtype=torch.float32, device=first.device)  # whatever the default is
    for part in torch.split(rows, tall):
        anchors, cosines = unit(first[part]), buffer[: len(part)]
        with full_precision(first.device):
            # The table is normalised piece by piece, each time anew: a second copy of it may not fit.
            for number, piece in enumerate(torch.split(table, _PIECE_ROWS)):
                left = _PIECE_ROWS * number
                torch.mm(anchors, unit(piece).T, out=cosines[:, left : left + len(piece)])
        cosines.clamp_(-1, 1)
        height = len(part) if first.is_cuda else max(1, _CACHE_SIZE // total)
        for row, cosine in zip(torch.split(part, height), torch.split(cosines, height), strict=True):
            size = sizes[groups[row]].unsqueeze(1)
            counts = slot < size
            group = order[starts[groups[row]].unsqueeze(1) + torch.where(counts, slot, 0)]
            positive = cosine.gather(1, group)
            hardest = cosine.scatter_(1, group, -torch.inf).topk(hard).indices
            if second is None:
                counts = counts & (group != row.unsqueeze(1))
            yield AnchorBlock(
                positive=positive,
                counts=counts,
                negative=cosine.scatter_(1, group, -1.0),
                group=group,
                positives=counts.sum(1),
                negatives=total - size.squeeze(1),
                hardest=hardest,
            )


def measure(links: Iterable[Link], block: AnchorBlock) -> AnchorStatistics:
    """Reduce a block to what is kept of its anchors, for each link."""

    def mean(values: Tensor) -> Tensor:
        return values.masked_fill(~block.counts, 0.0).sum(1) / block.positives

    found = [
        (*gradients(link, block), chance_scale(link, block.positives, block.negatives)) for link in links
    ]
    scale, hardest, loss, chance = (torch.stack(values) for values in zip(*found, strict=True))
    return AnchorStatistics(
        positives=block.positives,
        negatives=block.negatives,
        cosine=mean(block.positive),
        local=mean((1 - block.positive.square()) / 2),
        first=_first(block),
        scale=scale,
        chance=chance,
        hardest=hardest,
        loss=loss,
    )


def _first(block: AnchorBlock) -> Tensor:
    """How likely a positive is the most similar candidate, if a draw decides between equal ones."""
    positive = block.positive.masked_fill(~block.counts, -torch.inf)
    best = positive.amax(1, keepdim=True)
    tied = (positive >= best - _TIE).sum(1)
    # At a best of -1 the columns of the anchor's own group, which hold -1, are counted too.
    rivals = (block.negative >= best - _TIE).sum(1).minimum(block.negatives)
    ahead = block.negative.amax(1) <= best.squeeze(1) + _TIE
    return ahead * tied / (tied + rivals)  # NaN where a cosine is NaN


def gradients(link: Link, block: AnchorBlock) -> tuple[Tensor, Tensor, Tensor]:
    """Each anchor's gradient scale, the share of its negatives' gradient spent on the hardest, and its loss.

    Shape:
        all results: [B].
    """
    logit, slope = logit_and_slope(link, block.positive)
    other, steep = logit_and_slope(link, block.negative)
    other.scatter_(1, block.group, -torch.inf)  # in place: the links of `schemes` return new tensors
    scale, parts, loss = gradient_scale((logit.masked_fill(~block.counts, -torch.inf), slope), (other, steep))
    rank = torch.arange(block.hardest.shape[1], device=parts.device)
    percent = round(1 / HARDEST_SHARE)
    chosen = rank < ((block.negatives + percent - 1) // percent).unsqueeze(1)
    return scale, (parts.gather(1, block.hardest) * chosen).sum(1) / parts.sum(1), loss
