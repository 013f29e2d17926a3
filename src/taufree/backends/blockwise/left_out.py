"""The pairs of a tile that do not count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from taufree.contrast import Contrast
from taufree.stats import Omitted


@dataclass
class LeftOut:
    """The pairs of a tile that do not count: whole diagonals, quick to fill, or any pairs by a mask."""

    diagonals: list[int]
    mask: Tensor | None
    in_each: int | None = None  # how many a row or a column has, if all have as many

    @classmethod
    def of(cls, contrast: Contrast, rows: range, cols: range) -> LeftOut | None:
        """The same pairs as :meth:`Contrast.left_out`."""
        if contrast.ids is not None:
            return cls([], contrast.left_out(rows, cols))
        shifts = [0] if contrast.keys is None else []
        if contrast.labels is None:
            shifts += [contrast.shift, contrast.shift - contrast.n]
        offsets = [rows.start - cols.start + shift for shift in shifts]
        diagonals = [k for k in offsets if -len(rows) < k < len(cols)]
        return cls(diagonals, None) if diagonals else None

    @classmethod
    def of_all(cls, contrast: Contrast) -> LeftOut | None:
        """Those of the whole matrix of anchors and keys, and of a queue beside it."""
        if contrast.ids is not None:
            return cls.of(contrast, range(contrast.n), range(contrast.n))
        shifts = [0] if contrast.keys is None else []
        shifts += [contrast.shift] if contrast.labels is None else []
        # A diagonal that leaves at one edge comes back at the other.
        back = [shift - contrast.n for shift in shifts if shift]
        return cls(shifts + back, None, len(shifts)) if shifts else None

    def fill(self, tile: Tensor, value: float) -> Tensor:
        for k in self.diagonals:
            tile.diagonal(k).fill_(value)
        return tile if self.mask is None else tile.masked_fill_(self.mask, value)

    def count(self, tile: Tensor, dim: int) -> Tensor | int:
        """How many there are along ``dim``."""
        if self.in_each is not None and tile.shape[0] == tile.shape[1]:
            return self.in_each
        if self.mask is not None:
            return self.mask.sum(dim)
        count = tile.new_zeros(tile.shape[1 - dim])
        for k in self.diagonals:
            first = max(0, -k if dim else k)
            count[first : first + len(tile.diagonal(k))] += 1
        return count


def omitted(left_out: LeftOut | None, tile: Tensor) -> Omitted | None:
    """The same for the statistics of the tile."""
    if left_out is None:
        return None
    if left_out.mask is not None:
        return left_out.fill, left_out.mask.sum()
    return left_out.fill, sum(tile.diagonal(k).numel() for k in left_out.diagonals)
