"""The blockwise loss over several ranks: this rank's anchors against candidates of any rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from taufree.backends.blockwise import engine
from taufree.backends.blockwise.directions import Direction, Side
from taufree.backends.blockwise.engine import BlockwiseEngine, Place
from taufree.backends.blockwise.learned import check_unchanged, learned, values_of
from taufree.backends.blockwise.rows import UnitRows, spans
from taufree.backends.blockwise.tiles import keep_freed_memory
from taufree.contrast import Contrast, Shard
from taufree.links import Link
from taufree.stats import Tally


def engine_of(
    contrast: Contrast, link: Link
) -> tuple[Callable[..., BlockwiseShards], tuple[Tensor | None, ...]]:
    """What makes an engine for :mod:`.step`, and its differentiable inputs."""
    link, params, connected = learned(link, contrast.anchors)
    return partial(BlockwiseShards, contrast, link, params), (*contrast.inputs, *connected)


class BlockwiseShards(BlockwiseEngine):
    """See :class:`.step.ShardEngine`. Inputs: anchors, keys, queue, own negatives, params."""

    def __init__(
        self, contrast: Contrast, link: Link, params: Sequence[Tensor], inputs: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> None:  # fmt: skip
        super().__init__(contrast, link, inputs, params, [False] * len(wanted))
        self.wanted, self.empty_sum, self.sum_dtype = wanted, self.kind.empty_sum, self.wide
        self.values = values_of(self.params)
        self.of_far_scale: Tensor | None = None
        keep_freed_memory()

    def add_own(self) -> None:
        self.positive, self.rows, self.cols = self._begin(None)
        self._add_tile_sums(self._own_places(), self.rows, 0)

    def add(self, shard: Shard) -> Tensor | None:
        across = self._far(shard) if shard.are_anchors and self.cols is not None else None
        if across is not None:
            across.tally = shard.tally
        self._add_tile_sums(self._far_places(shard, across, wanted=False), self.rows, 0)
        return None if across is None else across.negatives

    def merge(self, parts: Tensor) -> None:
        assert self.cols is not None
        for part in parts:
            self.cols.negatives = self.kind.join(self.cols.negatives, part)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        return tuple(x.tally for x in (self.rows, self.cols) if x is not None and x.tally is not None)

    def tracked(self) -> Tensor:
        return engine.tracked(self.rows, self.cols)

    def losses(self) -> Tensor:
        found = [direction for direction in (self.rows, self.cols) if direction is not None]
        for direction in found:
            direction.close(slice(None))
        return torch.stack([direction.losses for direction in found]).mean(0)

    def begin_gradient(self, each: Tensor) -> Tensor | None:
        check_unchanged(self.link, self.params, self.values)
        found = [direction for direction in (self.rows, self.cols) if direction is not None]
        for direction in found:
            direction.side.grad = each.to(self.wide) / len(found) * (direction.count > 0)
            direction.close(slice(None))
        for x, wanted in zip((self.u, self.v, self.queue, self.own), self.wanted, strict=False):
            if x is not None and wanted:
                x.grad = torch.zeros(x.x.shape, dtype=self.dtype, device=x.x.device)
                x.along.zero_()
        self.param_grads = self._no_param_grads()
        if self.cols is None and self.contrast.keys is not None:
            return None
        side = (self.cols or self.rows).side
        labelled = () if self.contrast.labels is None else (side.keep, side.target)
        return torch.stack([side.grad, side.log_z, *labelled], 1)

    def add_own_gradients(self) -> None:
        places = self._own_places()
        self._add_tile_gradients(places, self.rows, [None] * len(places))

    def add_gradients(self, shard: Shard, far: Tensor | None, wanted: bool) -> Tensor | None:
        across = None
        if far is not None and shard.are_anchors:
            across = self._far(shard)
            grad, log_z, *labelled = far.unbind(1)
            keep, target = labelled or (grad, grad)
            across.side = Side(grad, log_z, keep, target, across.scale)
            if across.scale is not None:
                across.scale_gradient = torch.zeros_like(across.scale)
        places = self._far_places(shard, across, wanted)
        self._add_tile_gradients(places, self.rows, [None] * len(places))
        self.of_far_scale = None if across is None else across.scale_gradient
        return places[0].block.grad

    def add_scale_gradient(self, gradient: Tensor) -> None:
        if self.params:
            self._learn_anchors(gradient, slice(0, self.n), column=True)

    def gradients(self, keys: Tensor | None, queue: Tensor | None) -> list[Tensor | None]:
        for x, more in ((self.v, keys), (self.queue, queue)):
            if x is not None and x.grad is not None and more is not None:
                x.grad += more
        found = self._gradients(self.positive, self.rows, self.cols)
        for x in (self.u, self.v, self.queue, self.own):
            if x is not None:
                x.grad = None
        return found

    def _far(self, shard: Shard) -> Direction:
        count = torch.ones(len(shard.x), device=self.u.x.device)
        scale = None if shard.scale is None else shard.scale.to(self.wide)
        return Direction(self.kind, count, None, None, self.wide, scale=scale)

    def _own_places(self) -> list[Place]:
        across = self.rows if self.contrast.keys is None else self.cols
        return [place for strip in spans(self.n, engine.TILE_SIZE) for place in self._places(strip, across)]

    def _far_places(self, shard: Shard, across: Direction | None, wanted: bool) -> list[Place]:
        block, strips = UnitRows(shard.x, self.dtype, wanted), spans(self.n, engine.TILE_SIZE)
        return [
            Place(rows, cols, block, across, shard.groups)
            for cols in spans(len(shard.x), engine.TILE_SIZE)
            for rows in strips
        ]
