"""Several short histories in one row of a Transformer's input, so that few of its places stay empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def packed(lengths: Sequence[int] | Tensor, longest: int, width: int, rows: int = 1) -> Tensor:
    """Where the items of histories go: slots [R, width], with the number b * longest + p of the item at place
    p of history b, or -1 where no item goes. A history keeps its order and is never cut. The slots are int32,
    as a GPU takes less than 64 KiB without waiting for the step before.

    The longest histories come first, each goes where the least room is left for it. R is the least multiple
    of ``rows`` that suffices, so that it is mostly the same.

    Args:
        longest: how many items a history has at most, and
        width: a row; at least as many.

    >>> packed([2, 3, 1], longest=3, width=4)
    tensor([[ 3,  4,  5,  6],
            [ 0,  1, -1, -1]], dtype=torch.int32)
    """
    size = np.asarray(lengths)
    counts = np.bincount(size, minlength=longest + 1).tolist()
    ends: list[list[int]] = [[] for _ in range(width + 1)]  # where rows end so far, by the room behind
    starts: list[int] = []
    full = 0
    for length in range(longest, 0, -1):
        left = counts[length]
        for room in range(length, width + 1):
            # A row takes as many as it has room for: what is left of it stays the least that suffices.
            while left and (ends[room] or room == width):
                if ends[room]:
                    end = ends[room].pop()
                else:
                    end, full = full, full + width
                taken = min(room // length, left)
                left -= taken
                starts += range(end, end + taken * length, length)
                ends[room - taken * length].append(end + taken * length)
    order = np.argsort(-size, kind="stable")
    size = size[order]
    place = np.arange(size.sum()) - np.repeat(size.cumsum() - size, size)
    slots = np.full(-(-full // (rows * width)) * rows * width, -1, dtype=np.int32)
    slots[np.repeat(np.array(starts, dtype=np.int64), size) + place] = (
        np.repeat(order * longest, size) + place
    )
    return torch.from_numpy(slots).view(-1, width)


def one_a_row(lengths: Tensor, longest: int) -> Tensor:
    """The slots [B, longest] of histories that have a row each."""
    place = torch.arange(longest, device=lengths.device)
    items = torch.arange(len(lengths), device=lengths.device)[:, None] * longest + place
    return items.where(place < lengths[:, None], -1)
