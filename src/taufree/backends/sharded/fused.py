"""The fused loss over several ranks: this rank's anchors against candidates of any rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from taufree.backends.fused.arguments import SCALE, Arguments, arguments_of
from taufree.backends.fused.row_passes import KernelRows, Upstream, fill
from taufree.backends.fused.step import FusedStep, own_share
from taufree.backends.fused.tile_passes import PairBlock, add_gradients, add_sums, library_precision
from taufree.contrast import Contrast, Shard
from taufree.links import Link


def engine_of(contrast: Contrast, link: Link) -> tuple[Callable[..., FusedShards], tuple[Tensor | None, ...]]:
    """What makes an engine for :mod:`.step`, and its differentiable inputs: anchors, keys, queue, the sums of
    own negatives, scale."""
    arguments = arguments_of(contrast, link)
    if contrast.queue is not None:  # also an empty one, whose dtype must count on every rank
        arguments = arguments._replace(queue=contrast.queue.contiguous())
    return partial(FusedShards, arguments), arguments[:5]


class FusedShards(FusedStep):
    """See :class:`.step.ShardEngine`."""

    dtype = torch.float32
    empty_sum = 0.0
    of_far_scale: Tensor | None = None

    def __init__(self, arguments: Arguments, inputs: Sequence[Tensor | None], wanted: Sequence[bool]) -> None:
        anchors, keys, queue, own_sums, scale = inputs
        assert anchors is not None
        assert scale is not None
        super().__init__(
            arguments._replace(anchors=anchors, keys=keys, queue=queue, own_sums=own_sums, scale=scale)
        )
        self.sum_dtype = self.link.sum_dtype
        learns = wanted[4] and self.link.kind == SCALE
        self.wanted = [wanted[0], wanted[1], wanted[2] and self.queue is not None, learns]
        self.wants_own_sums = wanted[3]

    def add_own(self) -> None:
        with torch.cuda.device_of(self.anchors.x):  # type: ignore[no-untyped-call]
            self.add_sums()

    def add(self, shard: Shard) -> Tensor | None:
        with torch.cuda.device_of(self.anchors.x):  # type: ignore[no-untyped-call]
            block = self._block(shard, shard.are_anchors and self.arguments.symmetric)
            sums = self.row_sums
            cols = sums.new_zeros((1, block.v.n)) if block.both_ways else sums
            tallies = None
            if self.tallies:
                tallies = (self.tallies[0], shard.tally or self.tallies[0])
            add_sums(block, self.mode, self.link, sums, cols, tallies)
            return cols[0] if block.both_ways else None

    def merge(self, parts: Tensor) -> None:
        self.col_sums = self.col_sums + parts.sum(0)

    def losses(self) -> Tensor:
        with torch.cuda.device_of(self.anchors.x):  # type: ignore[no-untyped-call]
            return self.close()

    def begin_gradient(self, each: Tensor) -> Tensor | None:
        self.outer = Upstream(each.float().contiguous(), 1.0)
        alone = self.keys is self.anchors
        if not alone and not self.arguments.symmetric:
            return None
        labelled = [] if self.arguments.positive_count is None else [self.positive[0], self.positive[1]]
        own = [self.outer.grad, self.normalisers[0 if alone else 1], *labelled]
        return torch.stack([x.float() for x in own], 1)

    def add_own_gradients(self) -> None:
        with torch.cuda.device_of(self.anchors.x), library_precision(self.mode):  # type: ignore[no-untyped-call]
            self.add_tile_gradients(self.outer, self.wanted)

    def add_gradients(self, shard: Shard, far: Tensor | None, wanted: bool) -> Tensor | None:
        with torch.cuda.device_of(self.anchors.x), library_precision(self.mode):  # type: ignore[no-untyped-call]
            block = self._block(shard, far is not None and shard.are_anchors)
            z = self.normalisers[0]
            sides = (self.outer.grad, z, z, self.positive, self.positive)
            if far is not None and block.both_ways:
                known = far.T.contiguous()
                sides = (known[0], z, known[1], self.positive, known[2:])
            rows = self.anchors.x.new_empty((block.v.n, block.v.pad), dtype=torch.float32) if wanted else None
            of_scale = None if self.scale_gradient is None else torch.zeros_like(self.scale_gradient)
            grads = (self.unit_gradients[0], rows)
            add_gradients(block, self.mode, self.link, self.outer, sides, grads, (False, True), of_scale)
            if self.scale_gradient is not None and of_scale is not None:
                # Two ranks compute a pair of anchors of both, each with both directions: half of it each.
                self.scale_gradient += of_scale * (0.5 if self.keys is self.anchors else 1.0)
            return None if rows is None else rows[:, : self.anchors.d].contiguous()

    def add_scale_gradient(self, gradient: Tensor) -> None:
        raise NotImplementedError("the kernels have one scale for all anchors of all ranks")

    def gradients(self, keys: Tensor | None, queue: Tensor | None) -> list[Tensor | None]:
        for grad, more in ((self.unit_gradients[1], keys), (self.unit_gradients[2], queue)):
            if grad is not None and more is not None:
                grad[:, : self.anchors.d] += more
        with torch.cuda.device_of(self.anchors.x):  # type: ignore[no-untyped-call]
            found = self.finish(self.outer, self.wanted)
        own_queue, all_queue = found.queue, self.arguments.queue
        if all_queue is not None and not len(all_queue):
            own_queue = torch.zeros_like(all_queue)
        own_sums = None
        if self.arguments.own_sums is not None and self.wants_own_sums:
            own_sums = self.outer.grad * own_share(self.arguments, self.normalisers)
        return [found.anchors, found.keys, own_queue, own_sums, found.scale]

    def _block(self, shard: Shard, both_ways: bool) -> PairBlock:
        v = KernelRows(shard.x, self.mode)
        fill(v, self.mode)
        grouped = shard.groups is not None
        return PairBlock(
            self.anchors,
            v,
            self.arguments.groups if grouped else None,
            labels=grouped and self.arguments.positive_count is not None,
            both_ways=both_ways,
            far_groups=shard.groups,
        )
