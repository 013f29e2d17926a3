"""The passes over the similarity matrix: which kernels run, on which tiles, in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from taufree.backends.precision import shortest
from taufree.backends.triton import arithmetic, row_kernels, tile_kernels
from taufree.backends.triton.start import start

ODDS, POWER, SCALE = (k.value for k in (arithmetic.ODDS, arithmetic.POWER, arithmetic.SCALE))
PARTIAL = 64 * 2**20  # bytes of sums kept apart, tile by tile, where they cannot be added atomically


class Mode(NamedTuple):
    """How inputs are multiplied: the tiles' dtype, whether a row is a pair (high, low), and whether the
    coefficients meet the rows in TF32 (with float32's range and 11 digits) instead of bfloat16."""

    dtype: torch.dtype
    split: bool
    tf32: bool

    @staticmethod
    def of(*inputs: Tensor | None) -> Mode:
        dtypes = {x.dtype for x in inputs if x is not None}
        if dtypes == {torch.bfloat16}:
            return Mode(torch.bfloat16, split=False, tf32=False)
        return Mode(torch.float16, split=dtypes != {torch.float16}, tf32=True)


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


def tile_config(kind: int, labels: bool, mode: Mode) -> Config:
    """Fixed, so that nothing is tuned again for another N. Exponentials and pairs need more registers."""
    return Config() if kind == ODDS and not labels and not mode.split else Config(warps=8)


def chunk_shape(pad: int, mode: Mode) -> tuple[int, int]:
    """Rows and columns of the coefficients in memory at a time: 128 MiB, or 512 MiB where rows are short."""
    side = 16384 if pad <= 256 else 8192
    return side // (4 if mode.split else 2 if mode.tf32 else 1), side


class Rows:
    """The rows of one input [R, D] as the tiles need them, and what leads back to the input.

    ``made`` are those of an earlier pass; otherwise they are still to be written, by :func:`fill`.
    """

    def __init__(self, x: Tensor, mode: Mode, made: tuple[Tensor, Tensor] | None = None) -> None:
        self.x, (self.n, self.d) = x, x.shape
        self.pad = -(-self.d // 64) * 64
        self.block = 1 << (self.pad - 1).bit_length()
        self.warps = max(1, min(8, self.block // 256))
        self.unit, self.stats = made or (
            x.new_empty(self.n, self.pad * (2 if mode.split else 1), dtype=mode.dtype),
            x.new_empty(5, self.n, dtype=torch.float32),
        )
        self.sides = self.stats[3:]

    def tiles(self, rows: int, depth: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(self.unit, [rows, depth])


def fill(rows: Rows, mode: Mode) -> None:
    """Writes the unit rows and their statistics."""
    start(
        row_kernels.unit_rows, rows.n, rows.x, rows.unit, rows.stats, rows.n, shortest(rows.x.dtype),
        D=rows.d, PAD=rows.pad, SPLIT=mode.split, BLOCK=rows.block, num_warps=rows.warps,
    )  # fmt: skip


def fill_pairs(u: Rows, v: Rows, mode: Mode, shift: int, kind: int) -> tuple[Tensor, Tensor]:
    """:func:`fill` for both, and [3, N] in float64: exactly 1 - c and 1 + c of each anchor and its positive,
    and room for the pull; also both directions' sums [2, 1, N], still without any pair."""
    sums = u.x.new_empty(2, 1, u.n, dtype=torch.float32)
    first = 0.0 if kind == ODDS else -torch.inf
    positive = u.x.new_empty(3, u.n, dtype=torch.float64)
    if u is not v and shift == 0:
        start(
            row_kernels.unit_pairs, u.n, u.x, u.unit, u.stats, shortest(u.x.dtype), v.x, v.unit, v.stats,
            shortest(v.x.dtype), positive, sums, u.n, first, D=u.d, PAD=u.pad, SPLIT=mode.split,
            BLOCK=u.block, num_warps=u.warps,
        )  # fmt: skip
        return positive, sums
    for rows in [u] if u is v else [u, v]:
        fill(rows, mode)
    start(
        row_kernels.chords, u.n, u.x, v.x, u.stats, v.stats, positive, sums, u.n, shift, first,
        D=u.d, BLOCK=u.block, num_warps=u.warps,
    )  # fmt: skip
    return positive, sums


class Link(NamedTuple):
    """A link as the kernels see it: its kind, its gain or inverse temperature [1], its resolution."""

    kind: int
    scale: Tensor
    delta: float


class Block(NamedTuple):
    """All pairs of anchors ``u`` with candidates ``v``: which of them count, and who looks back."""

    u: Rows
    v: Rows
    groups: Tensor | None  # [N], by ``labels`` who belongs together, otherwise whom to leave out
    labels: bool
    shift: int
    cols: bool  # the candidates are anchors too
    positives: bool  # row i + shift of v is the positive of row i

    @property
    def alone(self) -> bool:
        return self.u is self.v

    def tiles(self, config: Config, link: Link) -> tuple[Any, ...]:
        """The arguments that both passes begin with."""
        groups = self.u.sides if self.groups is None else self.groups
        u, v = self.u.tiles(config.bm, config.bk), self.v.tiles(config.bn, config.bk)
        return u, v, self.u.sides, self.v.sides, groups, link.scale

    def options(self, mode: Mode, config: Config, link: Link) -> dict[str, Any]:
        return {
            "LINK": link.kind, "COLS": self.cols or self.alone, "SELF": self.alone,
            "POSITIVES": self.positives, "IDS": self.groups is not None and not self.labels,
            "LABELS": self.labels, "PAD": self.u.pad, "SPLIT": mode.split,
            "BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": 8, "num_warps": config.warps,
            "num_stages": config.stages, **({"maxnreg": config.registers} if config.registers else {}),
        }  # fmt: skip


def add_sums(block: Block, mode: Mode, link: Link, rows: Tensor, cols: Tensor) -> None:
    """Adds a block's weights (their logarithms unless ODDS) to rows [1, N] and, looking back, cols [1, M].

    Atomically for ODDS; tile by tile, then in a fixed order, for the logarithms and whenever torch is
    asked for deterministic algorithms. ``cols`` is ``rows`` when the anchors meet each other. With labels
    the first dimension is 3, see the kernel.
    """
    u, v, config, parts = block.u, block.v, tile_config(link.kind, block.labels, mode), len(rows)
    atomic = link.kind == ODDS and not torch.are_deterministic_algorithms_enabled()
    row_tiles, options = -(-u.n // config.bm), block.options(mode, config, link)
    step = v.n if atomic else max(1, PARTIAL // (4 * parts * u.n)) * config.bn
    for first in range(0, v.n, step):
        col_tiles = -(-min(step, v.n - first) // config.bn)
        along, across = rows, cols
        if not atomic:
            none = 0.0 if link.kind == ODDS else -torch.inf
            along = rows.new_full((parts, col_tiles, u.n), none)
            across = rows.new_full((parts, row_tiles, v.n), none) if options["COLS"] else along
            for logits in (along[2:], across[2:]):
                logits.zero_()
        start(
            tile_kernels.tile_sums, row_tiles * col_tiles, *block.tiles(config, link), along, across,
            u.n, v.n, first, row_tiles, col_tiles, block.shift, link.delta, ATOMIC=atomic, **options,
        )  # fmt: skip
        if not atomic:
            for total, found in [(rows, along)] + ([(cols, across)] if options["COLS"] else []):
                if link.kind == ODDS:
                    total += found.sum(1)
                else:
                    total[:2] = torch.logaddexp(total[:2], found[:2].logsumexp(1))
                    total[2:] += found[2:].sum(1)


def close(
    positive: Tensor, rows: Tensor, cols: Tensor | None, link: Link, weight: float
) -> tuple[Tensor, Tensor]:
    """``weight`` times the losses [N], both directions' normalisers [2, N]; ``positive`` gets its pull."""
    n = positive.shape[1]
    loss, z = (positive.new_empty(shape, dtype=torch.float32) for shape in ((n,), (2, n)))
    start(
        row_kernels.close, -(-n // 256), positive, rows, rows if cols is None else cols, link.scale, loss, z,
        n, link.delta, weight, LINK=link.kind, COLS=cols is not None, BLOCK=256, num_warps=4,
    )  # fmt: skip
    return loss, z


def close_labelled(sums: Tensor, count: Tensor, link: Link) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [N], normalisers [2, N], and [3, N]: what a positive keeps of its share, its pull, and 0.

    The same formulas as tiles.Direction.close. An anchor without a positive has neither loss nor gradient.
    """
    negatives, positives, logits = sums.double()
    if link.kind == ODDS:
        negatives, positives = negatives.clamp(min=0).log(), positives.log()
    log_z = torch.logaddexp(negatives, positives)
    loss = torch.logaddexp(torch.zeros_like(log_z), negatives - positives)
    loss += torch.where(count == 1, 0, positives - logits / count)
    share = torch.where(count == 1, (negatives - log_z).exp(), 1 / count)
    z = log_z if link.kind != ODDS else 2 * (1 + link.delta) * (-log_z).exp()
    some = count > 0
    z = z.where(some, 0.0 if link.kind == ODDS else torch.inf)
    state = torch.stack([(count != 1).double(), share.where(some, 0), torch.zeros_like(share)])
    return loss.where(some, 0).float(), z.float().expand(2, -1).contiguous(), state


class Upstream(NamedTuple):
    """dL/dL_i of the losses: ``weight`` times each [N], or times the same for all."""

    grad: Tensor
    weight: float

    def arguments(self) -> tuple[Tensor, int, float]:
        return self.grad, int(self.grad.dim() > 0), self.weight


def add_gradients(
    block: Block, mode: Mode, link: Link, upstream: Upstream, sides: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor | None, Tensor | None], fresh: tuple[bool, bool], learned: Tensor | None,
) -> None:  # fmt: skip
    """Adds a block's part of the gradient with respect to the unit rows u and v, and to the scale.

    ``sides`` are the two directions' normalisers and the labels' state; ``fresh`` gradients hold nothing
    yet, not even zeros. The coefficients exist for one chunk of the matrix at a time; two library
    products turn them into both gradients.
    """
    u, v, config = block.u, block.v, tile_config(link.kind, block.labels, mode)
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
            parts = chunk if learned is None else u.stats.new_empty(row_tiles * col_tiles)
            start(
                tile_kernels.tile_coefficients, row_tiles * col_tiles, *begin, *upstream.arguments(), *sides,
                out, parts, u.n, v.n, top, left, row_tiles, col_tiles, block.shift, link.delta,
                LEARN=learned is not None, **options,
            )  # fmt: skip
            if learned is not None:
                learned += parts.sum()
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


def finish(
    rows: Rows, grad: Tensor, other: Rows, upstream: Upstream, positive: Tensor, shift: int,
    roles: tuple[bool, bool],
) -> Tensor:  # fmt: skip
    """The gradient with respect to the input; ``roles``: is it an anchor, is it someone's positive?"""
    out = torch.empty_like(rows.x)
    start(
        row_kernels.finish, rows.n, rows.x, rows.stats, other.x, other.stats, grad, *upstream.arguments(),
        positive, out, rows.n, shift, D=rows.d, PAD=rows.pad, AHEAD=roles[0], BEHIND=roles[1],
        BLOCK=rows.block, num_warps=rows.warps,
    )  # fmt: skip
    return out


def finish_pairs(
    u: Rows, u_grad: Tensor, v: Rows, v_grad: Tensor, upstream: Upstream, positive: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`finish` for anchors and keys together, row i with row i."""
    u_out, v_out = torch.empty_like(u.x), torch.empty_like(v.x)
    start(
        row_kernels.finish_pairs, u.n, u.x, u.stats, u_grad, u_out, v.x, v.stats, v_grad, v_out,
        *upstream.arguments(), positive, u.n, D=u.d, PAD=u.pad, BLOCK=u.block, num_warps=u.warps,
    )  # fmt: skip
    return u_out, v_out


@contextmanager
def library_precision(mode: Mode) -> Iterator[None]:
    """Float32 products in TF32, for operands that TF32 holds exactly; autocast leaves in-place ones alone."""
    before = torch.get_float32_matmul_precision()
    if mode.tf32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if mode.tf32:
            torch.set_float32_matmul_precision(before)
