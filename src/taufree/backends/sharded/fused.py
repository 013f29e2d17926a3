"""The fused loss over several ranks: this rank's anchors against candidates of any rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taufree.backends.fused.row_passes import EXP, ODDS, SCALE, Rows, Upstream, fill
from taufree.backends.fused.step import Evaluation, share_of
from taufree.backends.fused.tile_passes import Block, add_gradients, add_sums, library_precision
from taufree.contrast import Shard


class Shards(Evaluation):
    """See :class:`taufree.backends.sharded.step.Engine`. Inputs: anchors, keys, queue, extra, scale."""

    dtype = width = torch.float32

    def __init__(
        self, options: Sequence[Any], inputs: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> None:
        anchors, keys, self.all_queue, self.extra, scale = inputs
        assert anchors is not None
        assert scale is not None
        super().__init__(anchors, keys, self.all_queue, scale, *options)
        self.plain = self.link.kind in (ODDS, EXP)
        self.none = 0.0 if self.plain else -torch.inf
        learns = wanted[4] and self.link.kind == SCALE
        self.wanted = [wanted[0], wanted[1], wanted[2] and self.queue is not None, learns]
        self.wants_extra = wanted[3]

    def add_own(self) -> None:
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            self.sums()

    def add(self, shard: Shard) -> Tensor | None:
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            block = self._block(shard, shard.looks_back and self.symmetric)
            cols = self.rows.new_full((1, block.v.n), self.none) if block.cols else self.rows
            add_sums(block, self.mode, self.link, self.rows, cols)
            return cols[0] if block.cols else None

    def merge(self, parts: Tensor) -> None:
        self.cols = self.cols + parts.sum(0) if self.plain else torch.logaddexp(self.cols, parts.logsumexp(0))

    def losses(self) -> Tensor:
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            return self.close(self.extra, 1.0)

    def weigh(self, each: Tensor) -> Tensor | None:
        self.outer = Upstream(each.float().contiguous(), 1.0)
        if self.v is not self.u and not self.symmetric:
            return None
        labelled = [] if self.count is None else [self.positive[0], self.positive[1]]
        own = [self.outer.grad, self.z[0 if self.v is self.u else 1], *labelled]
        return torch.stack([x.float() for x in own], 1)

    def pull_own(self) -> None:
        with torch.cuda.device_of(self.u.x), library_precision(self.mode):  # type: ignore[no-untyped-call]
            self.pull_blocks(self.outer, self.wanted)

    def pull(self, shard: Shard, far: Tensor | None, wanted: bool) -> Tensor | None:
        with torch.cuda.device_of(self.u.x), library_precision(self.mode):  # type: ignore[no-untyped-call]
            block = self._block(shard, far is not None and shard.looks_back)
            sides = (self.outer.grad, self.z[0], self.z[0], self.positive, self.positive)
            if far is not None and block.cols:
                known = far.T.contiguous()
                sides = (known[0], self.z[0], known[1], self.positive, known[2:])
            rows = self.u.x.new_empty((block.v.n, block.v.pad), dtype=torch.float32) if wanted else None
            learned = None if self.learned is None else torch.zeros_like(self.learned)
            grads = (self.grads[0], rows)
            add_gradients(block, self.mode, self.link, self.outer, sides, grads, (False, True), learned)
            if self.learned is not None and learned is not None:
                # Anchors among themselves on two ranks: both meet the pair, with both directions in it.
                self.learned += learned * (0.5 if self.v is self.u else 1.0)
            return None if rows is None else rows[:, : self.u.d].contiguous()

    def gradients(self, keys: Tensor | None, queue: Tensor | None) -> list[Tensor | None]:
        for grad, more in ((self.grads[1], keys), (self.grads[2], queue)):
            if grad is not None and more is not None:
                grad[:, : self.u.d] += more
        with torch.cuda.device_of(self.u.x):  # type: ignore[no-untyped-call]
            found = iter(self.finish(self.outer, self.wanted))
        anchors, own_keys, own_queue, scale = (next(found) if want else None for want in self.wanted)
        if self.all_queue is not None and not len(self.all_queue):
            own_queue = torch.zeros_like(self.all_queue)
        extra = None
        if self.extra is not None and self.wants_extra:
            extra = self.outer.grad * share_of(self.extra, self.z[0], self.link.kind, self.link.delta)
        return [anchors, own_keys, own_queue, extra, scale]

    def _block(self, shard: Shard, cols: bool) -> Block:
        v = Rows(shard.x, self.mode)
        fill(v, self.mode)
        grouped = shard.groups is not None
        groups, labels = self.groups if grouped else None, grouped and self.count is not None
        return Block(self.u, v, groups, labels, 0, cols, positives=False, far_groups=shard.groups)
