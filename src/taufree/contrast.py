"""Which rows are compared: anchors, their positives, their candidates, and the pairs that are left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Span: TypeAlias = range | slice  # from start to stop; code compiled for a slice holds for any stop


@dataclass(frozen=True)
class Contrast:
    """Everything a loss needs to know but the link.

    Anchor i's loss is the cross-entropy of its positives among its candidates. Three shapes occur:

    - pairs (``info_nce``): ``keys[i]`` is the positive of ``anchors[i]``; the other keys are its
      negatives if ``in_batch``; with ``symmetric`` the keys are anchors too, against the anchors.
    - views (``nt_xent``): ``keys`` is None, the anchors are their own candidates, an anchor never
      is compared with itself, and its positive is the row ``shift`` further (modulo N).
    - labels (``sup_con``): ``keys`` is None, and every other row with the same label is a positive.

    Attributes:
        anchors: [N, D].
        keys: [N, D], or None when the anchors are compared with each other.
        shift: the positive of anchor i is row (i + shift) mod N of the keys (or anchors).
        in_batch: whether the keys are candidates of every anchor.
        symmetric: whether each key is an anchor as well; its loss is averaged with its pair's.
        queue: [M, D], negatives shared by all anchors.
        own_negatives: [N, K, D], negatives of one anchor each.
        ids: [N]; a key with the anchor's id that is not its positive is left out.
        labels: [N]; when given, positives are the rows of the same label, and ``shift`` is not used.
        positives: [N], how many positives each anchor has, where other ranks hold some of them.
        decoupled: whether the positives are left out of the denominator (DCL); an anchor without negatives
            has loss 0 then.
    """

    anchors: Tensor
    keys: Tensor | None = None
    shift: int = 0
    in_batch: bool = True
    symmetric: bool = False
    queue: Tensor | None = None
    own_negatives: Tensor | None = None
    ids: Tensor | None = None
    labels: Tensor | None = None
    positives: Tensor | None = None
    decoupled: bool = False

    @property
    def n(self) -> int:
        return self.anchors.shape[0]

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """What may get a gradient: anchors, keys, queue, own negatives."""
        return self.anchors, self.keys, self.queue, self.own_negatives

    @property
    def groups(self) -> Tensor | None:
        """[N], the labels or the ids; pairs of one group are no negatives."""
        return self.ids if self.labels is None else self.labels

    @property
    def candidate_count(self) -> int:
        """How many keys and negatives an anchor is compared with, those that are left out included."""
        count = self.n if self.in_batch else 0
        count += 0 if self.queue is None else self.queue.shape[0]
        return count + (0 if self.own_negatives is None else self.own_negatives.shape[1])

    def out_of_inference(self) -> Contrast:
        """The same with copies of what was made in inference mode, which no backward can keep."""
        made_there: dict[str, Any] = {
            name: x.clone() for name, x in vars(self).items() if isinstance(x, Tensor) and x.is_inference()
        }
        return replace(self, **made_there) if made_there else self

    def left_out(self, rows: Span, cols: Span) -> Tensor | None:
        """Boolean [rows, cols]: which keys are no negatives of the anchor; None if all of them are.

        These are the anchor itself, its positive (it is counted apart, exactly), and the keys with
        the anchor's id. With labels the positives stay in, see :meth:`same_label`.
        """
        masks = []
        if self.keys is None and _overlap(rows, cols):
            masks.append(self._pairs(rows, cols, 0))
        if self.labels is None:
            targets = ((rows.start + self.shift) % self.n, (rows.stop - 1 + self.shift) % self.n)
            wraps = targets[0] > targets[1]
            if wraps or _overlap(slice(targets[0], targets[1] + 1), cols):
                masks.append(self._pairs(rows, cols, self.shift))
        if self.ids is not None:
            masks.append(_equal(self.ids, rows, cols))
        if not masks:
            return None
        return torch.stack(masks).any(0) if len(masks) > 1 else masks[0]

    def same_label(self, rows: Span, cols: Span) -> Tensor:
        """Boolean [rows, cols]: the positives by label, the anchor itself not among them."""
        assert self.labels is not None
        return _equal(self.labels, rows, cols) & ~self._pairs(rows, cols, 0)

    def positive_count(self) -> Tensor:
        """[N]: how many positives each anchor has, at O(N) memory."""
        if self.positives is not None:
            return self.positives
        if self.labels is None:
            return torch.ones(self.n, dtype=torch.long, device=self.anchors.device)
        return how_many(self.labels) - 1

    def _pairs(self, rows: Span, cols: Span, shift: int) -> Tensor:
        device = self.anchors.device
        row = torch.arange(rows.start, rows.stop, device=device)
        return ((row + shift) % self.n)[:, None] == torch.arange(cols.start, cols.stop, device=device)


class Shard(NamedTuple):
    """Candidates [K, D] that another rank holds. Neither an anchor of this rank nor its positive by position
    is among them; equal ids or labels may be."""

    x: Tensor
    groups: Tensor | None  # [K], their ids or labels; None if none are given, and for a queue
    are_anchors: bool  # whether they are anchors too, on their rank
    scale: Tensor | None = None  # [K], their scales as anchors, if each anchor has one


def how_many(values: Tensor) -> Tensor:
    """[N]: how often each of the values occurs among them."""
    values = values.long().contiguous()  # searchsorted takes no unsigned ones and warns of strided ones
    ordered = values.sort().values
    return torch.searchsorted(ordered, values, right=True) - torch.searchsorted(ordered, values)


def _equal(values: Tensor, rows: Span, cols: Span) -> Tensor:
    return values[rows.start : rows.stop, None] == values[cols.start : cols.stop]


def _overlap(a: Span, b: Span) -> bool:
    overlap: bool = a.start < b.stop and b.start < a.stop  # an older torch.compile has no bool() of it
    return overlap
