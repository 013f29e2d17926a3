"""The passes over the similarity matrix: which kernels run, on which tiles."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from taufree.backends.fused.arguments import EXP, ODDS, KernelLink
from taufree.backends.fused.kernels import tiles as tile_kernels
from taufree.backends.fused.launch import start
from taufree.backends.fused.row_passes import KernelRows, Mode, Upstream
from taufree.backends.numerics import float32_products
from taufree.stats import Tally

PARTIAL_SUM_BYTES = 64 * 2**20  # of sums kept apart, tile by tile, where they cannot be added atomically


class Config(NamedTuple):
    """A tile's rows, columns and depth, its warps and pipeline stages, and the most registers of a thread.

    With four warps and 96 KiB of stages two programs share a Hopper multiprocessor: one multiplies
    while the other is busy with reciprocals and sums.
    """

    bm: int = 128
    bn: int = 128
    bk: int = 64
    warps: int = 4
    stages: int = 3
    registers: int | None = None


def tile_config(link: KernelLink, what: str, mode: Mode) -> Config:
    """Fixed, so that nothing is tuned again for another N: of six shapes the fastest on an H200 at D = 512,
    which keeps most of what a pair needs in registers. ``what`` are "pairs", "labels", or the sigmoid loss's
    "questions".

    Of Blackwell's cards those for desktops have less room for pairs of float16: 99 KiB of stages instead of
    Hopper's 227.
    """
    if what == "labels":
        return Config(bn=64)
    if what == "questions" and link.kind != ODDS:
        return Config(bn=64, warps=8)
    if what == "questions" and not mode.split:
        return Config(bm=64)
    if link.kind in (ODDS, EXP) or link.each:
        wide = mode.split or link.each
        return Config(bm=64 if mode.split and _blackwell() else 128, warps=8 if wide else 4)
    return Config(bm=64) if mode.split else Config()


def _blackwell() -> bool:
    """Whether the current device is one, or newer."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 10


def chunk_shape(pad: int, mode: Mode) -> tuple[int, int]:
    """Rows and columns of the coefficients in memory at a time: 128 MiB, or 512 MiB where rows are short."""
    side = 16384 if pad <= 256 else 8192
    return side // (4 if mode.split else 2 if mode.tf32 else 1), side


class PairBlock(NamedTuple):
    """All pairs of anchors ``u`` with candidates ``v``, and which of them count.

    Attributes:
        groups: [N], the anchors' labels if ``labels``, else ids: equal ones are left out.
        shift: row i + shift of v is the positive of row i, if ``positives``.
        both_ways: whether the candidates are anchors too.
        far_groups: [M], the candidates' groups, if they are not the anchors'.
    """

    u: KernelRows
    v: KernelRows
    groups: Tensor | None
    labels: bool = False
    shift: int = 0
    both_ways: bool = False
    positives: bool = False
    far_groups: Tensor | None = None

    @property
    def alone(self) -> bool:
        return self.u is self.v

    def config(self, link: KernelLink, mode: Mode) -> Config:
        return tile_config(link, "labels" if self.labels else "pairs", mode)

    def tiles(self, config: Config, link: KernelLink) -> tuple[Any, ...]:
        """The arguments that both passes begin with."""
        groups = self.u.sides if self.groups is None else self.groups
        far_groups = groups if self.far_groups is None else self.far_groups
        u, v = self.u.tiles(config.bm, config.bk), self.v.tiles(config.bn, config.bk)
        return u, v, self.u.sides, self.v.sides, groups, far_groups, link.scale

    def options(self, mode: Mode, config: Config, link: KernelLink) -> dict[str, Any]:
        return {
            "LINK": link.kind, "EACH": link.each, "COLS": self.both_ways or self.alone, "SELF": self.alone,
            "POSITIVES": self.positives, "IDS": self.groups is not None and not self.labels,
            "LABELS": self.labels, "HARD": link.hardness != 0, "PAD": self.u.pad, "SPLIT": mode.split,
            "BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": 8, "num_warps": config.warps,
            "num_stages": config.stages, **({"maxnreg": config.registers} if config.registers else {}),
        }  # fmt: skip


def add_sums(
    block: PairBlock, mode: Mode, link: KernelLink, rows: Tensor, cols: Tensor,
    tallies: tuple[Tally, Tally] | None = None,
) -> None:  # fmt: skip
    """Adds a block's weights to rows [1, N] and, if it goes both ways, cols [1, M].

    Atomically; tile by tile, then in a fixed order, if torch is asked for deterministic algorithms. ``cols``
    is ``rows`` for anchors among themselves. With labels the first dimension is 3, see the kernel.
    ``tallies`` are those of anchors and candidates, if statistics are wanted.
    """
    u, v, config, parts = block.u, block.v, block.config(link, mode), len(rows)
    atomic = not torch.are_deterministic_algorithms_enabled()
    row_tiles, options = -(-u.n // config.bm), block.options(mode, config, link)
    step = v.n if atomic else max(1, PARTIAL_SUM_BYTES // (rows.itemsize * parts * u.n)) * config.bn
    for first in range(0, v.n, step):
        seen = cols[:, first : first + step]
        col_tiles = -(-min(step, v.n - first) // config.bn)
        along, across = rows, cols
        if not atomic:
            along = rows.new_zeros((parts, col_tiles, u.n))
            across = rows.new_zeros((parts, row_tiles, seen.shape[1])) if options["COLS"] else along
        start(
            tile_kernels.tile_sums, row_tiles * col_tiles, *block.tiles(config, link), along, across,
            *((along, across) if tallies is None else (tally.table for tally in tallies)), u.n, v.n, first,
            row_tiles, col_tiles, block.shift, link.resolution, link.hardness, ATOMIC=atomic,
            TRACK=tallies is not None, **options,
        )  # fmt: skip
        if not atomic:
            for total, found in [(rows, along)] + ([(seen, across)] if options["COLS"] else []):
                total += found.sum(1)


def add_gradients(
    block: PairBlock, mode: Mode, link: KernelLink, upstream: Upstream, sides: tuple[Tensor, ...],
    grads: tuple[Tensor | None, Tensor | None], fresh: tuple[bool, bool], learned: Tensor | None,
) -> None:  # fmt: skip
    """Adds a block's part of the gradient with respect to the unit rows u and v, and to the scale.

    ``sides`` are the candidates' upstream, the two directions' normalisers, and the labels' state of
    anchors and candidates; ``fresh`` gradients hold nothing yet, not even zeros. The coefficients exist for
    one chunk of the matrix at a time; two library products turn them into both gradients.
    """
    u, v, config = block.u, block.v, block.config(link, mode)
    height, breadth = (
        min(most, -(-r.n // 256) * 256) for most, r in zip(chunk_shape(u.pad, mode), (u, v), strict=True)
    )
    width = breadth * (2 if mode.split else 1)
    chunk = u.x.new_empty(height, width, dtype=torch.float32 if mode.tf32 else torch.bfloat16)
    out = TensorDescriptor.from_tensor(chunk, [config.bm, config.bn])
    begin, options = block.tiles(config, link), block.options(mode, config, link)
    for top in range(0, u.n, height):
        rows = slice(top, min(top + height, u.n))
        row_tiles = -(-(rows.stop - top) // config.bm)
        for left in range(top if block.alone else 0, v.n, breadth):
            cols = slice(left, min(left + breadth, v.n))
            col_tiles = -(-(cols.stop - left) // config.bn)
            parts, heights = chunk, row_tiles * config.bm
            if learned is not None and link.each:
                parts = u.stats.new_zeros(col_tiles * heights + row_tiles * col_tiles * config.bn)
            elif learned is not None:
                parts = u.stats.new_empty(row_tiles * col_tiles)
            start(
                tile_kernels.tile_coefficients, row_tiles * col_tiles, *begin, *upstream.arguments(), *sides,
                out, parts, u.n, v.n, top, left, row_tiles, col_tiles, block.shift, link.resolution,
                link.hardness,
                LEARN=learned is not None, **options,
            )  # fmt: skip
            if learned is not None and link.each:
                along, across = parts[: col_tiles * heights], parts[col_tiles * heights :]
                learned[rows] += along.view(col_tiles, -1).sum(0)[: rows.stop - top]
                if block.alone:
                    learned[cols] += across.view(row_tiles, -1).sum(0)[: cols.stop - left]
            elif learned is not None:
                learned += parts.sum(dtype=torch.float64)
            high = chunk[: rows.stop - top, : cols.stop - left]
            rest = (
                chunk[: rows.stop - top, col_tiles * config.bn :][:, : cols.stop - left]
                if mode.split
                else None
            )
            if grads[0] is not None:
                _add_product(grads[0][rows], high, rest, v.unit[cols], mode, fresh[0] and left == 0)
            if grads[1] is not None:
                rest = None if rest is None else rest.T
                _add_product(grads[1][cols], high.T, rest, u.unit[rows], mode, fresh[1] and top == 0)


def _add_product(out: Tensor, a: Tensor, rest: Tensor | None, b: Tensor, mode: Mode, fresh: bool) -> None:
    """out [R, PAD] += (a + rest) @ b (= if fresh), where b [K, PAD or 2 PAD] is (high, low) in split mode.

    Every factor has at most 11 digits, so that TF32 holds it exactly.
    """
    if mode.tf32 or not a.is_cuda:
        high, *low = torch.split(b.float(), out.shape[1], 1)
        out.addmm_(a.float(), high, beta=0 if fresh else 1)
        if rest is not None:
            out.addmm_(a, low[0]).addmm_(rest, high)
    else:
        torch.addmm(out, a, b, out_dtype=torch.float32, beta=0 if fresh else 1, out=out)


def library_precision(mode: Mode) -> AbstractContextManager[None]:
    """Float32 products in TF32, for operands that TF32 holds exactly; autocast leaves in-place ones alone."""
    return float32_products("high") if mode.tf32 else nullcontext()
