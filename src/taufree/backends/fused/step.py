"""One evaluation of the loss on the GPU: which passes run, forward and, from what that saved, backward."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taufree.backends.fused.arguments import EXP, ODDS, Arguments, Gradients, Saved
from taufree.backends.fused.row_passes import (
    KernelRows,
    Mode,
    Upstream,
    close,
    close_labelled,
    fill,
    fill_pairs,
    finish,
    finish_pairs,
)
from taufree.backends.fused.tile_passes import PairBlock, add_gradients, add_sums
from taufree.stats import Tally


class FusedStep:
    """``saved`` is what :meth:`saved` of the forward's object gave, for a backward."""

    def __init__(self, arguments: Arguments, saved: Saved | None = None) -> None:
        self.arguments, self.link = arguments, arguments.link
        inputs = (arguments.anchors, arguments.keys, arguments.queue)
        self.mode = Mode.of(*inputs)  # a queue that is empty on this rank counts here
        made = [None, None, None] if saved is None else list(zip(saved[2::2], saved[3::2], strict=True))
        anchors, keys, queue = (
            KernelRows(x, self.mode, unit) if x is not None and len(x) else None
            for x, unit in zip(inputs, made, strict=True)
        )
        assert anchors is not None
        self.rows = (anchors, keys, queue)
        self.anchors, self.keys, self.queue = anchors, keys or anchors, queue
        if saved is not None:
            self.normalisers, self.positive = saved.normalisers, saved.positive

    def _blocks(self) -> list[PairBlock]:
        """The in-batch pairs, then the queue's."""
        found, labels = [], self.arguments.positive_count is not None
        if self.arguments.in_batch:
            found.append(
                PairBlock(
                    self.anchors,
                    self.keys,
                    self.arguments.groups,
                    labels=labels,
                    shift=self.arguments.shift,
                    both_ways=self.arguments.symmetric,
                    positives=not labels,
                    far_groups=self.arguments.key_groups,
                )
            )
        if self.queue is not None:
            ids = self.arguments.queue_ids
            groups = None if ids is None else self.arguments.groups
            found.append(PairBlock(self.anchors, self.queue, groups, far_groups=ids))
        return found

    def add_sums(self) -> None:
        """Unit rows, the positives, and the sums of both directions over the negatives."""
        if self.queue is not None:
            fill(self.queue, self.mode)
        if self.arguments.positive_count is None:
            self.positive, (self.row_sums, self.col_sums) = fill_pairs(
                self.anchors, self.keys, self.mode, self.arguments.shift, self.link
            )
        else:
            for rows in self.rows[:2]:
                if rows is not None:
                    fill(rows, self.mode)
            self.row_sums = self.anchors.x.new_zeros((3, self.anchors.n), dtype=self.link.sum_dtype)
            self.col_sums = self.row_sums
        self.tallies = self._tallies()
        for block in self._blocks():
            across = self.row_sums if block.alone else self.col_sums
            tallies = (self.tallies[0], self.tallies[-1]) if self.tallies else None
            add_sums(block, self.mode, self.link, self.row_sums, across, tallies)

    def _tallies(self) -> tuple[Tally, ...]:
        """Those of both directions with the positives, if statistics are wanted."""
        table = self.arguments.tally
        if table is None:
            return ()
        found = (Tally(table.clone()), Tally.empty(self.anchors.x, torch.float32))
        if self.arguments.positive_count is None:
            for tally in found:
                tally.add_positives((self.positive[1] - self.positive[0]) / 2)
        return found if self.arguments.symmetric else found[:1]

    def tracked(self) -> Tensor:
        """What :class:`taufree.stats.Tracker` holds."""
        count = self.arguments.positive_count
        count = self.positive.new_ones(self.anchors.n) if count is None else count
        return torch.stack([Tally(tally.table.double()).sums(count) for tally in self.tallies]).sum(0)

    def close(self) -> Tensor:
        """The weighted losses [N], once the sums are complete."""
        arguments, link, offsets = self.arguments, self.link, self.arguments.offsets
        if arguments.positive_count is not None:
            sums = self.row_sums
            if offsets is not None:
                sums = torch.cat([sums[:1] * torch.exp(-offsets), sums[1:]])
            loss, self.normalisers, self.positive = close_labelled(
                sums, arguments.positive_count, link, arguments.decoupled
            )
            loss *= arguments.weight
            if offsets is not None:  # a larger normaliser lowers the negatives, and keep takes it back
                self._lower_negatives(offsets)
                self.positive[0] *= offsets[0].exp()
            return loss
        rows, own = self.row_sums, arguments.own_sums
        if own is not None:
            rows = rows + own
        cols = self.col_sums if arguments.symmetric else None
        if offsets is not None:
            lower = torch.exp(-offsets)
            rows, cols = rows * lower[0], None if cols is None else cols * lower[1]
        loss, self.normalisers = close(self.positive, rows, cols, link, arguments.weight, arguments.decoupled)
        if offsets is not None:
            self._lower_negatives(offsets)
        return loss

    def _lower_negatives(self, offsets: Tensor) -> None:
        """By a larger S + w, of which the normalisers of plain sums are the inverse and others log2."""
        if self.link.kind in (ODDS, EXP):
            self.normalisers *= torch.exp(-offsets)
        else:
            self.normalisers += offsets / math.log(2)

    def saved(self) -> Saved:
        """What a backward needs of this forward."""
        found = [self.normalisers, self.positive]
        for x in self.rows:
            found += self.mode.buffers(self.anchors.x, 0, 0) if x is None else (x.unit, x.stats)
        return Saved(*found)

    def add_tile_gradients(self, outer: Upstream, wanted: Sequence[bool]) -> None:
        """The negatives' part of the gradients, with respect to unit rows and the scale.

        ``wanted`` are those of anchors, keys, queue and scale.
        """
        blocks, make = self._blocks(), self.anchors.x
        # The first product into a buffer need not add to what is there.
        fresh = (bool(blocks) and not blocks[0].alone, self.arguments.in_batch, True)
        self.unit_gradients = [
            (make.new_empty if new else make.new_zeros)((x.n, x.pad), dtype=torch.float32)
            if x is not None and want
            else None
            for x, want, new in zip(self.rows, wanted, fresh, strict=False)
        ]
        each = self.link.scale.shape if self.link.each else ()
        self.scale_gradient = make.new_zeros(each, dtype=torch.float64) if wanted[3] else None
        for block in blocks:
            candidates = 2 if block.v is self.queue else 0 if block.alone else 1
            z = (self.normalisers[0], self.normalisers[0 if block.alone else 1])
            add_gradients(
                block,
                self.mode,
                self.link,
                outer,
                (outer.grad, *z, self.positive, self.positive),
                (self.unit_gradients[0], self.unit_gradients[candidates]),
                (fresh[0] and block is blocks[0], not block.alone),
                self.scale_gradient,
            )

    def finish(self, outer: Upstream, wanted: Sequence[bool]) -> Gradients:
        """The ``wanted`` ones of the gradients, with the positives' part, taken back to the inputs."""
        anchors, keys, queue = self.rows
        found: list[Tensor | None] = [None, None, None, self._finish_scale(outer)]
        grads, paired = self.unit_gradients, self.arguments.positive_count is None
        if paired and keys is not None and grads[0] is not None and grads[1] is not None:
            found[:2] = finish_pairs(anchors, grads[0], keys, grads[1], outer, self.positive)
        else:
            # Each input, its counterpart, and whether its rows are anchors and whether they are positives.
            inputs = (
                (anchors, self.keys, (paired, paired and keys is None)),
                (keys, anchors, (False, paired)),
            )
            for i, (x, other, roles) in enumerate(inputs):
                if x is not None and (grad := grads[i]) is not None:
                    found[i] = finish(x, grad, other, outer, self.positive, self.arguments.shift, roles)
        if queue is not None and grads[2] is not None:
            found[2] = finish(queue, grads[2], queue, outer, self.positive, 0, (False, False))
        return Gradients(*found)

    def _finish_scale(self, outer: Upstream) -> Tensor | None:
        """The scale's gradient, with the positives' part: dL/dlogit * c, and dL/dlogit is dL/dc / scale."""
        if self.scale_gradient is None:
            return None
        gap, rise, of_cosine = self.positive
        scale = self.link.scale
        positives = outer.grad * of_cosine * (rise - gap)
        if not self.link.each:
            positives = positives.sum()
        found: Tensor = self.scale_gradient + positives * (outer.weight / 2) / scale.double()
        return found.to(scale.dtype).reshape(scale.shape)


def own_share(arguments: Arguments, normalisers: Tensor) -> Tensor:
    """dL_i / d own_sums_i of the unweighted losses [N]."""
    own = arguments.own_sums
    assert own is not None
    z = normalisers[0].to(own.dtype)
    return z / (2 * (1 + arguments.resolution)) if arguments.kind == ODDS else torch.exp2(-z)
