"""The sigmoid loss in GPU kernels: coefficients and losses of a chunk of the matrix in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from taufree.backends import sigmoid
from taufree.backends.fused import tile_passes
from taufree.backends.fused.arguments import EXP, ODDS, POWER, SCALE, arguments_of
from taufree.backends.fused.kernels import rows as row_kernels
from taufree.backends.fused.kernels import sigmoid as kernels
from taufree.backends.fused.launch import start
from taufree.backends.fused.row_passes import KernelRows, Mode, Upstream, fill, fill_pairs
from taufree.backends.fused.tile_passes import Config, PairBlock, library_precision
from taufree.contrast import Contrast, Shard
from taufree.links import Link, from_formula


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    if torch.compiler.is_compiling():
        return sigmoid.compiled_loss("triton", contrast, link, weights)
    assert contrast.bias is not None
    make, connected = engine_of(contrast, link, contrast.bias.among(contrast.n).number)
    return sigmoid.loss(sigmoid.Visit("triton", make), contrast, connected, weights)


def engine_of(contrast: Contrast, link: Link, number: float) -> tuple[sigmoid.Make, list[Tensor]]:
    """What makes an engine for :mod:`taufree.backends.sigmoid`, and what its last inputs are."""
    formula, scale = link.formula, link.formula_scale()
    assert formula is not None
    connected: list[Tensor] = []
    if isinstance(scale, Tensor):
        link = from_formula(formula, scale.detach().clone())
        connected = [scale] if scale.requires_grad and torch.is_grad_enabled() else []
    return partial(FusedSigmoid, link, [x.detach() for x in connected], number), connected


class FusedSigmoid:
    """See :class:`taufree.backends.sigmoid.SigmoidEngine`."""

    dtype = torch.float32

    @torch.no_grad()
    def __init__(
        self, link: Link, params: Sequence[Tensor], number: float, inputs: Sequence[Tensor | None],
        ids: Tensor | None, wanted: Sequence[bool], weights: Tensor | None,
    ) -> None:  # fmt: skip
        anchors, keys, bias = inputs[:3]
        assert anchors is not None
        arguments = arguments_of(Contrast(anchors, keys, ids=ids), link)
        assert arguments.keys is not None
        self.link, self.number, self.ids, self.params = arguments.link, number, arguments.groups, params
        if self.link.kind == ODDS and (bias is not None or abs(number) > sigmoid.MAX_PLAIN_BIAS):
            self.link = self.link._replace(kind=POWER, scale=anchors.new_ones(1, dtype=torch.float32))
        elif self.link.kind == EXP:
            self.link = self.link._replace(kind=SCALE)
        self.bias = anchors.new_full((1,), number, dtype=torch.float64)
        if bias is not None:
            self.bias += bias.detach().to(self.bias)
        self.mode = Mode.of(arguments.anchors, arguments.keys)
        self.u, self.v = (KernelRows(x, self.mode) for x in (arguments.anchors, arguments.keys))
        self.losses = anchors.new_zeros(self.u.n, dtype=torch.float32)
        self.wanted = [want and weights is not None for want in wanted]
        self.upstream = None
        if any(self.wanted):
            assert weights is not None
            self.upstream = Upstream(weights.float().expand(self.u.n).contiguous(), 1.0)
        make = anchors.new_zeros
        self.u_grad, self.v_grad = (
            make((x.n, x.pad), dtype=torch.float32) if want else None
            for x, want in zip((self.u, self.v), self.wanted, strict=False)
        )
        self.learned = make(2, dtype=torch.float64) if any(self.wanted[2:]) else None

    @torch.no_grad()
    def add_own(self) -> None:
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            self.positive, _ = fill_pairs(self.u, self.v, self.mode, 0, self.link)
            self._visit_block(PairBlock(self.u, self.v, self.ids, positives=True), self.v_grad)

    @torch.no_grad()
    def add(self, shard: Shard, wanted: bool) -> Tensor | None:
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            v = KernelRows(shard.x, self.mode)
            fill(v, self.mode)
            grad = self.u.x.new_zeros((v.n, v.pad), dtype=torch.float32) if wanted else None
            ids = None if shard.groups is None else self.ids
            self._visit_block(PairBlock(self.u, v, ids, far_groups=shard.groups), grad)
            return None if grad is None else grad[:, : v.d].contiguous()

    @torch.no_grad()
    def finish(self, of_keys: Tensor | None = None) -> tuple[Tensor, sigmoid.Gradients]:
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            losses, n = self.losses.double(), self.u.n
            missed = torch.empty_like(losses)
            start(
                kernels.close_questions, -(-n // 256), self.positive, losses, missed, self.link.scale,
                self.bias, self.number, n, self.link.resolution, LINK=self.link.kind, BLOCK=256, num_warps=4,
            )  # fmt: skip
            if self.upstream is None:
                return losses, []
            if self.v_grad is not None and of_keys is not None:
                self.v_grad[:, : self.v.d] += of_keys
            anchors = self._finish(self.u, self.v, self.u_grad, is_anchor=True)
            keys = self._finish(self.v, self.u, self.v_grad, is_anchor=False)
            of_bias, of_params = None, []
            if self.learned is not None:
                outer = self.upstream.grad * missed
                of_scale = self.learned[0] - (outer * (self.positive[1] - self.positive[0])).sum() / 2
                of_bias = self.learned[1] - outer.sum()
                of_params = [of_scale.to(p).reshape(p.shape) for p in self.params]
            return losses, [anchors, keys, of_bias, *of_params]

    def _finish(
        self, x: KernelRows, other: KernelRows, grad: Tensor | None, is_anchor: bool
    ) -> Tensor | None:
        """The gradient with respect to an input, in float32: it is still to be multiplied, as by a scaler."""
        if grad is None:
            return None
        assert self.upstream is not None
        out = torch.empty_like(x.x, dtype=torch.float32)
        start(
            row_kernels.finish, x.n, x.x, x.stats, other.x, other.stats, grad, *self.upstream.arguments(),
            self.positive, out, x.n, 0, D=x.d, PAD=x.pad, IS_ANCHOR=is_anchor, IS_POSITIVE=not is_anchor,
            BLOCK=x.block, num_warps=x.warps,
        )  # fmt: skip
        return out

    def _visit_block(self, block: PairBlock, v_grad: Tensor | None) -> None:
        """Adds a block's losses, and its part of the gradient with respect to unit rows, scale and bias."""
        u, v, config = block.u, block.v, tile_passes.tile_config(self.link, "questions", self.mode)
        height, breadth = (
            min(most, -(-x.n // 256) * 256)
            for most, x in zip(tile_passes.chunk_shape(u.pad, self.mode), (u, v), strict=True)
        )
        chunk = torch.empty(0)
        tiles = block.tiles(config, self.link)
        out, upstream = tiles[0], self.upstream
        if upstream is not None:
            width = breadth * (2 if self.mode.split else 1)
            chunk = u.x.new_empty(height, width, dtype=torch.float32 if self.mode.tf32 else torch.bfloat16)
            out = TensorDescriptor.from_tensor(chunk, [config.bm, config.bn])
        atomic = not torch.are_deterministic_algorithms_enabled()
        options = self._options(block, config, atomic)
        times = math.exp(self.number) if self.link.kind == ODDS else 1.0
        given = Upstream(self.losses, 0.0) if upstream is None else upstream
        bias = self.bias.float()
        with library_precision(self.mode):
            for top in range(0, u.n, height):
                rows = slice(top, min(top + height, u.n))
                row_tiles = -(-(rows.stop - top) // config.bm)
                for left in range(0, v.n, breadth):
                    cols = slice(left, min(left + breadth, v.n))
                    col_tiles = -(-(cols.stop - left) // config.bn)
                    losses = self.losses if atomic else u.stats.new_zeros(col_tiles, u.n)
                    parts = u.stats.new_empty(2, row_tiles * col_tiles) if options["LEARN"] else self.losses
                    start(
                        kernels.tile_questions, row_tiles * col_tiles, *tiles, bias, times,
                        *given.arguments(), losses, out, parts, u.n, v.n, top, left, row_tiles, col_tiles,
                        self.link.resolution, **options,
                    )  # fmt: skip
                    if not atomic:
                        self.losses += losses.sum(0)
                    if self.learned is not None and options["LEARN"]:
                        self.learned += parts.sum(1, dtype=torch.float64)
                    if upstream is not None:
                        high = chunk[: rows.stop - top, : cols.stop - left]
                        rest = chunk[: rows.stop - top, col_tiles * config.bn :][:, : cols.stop - left]
                        self._add_products(high, rest, rows, cols, v, v_grad)

    def _add_products(
        self, high: Tensor, rest: Tensor, rows: slice, cols: slice, v: KernelRows, v_grad: Tensor | None
    ) -> None:
        low = rest if self.mode.split else None
        if self.u_grad is not None:
            tile_passes._add_product(self.u_grad[rows], high, low, v.unit[cols], self.mode, False)
        if v_grad is not None:
            low = None if low is None else low.T
            tile_passes._add_product(v_grad[cols], high.T, low, self.u.unit[rows], self.mode, False)

    def _options(self, block: PairBlock, config: Config, atomic: bool) -> dict[str, Any]:
        shared = block.options(self.mode, config, self.link)
        for name in ("COLS", "EACH", "HARD", "LABELS", "SELF"):
            del shared[name]
        grad = self.upstream is not None
        return {**shared, "GRAD": grad, "LEARN": grad and self.learned is not None, "ATOMIC": atomic}


sigmoid.ENGINES["triton"] = FusedSigmoid
