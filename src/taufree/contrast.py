"""Which rows are compared: anchors, their positives, their candidates, and the pairs that are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype
from taufree.stats import Tally, Tracker

Span: TypeAlias = range | slice  # from start to stop; code compiled for a slice holds for any stop


class Bias(NamedTuple):
    """What the sigmoid loss adds to every logit, the sum of up to three parts.

    Attributes:
        number: a part that is known.
        learned: a scalar tensor, which may get a gradient.
        prior: whether -log(N - 1) is a part, the log-odds that one of N candidates is the positive; 0 for a
            single candidate, as for two.
    """

    number: float  # without a default: torch.compile takes that for a number that may change
    learned: Tensor | None
    prior: bool

    def among(self, candidates: int) -> Bias:
        """The same with the prior as a part of the number."""
        number = self.number - math.log(max(1, candidates - 1)) if self.prior else self.number
        return Bias(number, self.learned, False)


@dataclass(frozen=True)
class Contrast:
    """Everything a loss needs to know but the link.

    Anchor i's loss is the cross-entropy of its positives among its candidates or, with a ``bias``, the sum
    over its pairs of the cross-entropy of yes and no (``sigmoid_nce``). Three shapes occur:

    - pairs (``info_nce``): ``keys[i]`` is the positive of ``anchors[i]``; the other keys are its
      negatives if ``in_batch``; with ``symmetric`` the keys are anchors too, against the anchors.
    - views (``nt_xent``): ``keys`` is None, the anchors are their own candidates, an anchor never
      is compared with itself, and its positive is the row ``shift`` further (modulo N).
    - labels (``sup_con``): every other row with the same label is a positive or, with ``keys`` [M, D], every
      key whose ``key_labels`` is the anchor's label.

    Attributes:
        anchors: [N, D].
        keys: [N, D] (with labels [M, D]), or None when the anchors are compared with each other.
        shift: the positive of anchor i is row (i + shift) mod N of the keys (or anchors).
        in_batch: whether the keys are candidates of every anchor.
        symmetric: whether each key is an anchor as well; its loss is averaged with its pair's.
        queue: [M, D], negatives shared by all anchors.
        own_negatives: [N, K, D], negatives of one anchor each.
        ids: [N]; a key with the anchor's id that is not its positive is left out.
        labels: [N]; when given, positives are the rows of the same label, and ``shift`` is not used.
        key_labels: [M], with labels and keys.
        positives: [N], how many positives each anchor has, where other ranks hold some of them.
        decoupled: whether the positives are left out of the denominator (DCL); an anchor without negatives
            has loss 0 then.
        balanced: whether the negatives count by the mean of their weights: by ``offsets``, once their number
            is known.
        queue_ids: [M], those of the queue; a row with the anchor's id is left out.
        hardness: a negative's weight is multiplied by exp(hardness * c), which gets no gradient.
        offsets: a negative's weight is divided by exp(offset): [1, N], or [2, N] with those of the keys if
            ``symmetric``.
        bias: that of the sigmoid loss, for pairs in the batch, one way.
        tracker: where the backend leaves the statistics of the pairs, if they are wanted.
        matrix: all pairs, if a link has computed them already; for the backend that made it, once. False
            if it could not make them.
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
    key_labels: Tensor | None = None
    positives: Tensor | None = None
    decoupled: bool = False
    balanced: bool = False
    queue_ids: Tensor | None = None
    hardness: float = 0.0
    offsets: Tensor | None = None
    bias: Bias | None = None
    tracker: Tracker | None = None
    matrix: Any = None

    @property
    def n(self) -> int:
        return self.anchors.shape[0]

    @property
    def m(self) -> int:
        """How many rows the anchors are compared with, but for negatives that are no keys."""
        return self.n if self.keys is None else self.keys.shape[0]

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """What may get a gradient: anchors, keys, queue, own negatives."""
        return self.anchors, self.keys, self.queue, self.own_negatives

    @property
    def groups(self) -> Tensor | None:
        """[N], the labels or the ids; pairs of one group are no negatives."""
        return self.ids if self.labels is None else self.labels

    @property
    def key_groups(self) -> Tensor | None:
        """[M], those of the keys."""
        return self.groups if self.key_labels is None else self.key_labels

    @property
    def candidate_count(self) -> int:
        """How many keys and negatives an anchor is compared with, those that are left out included."""
        count = self.m if self.in_batch else 0
        count += 0 if self.queue is None else self.queue.shape[0]
        return count + (0 if self.own_negatives is None else self.own_negatives.shape[1])

    def directions(self) -> list[Contrast]:
        """One for each direction: that of the keys, if they are anchors too, has neither queue nor negatives
        of one anchor each."""
        if not self.symmetric or self.keys is None:
            return [self]
        one = replace(self, symmetric=False)
        alone = replace(one, queue=None, queue_ids=None, own_negatives=None)
        return [one, replace(alone, anchors=self.keys, keys=self.anchors)]

    def but(self, **fields: Any) -> Contrast:
        """As dataclasses.replace, which takes a tenth of the time of a small loss; not for compiled code."""
        made = object.__new__(Contrast)
        vars(made).update(vars(self))
        vars(made).update(fields)
        return made

    def out_of_inference(self) -> Contrast:
        """The same with copies of what was made in inference mode, which no backward can keep."""
        made_there: dict[str, Any] = {}
        for name, x in vars(self).items():
            if isinstance(x, Tensor) and x.is_inference():
                made_there[name] = x.clone()
        if self.bias is not None and self.bias.learned is not None and self.bias.learned.is_inference():
            made_there["bias"] = self.bias._replace(learned=self.bias.learned.clone())
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
            masks.append(_equal(self.ids, self.ids, rows, cols))
        if not masks:
            return None
        return torch.stack(masks).any(0) if len(masks) > 1 else masks[0]

    def same_label(self, rows: Span, cols: Span) -> Tensor:
        """Boolean [rows, cols]: the positives by label, the anchor itself not among them."""
        assert self.labels is not None
        if self.key_labels is not None:
            return _equal(self.labels, self.key_labels, rows, cols)
        return _equal(self.labels, self.labels, rows, cols) & ~self._pairs(rows, cols, 0)

    def positive_count(self) -> Tensor:
        """[N]: how many positives each anchor has, at O(N) memory."""
        if self.positives is not None:
            return self.positives
        if self.labels is None:
            return torch.ones(self.n, dtype=torch.long, device=self.anchors.device)
        return how_many(self.labels, self.key_labels)

    def _pairs(self, rows: Span, cols: Span, shift: int) -> Tensor:
        device = self.anchors.device
        row = torch.arange(rows.start, rows.stop, device=device)
        return ((row + shift) % self.n)[:, None] == torch.arange(cols.start, cols.stop, device=device)


class Shard(NamedTuple):
    """Candidates [K, D] that another rank holds. Neither an anchor of this rank nor its positive by position
    is among them; equal ids or labels may be."""

    x: Tensor
    groups: Tensor | None  # [K], their ids or labels; None if none are given
    are_anchors: bool  # whether they are anchors too, on their rank
    tally: Tally | None = None  # theirs, if they are anchors too and the pairs are tracked
    scale: Tensor | None = None  # [K], their scales as anchors, if each anchor has one


def count_negatives(
    contrast: Contrast, rows: int, groups: Tensor | None, queued: int, queue_ids: Tensor | None
) -> Tensor:
    """[N]: how many negatives each anchor has among ``rows`` candidates in the batch, of ``groups``, and
    ``queued`` shared negatives of ``queue_ids``, those of all ranks."""
    own = contrast.groups
    if contrast.labels is not None and groups is not None:
        return groups.shape[0] - how_many(contrast.labels, groups)
    count: Tensor | int = 0
    if contrast.in_batch and own is not None and groups is not None:
        count = groups.shape[0] - how_many(own, groups)
    elif contrast.in_batch:  # all but the positive, and the anchor itself
        count = rows - (2 if contrast.keys is None else 1)
    if contrast.queue is not None:
        count = count + queued
        if own is not None and queue_ids is not None:
            count = count - how_many(own, queue_ids)
    if contrast.own_negatives is not None:
        count = count + contrast.own_negatives.shape[1]
    if isinstance(count, Tensor):
        return count
    return torch.full((contrast.n,), count, device=contrast.anchors.device)


def balance(
    contrast: Contrast, rows: int, groups: Tensor | None, queued: int, queue_ids: Tensor | None
) -> Contrast:
    """The same with the logarithms of how many negatives the anchors have in its offsets, if it is balanced;
    see :func:`count_negatives`."""
    if not contrast.balanced:
        return contrast
    counts = [
        count_negatives(one, rows, groups, queued, queue_ids).clamp(min=1) for one in contrast.directions()
    ]
    found = torch.stack(counts).to(wide_dtype(contrast.anchors.device)).log_()
    found = found if contrast.offsets is None else contrast.offsets + found
    return replace(contrast, balanced=False, offsets=found)


def how_many(labels: Tensor, key_labels: Tensor | None) -> Tensor:
    """[N]: how many keys have each of the labels; without keys, how many other rows."""
    labels = labels.long().contiguous()  # searchsorted takes no unsigned ones and warns of strided ones
    ordered = (labels if key_labels is None else key_labels.long()).sort().values
    count = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    return count if key_labels is not None else count - 1


def _equal(values: Tensor, others: Tensor, rows: Span, cols: Span) -> Tensor:
    return values[rows.start : rows.stop, None] == others[cols.start : cols.stop]


def _overlap(a: Span, b: Span) -> bool:
    overlap: bool = a.start < b.stop and b.start < a.stop  # an older torch.compile has no bool() of it
    return overlap
