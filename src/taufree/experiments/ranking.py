"""How high the item that came next is ranked: among drawn negatives, and among all items."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.experiments.interactions import Rows

TRIES = 50
CUTS = (1, 5, 10)


def draw_negatives(rows: Rows, items: int, count: int, generator: torch.Generator) -> Tensor:
    """Items [N, count] that are neither in a row's history nor its target, drawn by their popularity.

    An item's popularity is how often it stands in the histories of ``rows``. Items may be drawn twice. A row
    that has seen everything popular gets items that are drawn evenly from those it has not seen.
    """
    popularity = torch.bincount(rows.items[rows.known], minlength=items).double()
    steps = popularity.cumsum(0)
    seen = rows.items.where(torch.arange(rows.items.shape[1]) <= rows.lengths[:, None], items)

    def fresh(number: int) -> Tensor:
        place = torch.rand(number, dtype=torch.float64, generator=generator) * steps[-1]
        return torch.searchsorted(steps, place, right=True)

    drawn = fresh(len(seen) * count).view(-1, count)
    open_rows = torch.arange(len(seen))
    for _ in range(TRIES):
        bad = _among(drawn[open_rows], seen[open_rows])
        still = bad.any(1)
        open_rows, bad = open_rows[still], bad[still]
        if not len(open_rows):
            return drawn
        part = drawn[open_rows]
        part[bad] = fresh(int(bad.sum()))
        drawn[open_rows] = part
    for row in open_rows.tolist():
        unseen = torch.ones(items + 1, dtype=torch.bool).scatter(0, seen[row], False)[:-1].nonzero().flatten()
        if not len(unseen):
            raise ValueError(
                f"a user must have items left to rank against, but user {row} knows all {items}."
            )
        drawn[row] = unseen[torch.randint(len(unseen), (count,), generator=generator)]
    return drawn


def _among(drawn: Tensor, seen: Tensor, chunk: int = 1024) -> Tensor:
    parts = zip(torch.split(drawn, chunk), torch.split(seen, chunk), strict=True)
    return torch.cat([(a[:, :, None] == b[:, None, :]).any(-1) for a, b in parts])


def ranks(scores: Tensor, targets: Tensor, negatives: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """How many items are ranked before each target, of the negatives and of all items that were not seen.

    Ties count against the target, and so do scores that are not numbers.

    Shape:
        scores: [B, items], changed in place; targets: [B]; negatives: [B, K]; seen: [B, S] item numbers.
    """
    own = scores.gather(1, targets[:, None])
    sampled = (~(scores.gather(1, negatives) < own)).sum(1)
    scores.scatter_(1, torch.cat([seen, targets[:, None]], dim=1), -torch.inf)
    return sampled, (~(scores < own)).sum(1)


def figures(rank: Tensor) -> dict[str, float]:
    """Hit rates and NDCG in %, at the usual cuts: the shares of rank < k, and of (rank < k) / log2(rank + 2).

    >>> figures(torch.tensor([0, 3, 99, 99]))["hr5"], figures(torch.tensor([0, 2, 99, 99]))["ndcg5"]
    (50.0, 37.5)
    """
    gain = 1 / (rank.double() + 2).log2()
    hits = {f"hr{k}": 100 * (rank < k).double().mean().item() for k in CUTS}
    # At the first cut both are the same figure.
    return {**hits, **{f"ndcg{k}": 100 * ((rank < k) * gain).mean().item() for k in CUTS[1:]}}
