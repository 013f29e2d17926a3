"""One evaluation of the loss on the GPU: which passes run, forward and, from the same state, backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taufree.backends.fused.row_passes import (
    ODDS,
    Link,
    Mode,
    Rows,
    Upstream,
    close,
    close_labelled,
    fill,
    fill_pairs,
    finish,
    finish_pairs,
)
from taufree.backends.fused.tile_passes import Block, add_gradients, add_sums


class Evaluation:
    """The arguments are those of ops._forward; ``state`` is what :meth:`state` gave after an earlier one."""

    def __init__(
        self, anchors: Tensor, keys: Tensor | None, queue: Tensor | None, scale: Tensor,
        groups: Tensor | None, count: Tensor | None, shift: int, in_batch: bool, symmetric: bool, kind: int,
        delta: float, state: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        self.mode, self.link = Mode.of(anchors, keys, queue), Link(kind, scale, delta)
        self.groups, self.count, self.shift = groups, count, shift
        self.in_batch, self.symmetric = in_batch, symmetric
        made = list(state)
        if made:
            self.z, self.positive = made.pop(0), made.pop(0)
        self.units = [  # a queue that is empty on this rank has had its say in the mode all the same
            Rows(x, self.mode, (made.pop(0), made.pop(0)) if made else None)
            if x is not None and len(x)
            else None
            for x in (anchors, keys, queue)
        ]
        assert self.units[0] is not None
        self.u, self.v, self.queue = self.units[0], self.units[1] or self.units[0], self.units[2]

    def _blocks(self) -> list[Block]:
        """The in-batch pairs, then the queue's."""
        labels, found = self.count is not None, []
        if self.in_batch:
            u, v, cols = self.u, self.v, self.symmetric
            found.append(Block(u, v, self.groups, labels, self.shift, cols, positives=not labels))
        if self.queue is not None:
            found.append(Block(self.u, self.queue, None, labels=False, shift=0, cols=False, positives=False))
        return found

    def sums(self) -> None:
        """Unit rows, the positives, and the sums of both directions over the negatives."""
        mode, u, v, kind = self.mode, self.u, self.v, self.link.kind
        if self.queue is not None:
            fill(self.queue, mode)
        if self.count is None:
            self.positive, (self.rows, self.cols) = fill_pairs(u, v, mode, self.shift, kind)
        else:
            fill(u, mode)
            none = 0.0 if kind == ODDS else -torch.inf
            self.rows = self.cols = u.x.new_full((3, u.n), none, dtype=torch.float32)
            self.rows[2].zero_()
        for block in self._blocks():
            add_sums(block, mode, self.link, self.rows, self.rows if block.alone else self.cols)

    def close(self, extra: Tensor | None, weight: float) -> Tensor:
        """``weight`` times the losses [N], once sums are complete."""
        if self.count is not None:
            loss, self.z, self.positive = close_labelled(self.rows, self.count, self.link)
            loss *= weight
            return loss
        rows = self.rows
        if extra is not None:
            rows = rows + extra if self.link.kind == ODDS else torch.logaddexp(rows.to(extra.dtype), extra)
        loss, self.z = close(self.positive, rows, self.cols if self.symmetric else None, self.link, weight)
        return loss

    def state(self) -> list[Tensor]:
        """For the backward: normalisers, positives, each input's unit rows."""
        return [self.z, self.positive, *(t for x in self.units if x is not None for t in (x.unit, x.stats))]

    def pull_blocks(self, outer: Upstream, wanted: Sequence[bool]) -> None:
        """The negatives' part of the gradients, with respect to unit rows and the scale."""
        blocks, make = self._blocks(), self.u.x
        fresh = (bool(blocks) and not blocks[0].alone, self.in_batch, True)  # the first product need not add
        self.grads = [
            (make.new_empty if new else make.new_zeros)((x.n, x.pad), dtype=torch.float32)
            if x is not None and want
            else None
            for x, want, new in zip(self.units, wanted, fresh, strict=False)
        ]
        self.learned = make.new_zeros((), dtype=torch.float32) if wanted[3] else None
        for block in blocks:
            own = self.grads[2] if block.v is self.queue else self.grads[0 if block.alone else 1]
            z = (self.z[0], self.z[0] if block.alone else self.z[1])
            sides = (outer.grad, *z, self.positive, self.positive)
            new = (fresh[0] and block is blocks[0], not block.alone)
            add_gradients(block, self.mode, self.link, outer, sides, (self.grads[0], own), new, self.learned)

    def finish(self, outer: Upstream, wanted: Sequence[bool]) -> list[Tensor]:
        """The ``wanted`` ones of the gradients of anchors, keys, queue and scale."""
        results: list[Tensor] = []
        u, v, grads, paired = self.u, self.v, self.grads, self.count is None
        roles = [(paired, paired and v is u), (False, paired), (False, False)]
        left = list(zip(self.units, grads, (v, u, self.queue), roles, strict=True))
        if v is not u and grads[0] is not None and grads[1] is not None:
            results += finish_pairs(u, grads[0], v, grads[1], outer, self.positive)
            left = left[2:]
        for x, grad, other, role in left:
            if x is not None and grad is not None and other is not None:
                results.append(finish(x, grad, other, outer, self.positive, self.shift, role))
        if self.learned is not None:  # with the positives', whose pull is dL/dlogit * scale
            gap, rise, pull = self.positive
            own_part = (
                (outer.grad * pull * (rise - gap)).sum() * (outer.weight / 2) / self.link.scale.double()
            )
            scale = self.link.scale
            results.append((self.learned + own_part).to(scale.dtype).reshape(scale.shape))
        return results


def share_of(extra: Tensor, z: Tensor, kind: int, delta: float) -> Tensor:
    """dL_i/dextra_i, of a sum of weights (its logarithm unless ODDS) that joined the anchors' negatives."""
    z = z.to(extra.dtype)
    return z / (2 * (1 + delta)) if kind == ODDS else (extra - z).exp()
