"""Several short histories in one row of a Transformer's input, so that few of its places stay empty."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import torch
from torch import Tensor


def packed(lengths: Sequence[int], width: int, rows: int = 1) -> Tensor:
    """Where the items of histories go: slots [R, width], with the number b * width + p of the item at place p
    of history b, or -1 where no item goes. A history keeps its order and is never cut.

    The longest history comes first, each goes where the least room is left for it. R is the least multiple of
    ``rows`` that suffices, so that it is mostly the same.

    >>> packed([2, 3, 1], width=4)
    tensor([[ 4,  5,  6,  8],
            [ 0,  1, -1, -1]])
    """
    rooms: list[tuple[int, int]] = []  # what is left of each row, and its number
    starts = torch.empty(len(lengths), dtype=torch.long)
    for history in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        at = bisect_left(rooms, (lengths[history], 0))
        left, row = rooms.pop(at) if at < len(rooms) else (width, len(rooms))
        starts[history] = (row + 1) * width - left
        insort(rooms, (left - lengths[history], row))
    slots = torch.full((-(-len(rooms) // rows) * rows * width,), -1)
    place = torch.arange(width)
    there = place < torch.as_tensor(lengths)[:, None]
    items = torch.arange(len(lengths) * width).view(-1, width)
    slots[(starts[:, None] + place)[there]] = items[there]
    return slots.view(-1, width)


def one_a_row(lengths: Tensor, width: int) -> Tensor:
    """The slots [B, width] of histories that have a row each."""
    place = torch.arange(width, device=lengths.device)
    items = torch.arange(len(lengths), device=lengths.device)[:, None] * width + place
    return items.where(place < lengths[:, None], -1)
