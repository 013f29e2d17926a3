"""The passes over the rows: unit rows and exact positives before the tiles, losses and gradients after."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from taufree.backends.fused.arguments import ODDS, KernelLink
from taufree.backends.fused.kernels import rows as row_kernels
from taufree.backends.fused.launch import start
from taufree.backends.numerics import shortest


class Mode(NamedTuple):
    """How inputs are multiplied: the tiles' dtype, whether a row is a pair (high, low), and whether the
    coefficients are multiplied with the rows in TF32 (float32's range, 11 digits) instead of bfloat16."""

    dtype: torch.dtype
    split: bool
    tf32: bool

    def buffers(self, like: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Room for an input's unit rows, padded to whole tiles, of a pair both parts; and for their
        statistics, see kernels/rows.py."""
        width = padded(columns) * (2 if self.split else 1)
        return like.new_empty(rows, width, dtype=self.dtype), like.new_empty(5, rows, dtype=torch.float32)

    @staticmethod
    def of(*inputs: Tensor | None) -> Mode:
        dtypes = {x.dtype for x in inputs if x is not None}
        if dtypes == {torch.bfloat16}:
            return Mode(torch.bfloat16, split=False, tf32=False)
        return Mode(torch.float16, split=dtypes != {torch.float16}, tf32=True)


def padded(columns: int) -> int:
    """Columns rounded up to a multiple of a tile's depth."""
    return -(-columns // 64) * 64


class KernelRows:
    """The rows of one input [R, D] as the tiles need them, and what leads back to the input.

    ``made`` are those of an earlier pass; otherwise they are still to be written, by :func:`fill`.
    """

    def __init__(self, x: Tensor, mode: Mode, made: tuple[Tensor, Tensor] | None = None) -> None:
        self.x, (self.n, self.d) = x, x.shape
        self.pad = padded(self.d)
        self.block = 1 << (self.pad - 1).bit_length()
        self.warps = max(1, min(8, self.block // 256))
        self.unit, self.stats = made or mode.buffers(x, self.n, self.d)
        self.sides = self.stats[3:]

    def tiles(self, rows: int, depth: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(self.unit, [rows, depth])


def fill(rows: KernelRows, mode: Mode) -> None:
    """Writes the unit rows and their statistics."""
    start(
        row_kernels.unit_rows, rows.n, rows.x, rows.unit, rows.stats, rows.n, shortest(rows.x.dtype),
        D=rows.d, PAD=rows.pad, SPLIT=mode.split, BLOCK=rows.block, num_warps=rows.warps,
    )  # fmt: skip


def fill_pairs(
    u: KernelRows, v: KernelRows, mode: Mode, shift: int, link: KernelLink
) -> tuple[Tensor, Tensor]:
    """:func:`fill` for both, and [3, N] in float64: exactly 1 - c and 1 + c of each anchor and its positive,
    and room for dL/dc of that pair; also both directions' sums [2, 1, N], still without any pair."""
    sums = u.x.new_empty(2, 1, u.n, dtype=link.sum_dtype)
    positive = u.x.new_empty(3, u.n, dtype=torch.float64)
    if u is not v and shift == 0:
        start(
            row_kernels.unit_pairs, u.n, u.x, u.unit, u.stats, shortest(u.x.dtype), v.x, v.unit, v.stats,
            shortest(v.x.dtype), positive, sums, u.n, D=u.d, PAD=u.pad, SPLIT=mode.split,
            BLOCK=u.block, num_warps=u.warps,
        )  # fmt: skip
        return positive, sums
    for rows in [u] if u is v else [u, v]:
        fill(rows, mode)
    start(
        row_kernels.chords, u.n, u.x, v.x, u.stats, v.stats, positive, sums, u.n, shift,
        D=u.d, BLOCK=u.block, num_warps=u.warps,
    )  # fmt: skip
    return positive, sums


def close(
    positive: Tensor, rows: Tensor, cols: Tensor | None, link: KernelLink, weight: float, decoupled: bool
) -> tuple[Tensor, Tensor]:
    """``weight`` times the losses [N], normalisers [2, N]; the third row of ``positive`` becomes dL/dc."""
    n = positive.shape[1]
    loss, z = (positive.new_empty(shape, dtype=torch.float32) for shape in ((n,), (2, n)))
    start(
        row_kernels.close, -(-n // 256), positive, rows, rows if cols is None else cols, link.scale, loss, z,
        n, link.resolution, weight, LINK=link.kind, EACH=link.each, COLS=cols is not None,
        DECOUPLED=decoupled, BLOCK=256, num_warps=4,
    )  # fmt: skip
    return loss, z


def close_labelled(
    sums: Tensor, count: Tensor, link: KernelLink, decoupled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [N], normalisers [2, N], and [3, N]: what a positive keeps of its share, its target, and 0.

    The same formulas as tiles.Direction.close. An anchor without a positive has neither loss nor gradient.
    """
    negatives, positives, logits = sums.double()
    negatives, positives = negatives.clamp(min=0).log(), positives.log()
    some, keeps = count > 0, count != 1
    if decoupled:
        log_z, loss, share = negatives, negatives - logits / count, 1 / count
        some, keeps = some & (negatives != -torch.inf), torch.zeros_like(some)
    else:
        log_z = torch.logaddexp(negatives, positives)
        loss = torch.logaddexp(torch.zeros_like(log_z), negatives - positives)
        loss += torch.where(count == 1, 0, positives - logits / count)
        share = torch.where(count == 1, (negatives - log_z).exp(), 1 / count)
    z = log_z / math.log(2) if link.kind != ODDS else 2 * (1 + link.resolution) * (-log_z).exp()
    z = z.where(some, 0.0 if link.kind == ODDS else torch.inf)
    state = torch.stack([keeps.double(), share.where(some, 0), torch.zeros_like(share)])
    return loss.where(some, 0).float(), z.float().expand(2, -1).contiguous(), state


class Upstream(NamedTuple):
    """dL/dL_i of the losses: ``weight`` times each [N], or times the same for all."""

    grad: Tensor
    weight: float

    def arguments(self) -> tuple[Tensor, int, float]:
        return self.grad, int(self.grad.dim() > 0), self.weight


def finish(
    rows: KernelRows, grad: Tensor, other: KernelRows, upstream: Upstream, positive: Tensor, shift: int,
    roles: tuple[bool, bool],
) -> Tensor:  # fmt: skip
    """The gradient with respect to the input; ``roles``: is it an anchor, is it someone's positive?"""
    out = torch.empty_like(rows.x)
    start(
        row_kernels.finish, rows.n, rows.x, rows.stats, other.x, other.stats, grad, *upstream.arguments(),
        positive, out, rows.n, shift, D=rows.d, PAD=rows.pad, IS_ANCHOR=roles[0], IS_POSITIVE=roles[1],
        BLOCK=rows.block, num_warps=rows.warps,
    )  # fmt: skip
    return out


def finish_pairs(
    u: KernelRows, u_grad: Tensor, v: KernelRows, v_grad: Tensor, upstream: Upstream, positive: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`finish` for anchors and keys together, row i with row i."""
    u_out, v_out = torch.empty_like(u.x), torch.empty_like(v.x)
    start(
        row_kernels.finish_pairs, u.n, u.x, u.stats, u_grad, u_out, v.x, v.stats, v_grad, v_out,
        *upstream.arguments(), positive, u.n, D=u.d, PAD=u.pad, BLOCK=u.block, num_warps=u.warps,
    )  # fmt: skip
    return u_out, v_out
