"""How high the item that came next is ranked: among drawn negatives, and among all items."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.experiments.recommendation.interactions import Histories

MAX_DRAWS = 50
USERS_PER_CHUNK = 1024
CUTOFFS = (1, 5, 10)


def draw_negatives(rows: Histories, popularity: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Items [N, count] that a row's user has not had so far and that are not its target, drawn by popularity.

    Items may be drawn twice. A row that has had every item of any popularity gets items that are drawn evenly
    from the others.

    Args:
        popularity: [items], how often each item is to be drawn, in comparison.
    """
    steps, items = popularity.double().cumsum(0), len(popularity)

    def fresh(number: int) -> Tensor:
        place = torch.rand(number, dtype=torch.float64, generator=generator) * steps[-1]
        return torch.searchsorted(steps, place, right=True)

    found = []
    for index in torch.split(torch.arange(len(rows.lengths)), USERS_PER_CHUNK):
        drawn = fresh(len(index) * count).view(-1, count)
        had = torch.zeros(len(index), items, dtype=torch.bool).scatter_(1, rows.seen(index), True)
        row, column = had.gather(1, drawn).nonzero(as_tuple=True)
        for _ in range(MAX_DRAWS):
            drawn[row, column] = again = fresh(len(row))
            bad = had[row, again]
            row, column = row[bad], column[bad]
            if not len(row):
                break
        for full in torch.unique(row).tolist():
            left = (~had[full]).double()
            if not left.any():
                raise ValueError(
                    f"a user must have items left to rank against, but user {index[full]} has all {items}."
                )
            chances = popularity * left
            drawn[full] = torch.multinomial(
                chances if chances.any() else left, count, replacement=True, generator=generator
            )
        found.append(drawn)
    return torch.cat(found)


def sampled_ranks(wanted: Tensor, items: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
    """[B], how many of the negatives are ranked before each target. The score of an item is a dot product.

    Ties count against the target, and so do scores that are not numbers.

    Shape:
        wanted: [B, D], what an item's vector should be like; items: [M, D]; targets: [B]; negatives: [B, K].
    """
    compared = torch.cat([targets[:, None], negatives], dim=1)
    scores = (items[compared] * wanted[:, None]).sum(-1)  # alike vectors have the same score to the last bit
    return (~(scores[:, 1:] < scores[:, :1])).sum(1)


def full_ranks(scores: Tensor, targets: Tensor, seen: Tensor) -> Tensor:
    """[B], how many of all items that were not seen are ranked before each target; ties as above.

    Shape:
        scores: [B, items], changed in place; targets: [B]; seen: [B, S] item numbers.
    """
    own = scores.gather(1, targets[:, None])
    scores.scatter_(1, torch.cat([seen, targets[:, None]], dim=1), -torch.inf)
    return (~(scores < own)).sum(1)


def ranking_metrics(rank: Tensor) -> dict[str, float]:
    """Hit rates and NDCG in %, at the usual cuts: the shares of rank < k, and of (rank < k) / log2(rank + 2).

    >>> ranking_metrics(torch.tensor([0, 3, 99, 99]))["hr5"]
    50.0
    >>> ranking_metrics(torch.tensor([0, 2, 99, 99]))["ndcg5"]
    37.5
    """
    gain = 1 / (rank.double() + 2).log2()
    hits = {f"hr{k}": 100 * (rank < k).double().mean().item() for k in CUTOFFS}
    # At the first cut both are the same figure.
    return {**hits, **{f"ndcg{k}": 100 * ((rank < k) * gain).mean().item() for k in CUTOFFS[1:]}}
