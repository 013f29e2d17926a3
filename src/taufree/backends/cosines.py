"""Mean cosines of anchors with their positives and with all their candidates, without a pass over the pairs.

For anchor i the sum over candidates v_j is u_i . (sum_j v_j). With ids or labels the pairs that are left out,
or are positives, are anywhere in the matrix and are found pair by pair, some rows at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.moments import MAX_NUMBERS, MAX_PAIRS, parts_of, unit_rows
from taufree.backends.numerics import no_autocast
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Cosines


def summary(sums: Tensor, dimensions: int) -> Cosines:
    """From :func:`sums`, of one process or added up over ranks."""
    anchors, positive, candidate, candidates = sums
    return Cosines(positive / anchors, candidate / anchors, candidates / anchors, dimensions)


def sums(positive: Tensor, positives: Tensor, candidate: Tensor, candidates: Tensor) -> Tensor:
    """[4]: how many anchors have positives; the sums over them of the mean cosine of their positives, of the
    mean cosine of their candidates, and of the number of these.

    The arguments are each anchor's sum of cosines and count, [N], of its positives and of its candidates.
    """
    wide, some = wide_dtype(positive.device), positives > 0
    means = ((positive.to(wide) / positives), (candidate.to(wide) / candidates), candidates.to(wide))
    return torch.stack([some.sum().to(wide), *(x.where(some, 0).sum() for x in means)])


class CosineSums:
    """The anchors' sums of cosines, [N], while candidates are added."""

    def __init__(self, contrast: Contrast) -> None:
        self.contrast, self.groups = contrast, contrast.groups
        self.dtype = result_dtype(*contrast.inputs)
        self.u = unit_rows(contrast.anchors, self.dtype)
        self.positive, self.positives, self.candidate, self.candidates = self.u.new_zeros(4, len(self.u))

    def add_own(self) -> None:
        """All candidates that the contrast itself holds."""
        contrast = self.contrast
        keys = self.u if contrast.keys is None else unit_rows(contrast.keys, self.dtype)
        if contrast.in_batch:
            self._add(keys, contrast.key_groups)
        itself = (self.u * self.u).sum(1)
        if contrast.labels is not None:
            if contrast.keys is None:  # an anchor is of its own label
                self.positive, self.positives = self.positive - itself, self.positives - 1
        else:
            self.positive = (self.u * keys.roll(-contrast.shift, 0)).sum(1)
            self.positives = torch.ones_like(self.positive)
        if contrast.ids is not None or not contrast.in_batch:  # the positive is not counted yet
            self.candidate, self.candidates = self.candidate + self.positive, self.candidates + 1
        elif contrast.keys is None:  # and the anchor itself is
            self.candidate, self.candidates = self.candidate - itself, self.candidates - 1
        if contrast.queue is not None:
            self.add(contrast.queue, contrast.queue_ids)
        if contrast.own_negatives is not None:
            own = contrast.own_negatives
            for part in parts_of(len(own), own.shape[1] * own.shape[2], MAX_NUMBERS):
                self.candidate[part] += (unit_rows(own[part], self.dtype) * self.u[part, None]).sum((1, 2))
            self.candidates += own.shape[1]

    def add(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Candidates [M, D] from elsewhere, with their ids or labels [M]."""
        if len(rows):
            self._add(unit_rows(rows, self.dtype), groups)

    def _add(self, v: Tensor, groups: Tensor | None) -> None:
        with no_autocast(v.device):
            self.candidate += self.u @ v.sum(0)
            self.candidates += len(v)
            if groups is None or self.groups is None:
                return
            for part in parts_of(len(self.u), len(v), MAX_PAIRS.get(v.device.type, 2**24)):
                same = self.groups[part, None] == groups
                total, count = (self.u[part] @ v.T).masked_fill_(~same, 0).sum(1), same.sum(1)
                if self.contrast.labels is not None:
                    self.positive[part] += total
                    self.positives[part] += count
                else:  # equal ids are left out
                    self.candidate[part] -= total
                    self.candidates[part] -= count

    def sums(self) -> Tensor:
        """What :func:`sums` gives for all that was added."""
        return sums(self.positive, self.positives, self.candidate, self.candidates)
