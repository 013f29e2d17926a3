"""The truth: the loss written down densely, for any dtype, twice differentiable.

Read this first; the other backends compute the same thing faster. It works in float64 where the
device has it, where TF32 and autocast do not reach, and takes similarities from chords, which stay
exact where c comes close to +-1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.backends.numerics import chords, normalize, similarity
from taufree.contrast import Bias, Contrast
from taufree.dtypes import result_dtype
from taufree.links import Link, by_direction
from taufree.stats import Tally, add_tile, masked


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    losses = anchor_losses(contrast, link)
    if weights is not None:
        losses = (losses * weights).sum()
    return losses.to(result_dtype(*contrast.inputs))


def anchor_losses(contrast: Contrast, link: Link) -> Tensor:
    """The loss of each anchor, [N]."""
    u = normalize(contrast.anchors)
    v = u if contrast.keys is None else normalize(contrast.keys)
    link, column_link = by_direction(link, contrast.n)
    labelled = contrast.labels is not None
    every_row, every_key = slice(0, contrast.n), slice(0, contrast.m)
    left_out = contrast.left_out(every_row, every_key)

    negatives: list[Tensor] = []
    gaps: list[tuple[Tensor, Tensor | None]] = []
    columns = None
    if contrast.in_batch:
        gap, rise = similarity(*u, *v)
        in_batch = masked_logits(link, gap, rise, left_out, 0.0 if labelled else contrast.hardness)
        negatives.append(in_batch)
        gaps.append((gap, left_out))
        if contrast.symmetric:
            columns = in_batch.T
            if column_link is not link:
                columns = masked_logits(column_link, gap.T, rise.T, None if left_out is None else left_out.T)
            if contrast.offsets is not None:
                columns = columns - contrast.offsets[1][:, None]
    if contrast.queue is not None:
        same_id = None
        if contrast.ids is not None and contrast.queue_ids is not None:
            same_id = contrast.ids[:, None] == contrast.queue_ids
        gap, rise = similarity(*u, *normalize(contrast.queue))
        negatives.append(masked_logits(link, gap, rise, same_id, contrast.hardness))
        gaps.append((gap, same_id))
    if contrast.own_negatives is not None:
        cosine, gap, rise = chords(u[0][:, None], u[1][:, None], *normalize(contrast.own_negatives))
        negatives.append(link.logit(cosine, gap, rise) + contrast.hardness * cosine.detach())
        gaps.append((gap, None))
    logits = torch.cat(negatives, dim=1)
    if contrast.offsets is not None and not labelled:
        logits = logits - contrast.offsets[0][:, None]

    of = _decoupled if contrast.decoupled else _cross_entropy
    if labelled:
        same, count = contrast.same_label(every_row, every_key), contrast.positive_count()
        if contrast.hardness:  # which is of negatives alone, as offsets are
            more = contrast.hardness * ((rise - gap) / 2).detach()
            logits = logits + more.masked_fill(same, 0)
        if contrast.offsets is not None:
            logits = logits - contrast.offsets[0][:, None].masked_fill(same, 0)
        track(contrast, gaps, same, None)
        if not contrast.decoupled:
            return by_label(logits, same, count)
        target = logits.where(same, 0).sum(1) / count.clamp(min=1)
        return of(target, logits.masked_fill(same, -torch.inf)).where(count > 0, 0)
    of_positive = chords(*u, *(t.roll(-contrast.shift, 0) for t in v))
    track(contrast, gaps, None, of_positive[0])
    positive = link.logit(*of_positive)
    if contrast.bias is not None:
        return _questions(positive, logits, contrast.bias)
    losses = of(positive, logits)
    if columns is not None:
        positive = positive if column_link is link else column_link.logit(*of_positive)
        losses = (losses + of(positive, columns)) / 2
    return losses


@torch.no_grad()
def track(
    contrast: Contrast, gaps: Sequence[tuple[Tensor, Tensor | None]], same: Tensor | None,
    positive: Tensor | None,
) -> None:  # fmt: skip
    """The statistics, if they are wanted, from all matrices of 1 - c and the pairs left out, the in-batch one
    first, and the cosines of the positives [N] unless these are the pairs ``same``."""
    if contrast.tracker is None:
        return
    like = contrast.anchors.new_empty(contrast.n, dtype=gaps[0][0].dtype)
    tallies = [Tally.empty(like, like.dtype) for _ in range(2 if contrast.symmetric else 1)]
    if positive is not None:
        for tally in tallies:
            tally.add_positives(positive)
    for i, (gap, left_out) in enumerate(gaps):
        places = [(tally, slice(None), 1 - dim) for dim, tally in enumerate(tallies)]
        first = i == 0 and contrast.in_batch
        add_tile(gap.clone(), 1.0, masked(left_out), same if first else None, places if first else places[:1])
    count = contrast.positive_count()
    contrast.tracker.sums = torch.stack([tally.sums(count) for tally in tallies]).sum(0)


def masked_logits(
    link: Link, gap: Tensor, rise: Tensor, left_out: Tensor | None, hardness: float = 0.0
) -> Tensor:
    """Logits of a matrix of similarities, with ``hardness`` times the cosine, without gradient, added.

    A pair that is left out leaves before the link (its cosine reads 0), or an infinite slope at c = 1 times
    the zero of the mask would be NaN.
    """
    if left_out is not None:
        gap, rise = gap.masked_fill(left_out, 1), rise.masked_fill(left_out, 1)
    cosine = (rise - gap) / 2
    logits = link.logit(cosine, gap, rise)
    if hardness:
        logits = logits + hardness * cosine.detach()
    return logits if left_out is None else logits.masked_fill(left_out, -torch.inf)


def _cross_entropy(positive: Tensor, negatives: Tensor) -> Tensor:
    """log(1 + sum_k exp(negative_k - positive)), without overflow and exact when it is tiny."""
    excess = negatives - positive[:, None]
    # Without negatives it is 0, and NaN stays NaN.
    top = excess.detach().amax(1).clamp(min=0) if excess.shape[1] else positive.detach().clamp(0, 0)
    return top + torch.log1p(torch.expm1(-top) + (excess - top[:, None]).exp().sum(1))


def _decoupled(positive: Tensor, negatives: Tensor) -> Tensor:
    """log(sum_k exp(negative_k - positive)); 0 without negatives."""
    none = (negatives == -torch.inf).all(1)
    excess = (negatives - positive[:, None]).masked_fill(none[:, None], 0)
    return excess.logsumexp(1).where(~none, 0) if excess.shape[1] else positive * 0


def _questions(positive: Tensor, negatives: Tensor, bias: Bias) -> Tensor:
    """The cross-entropies of each pair's own yes or no: log(1 + exp(-z)) of the positive's logit z, and
    log(1 + exp(z)) of the negatives'."""
    if bias.prior:  # by operators, which need not be compiled again for another N
        candidates = torch.full((), negatives.shape[1], dtype=positive.dtype, device=positive.device)
        positive, negatives = (x - (candidates - 1).clamp(min=1).log() for x in (positive, negatives))
    added = bias.number if bias.learned is None else bias.number + bias.learned.to(positive)
    # From 40 on softplus(z) is z, to all digits; and exp(40) is in float32's range.
    return softplus(-positive - added, threshold=40) + softplus(negatives + added, threshold=40).sum(1)


def by_label(logits: Tensor, same: Tensor, count: Tensor) -> Tensor:
    """log(sum_k exp(logit_k)) minus the mean logit of the positives; 0 for an anchor without any.

    Relative to the positives' mean logit, and with each positive's weight written as 1 + expm1,
    so that a single positive gives log1p(sum over the negatives), exact when it is tiny. A single
    positive's excess is the constant 0, or its derivative 1 - p would be a difference.
    """
    some, single = count > 0, count == 1
    count = count.clamp(min=1).to(logits.dtype)
    excess = logits - torch.where(same, logits, 0).sum(1, keepdim=True) / count[:, None]
    excess = excess.masked_fill(~some[:, None] | (single[:, None] & same), 0)
    top = excess.detach().amax(1, keepdim=True).clamp(min=0)
    more = torch.where(same, torch.expm1(excess - top), (excess - top).exp()).sum(1)
    return torch.where(some, top[:, 0] + count.log() + torch.log1p(more / count), 0)
