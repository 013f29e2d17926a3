"""What the fused operator is called with, and what its forward keeps for the backward."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from taufree.backends.fused import MAX_BITS
from taufree.backends.numerics import chords, normalize
from taufree.contrast import Contrast
from taufree.links import Formula, Link
from taufree.stats import Tally, add_tile

# How the kernels compute a link. ODDS: log-odds at gain 1. POWER: log-odds at any gain. SCALE: scale * c.
# EXP: scale * c where all weights, relative to that of c = 1, stay in float32's range.
ODDS, POWER, SCALE, EXP = range(4)
MAX_EXP_SCALE = 40.0  # the largest scale at which exp(scale * (c - 1)) stays in float32's range


class KernelLink(NamedTuple):
    """A link as the kernels see it: its kind, its gain or inverse temperature [1], its resolution, and what a
    negative's cosine is multiplied by and added to its logit.

    A temperature may have an inverse for each anchor, [N].
    """

    kind: int
    scale: Tensor
    resolution: float
    hardness: float = 0.0

    @property
    def sum_dtype(self) -> torch.dtype:
        """Of sums over weights, which are plain numbers: what has the range of the weights."""
        return torch.float32 if self.kind in (ODDS, EXP) else torch.float64

    @property
    def each(self) -> bool:
        """Whether each anchor has a scale of its own."""
        return self.scale.shape[0] > 1


class Arguments(NamedTuple):
    """One call of the operator. torch.library and autograd take tensors and numbers alone: only there is this
    record flattened, in the order of its fields.

    Attributes:
        anchors, keys, queue: [N, D], [N, D] and [M, D], see :class:`taufree.contrast.Contrast`.
        own_sums: [N], the sum of the weights of each anchor's own negatives.
        scale: [1], of the link, or [N], of each anchor; [0] for ODDS.
        groups: [N], ids, or labels if ``positive_count`` is given.
        key_groups: [M], the keys' labels, if they are not the anchors'.
        positive_count: [N], how many positives each anchor has by its label.
        queue_ids: [M], those of the queue.
        offsets: [1, N] or [2, N], what the negatives' logits are lowered by.
        tally: [6, N], if statistics are wanted, that of each anchor's own negatives.
        weight: what each loss is multiplied by.
    """

    anchors: Tensor
    keys: Tensor | None
    queue: Tensor | None
    own_sums: Tensor | None
    scale: Tensor
    groups: Tensor | None
    key_groups: Tensor | None
    positive_count: Tensor | None
    queue_ids: Tensor | None
    offsets: Tensor | None
    tally: Tensor | None
    shift: int
    in_batch: bool
    symmetric: bool
    decoupled: bool
    kind: int
    resolution: float
    weight: float
    hardness: float = 0.0

    @property
    def link(self) -> KernelLink:
        return KernelLink(self.kind, self.scale, self.resolution, self.hardness)


TENSOR_COUNT = 11  # the first fields of Arguments are tensors, or None


class Saved(NamedTuple):
    """What the forward keeps for the backward; unit rows and statistics of an input that is not there are
    empty, since an operator's result always has the same number of tensors.

    Attributes:
        normalisers: [2, N], of both directions.
        positive: [3, N] in float64: 1 - c, 1 + c and dL/dc of the positives; with labels what
            :func:`.row_passes.close_labelled` gives.
    """

    normalisers: Tensor
    positive: Tensor
    anchor_unit: Tensor
    anchor_stats: Tensor
    key_unit: Tensor
    key_stats: Tensor
    queue_unit: Tensor
    queue_stats: Tensor


class Gradients(NamedTuple):
    """The operator's gradients; None for one that is not wanted."""

    anchors: Tensor | None
    keys: Tensor | None
    queue: Tensor | None
    scale: Tensor | None


def arguments_of(contrast: Contrast, link: Link, weight: float = 1.0) -> Arguments:
    """The operator's arguments for a loss; ``link`` has a formula."""
    formula, scale, device = link.formula, link.formula_scale(), contrast.anchors.device
    assert formula is not None
    labelled = contrast.labels is not None
    if formula.kind == "log-odds":
        # Do not test whether a tensor is 1: reading a CUDA scalar waits for the device.
        kind = ODDS if not isinstance(scale, Tensor) and scale == 1 and not contrast.hardness else POWER
    else:
        gentle = not isinstance(scale, Tensor) and 0 <= scale <= MAX_EXP_SCALE and not contrast.hardness
        kind = EXP if gentle and not labelled and contrast.own_negatives is None else SCALE
    if isinstance(scale, Tensor):  # one that is too large counts as the largest that float64 holds
        scale = scale.to(device, torch.float32).reshape(-1).clamp(max=_largest_scale(contrast, formula))
    elif kind == ODDS:  # which has none
        scale = contrast.anchors.new_empty(0, dtype=torch.float32)
    else:
        scale = contrast.anchors.new_full((1,), scale, dtype=torch.float32)
    groups, (own_sums, tally) = contrast.groups, _own_negatives(contrast, link)
    return Arguments(
        contrast.anchors.contiguous(),
        None if contrast.keys is None else contrast.keys.contiguous(),
        None if contrast.queue is None or not len(contrast.queue) else contrast.queue.contiguous(),
        own_sums,
        scale,
        None if groups is None else groups.contiguous(),
        None if contrast.key_labels is None else contrast.key_labels.contiguous(),
        contrast.positive_count().double() if labelled else None,
        None if contrast.queue_ids is None else contrast.queue_ids.contiguous(),
        None if contrast.offsets is None else contrast.offsets.double(),
        None if tally is None else tally.table,
        contrast.shift,
        contrast.in_batch,
        contrast.symmetric,
        contrast.decoupled,
        kind,
        formula.resolution,
        weight,
        contrast.hardness,
    )


def _largest_scale(contrast: Contrast, formula: Formula) -> float:
    """By which no weight is more than 2^MAX_BITS."""
    bits = MAX_BITS - contrast.hardness / math.log(2)
    return bits / (math.log2(2 / formula.resolution + 1) if formula.kind == "log-odds" else 1 / math.log(2))


def _own_negatives(contrast: Contrast, link: Link) -> tuple[Tensor | None, Tally | None]:
    """The sum over each anchor's own negatives, [N], and their tally; row by row and exactly, since they are
    few."""
    own, tally = contrast.own_negatives, None
    if contrast.tracker is not None:
        tally = Tally.empty(contrast.anchors, torch.float32)
    if own is None or not own.numel():
        return None, tally
    u, u_deficit = normalize(contrast.anchors)
    cosine, gap, rise = chords(u[:, None], u_deficit[:, None], *normalize(own))
    logits = link.logit(cosine, gap, rise) + contrast.hardness * cosine.detach()
    if tally is not None:
        add_tile(gap.detach(), 1.0, None, None, [(tally, slice(None), 1)])
    most = MAX_BITS * math.log(2)
    return logits.clamp(-most, most).exp().sum(1), tally
