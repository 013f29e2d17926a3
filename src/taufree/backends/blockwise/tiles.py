"""What a tile of the similarity matrix adds to the sums and to the gradient, link by link.

Three kinds: :class:`OddsTile` for the log-odds at gain 1, whose weights (1+c)/(1-c) are plain numbers that
need no exponential and no maximum; :class:`PlainTile` for other gains and for temperatures, whose weights
need no maximum while they stay in range; and :class:`SoftmaxTile` for every other link.
"""

from __future__ import annotations

import functools
import math
from typing import TypeAlias

import torch
from torch import Tensor

from taufree.backends.blockwise.odds_tile import OddsTile
from taufree.backends.blockwise.plain_tile import LN2, PlainTile
from taufree.backends.blockwise.softmax_tile import SoftmaxTile
from taufree.links import Link

Tile: TypeAlias = OddsTile | PlainTile | SoftmaxTile

NEAR_GAP = 0.05  # a tile with a pair |c| > 1 - NEAR_GAP is computed exactly
# Of the weights of a PlainTile, logarithms to base 2: in float32 where no pair is near, in float64 elsewhere,
# where the ratio of two is in range too.
FLOAT32_BITS, FLOAT64_BITS = 110, 480


def near(gap: Tensor, offset: float, limit: float = NEAR_GAP) -> bool:
    """Whether plain products are not good enough for a tile, given its 1 - c + offset."""
    least, most = gap.aminmax()
    low, high = limit + offset, 2 - limit + offset
    if gap.is_cpu:
        return least.item() < low or most.item() > high
    return bool((least < low) | (most > high))  # waits for the device once


def tile_kind(link: Link, learns: bool = False) -> type[Tile]:
    """OddsTile for the log-odds at gain 1, with nothing to learn; PlainTile for a formula with weights in
    range; SoftmaxTile for the rest, and for a scale on another device than the CPU.

    The log-odds of pairs that are not near are within 5.3 bits, those of all pairs within log2(2/delta + 1).
    """
    formula = link.formula
    if formula is None:
        return SoftmaxTile
    scale = link.formula_scale()
    if isinstance(scale, Tensor):
        if not scale.is_cpu or scale.dim():  # to read another device's scalar is to wait for the device
            return SoftmaxTile
        scale = scale.item()
    if formula.kind == "linear":
        return PlainTile if abs(scale) <= FLOAT32_BITS * LN2 else SoftmaxTile
    if scale == 1 and not learns:
        return OddsTile
    delta, gain = formula.resolution, abs(scale)
    plain = gain * math.log2(2 / NEAR_GAP) <= FLOAT32_BITS and delta > 0
    return PlainTile if plain and gain * math.log2(2 / delta + 1) <= FLOAT64_BITS else SoftmaxTile


@functools.cache
def keep_freed_memory() -> None:
    """Allocates and frees 32 MiB, the most by which glibc raises its threshold: from then on it keeps freed
    tiles for the next ones. Getting them from the operating system each time took a third of the time."""
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
