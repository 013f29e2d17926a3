"""The truth: the loss written down densely, for any dtype, twice differentiable.

Read this first; the other backends compute the same thing faster. It works in float64 where the
device has it, where TF32 and autocast do not reach, and takes similarities from chords, which stay
exact where c comes close to +-1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.numerics import chords, normalize, similarity
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype
from taufree.links import Link, by_direction


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
    every_row = slice(0, contrast.n)
    link, column_link = by_direction(link, contrast.n)
    left_out = contrast.left_out(every_row, every_row)

    negatives, columns = [], None
    if contrast.in_batch:
        gap, rise = similarity(*u, *v)
        in_batch = masked_logits(link, gap, rise, left_out)
        negatives.append(in_batch)
        if contrast.symmetric:
            columns = in_batch.T
            if column_link is not link:
                columns = masked_logits(column_link, gap.T, rise.T, None if left_out is None else left_out.T)
    if contrast.queue is not None:
        negatives.append(masked_logits(link, *similarity(*u, *normalize(contrast.queue)), None))
    if contrast.own_negatives is not None:
        own = normalize(contrast.own_negatives)
        negatives.append(link.logit(*chords(u[0][:, None], u[1][:, None], *own)))
    logits = torch.cat(negatives, dim=1)

    of = _decoupled if contrast.decoupled else _cross_entropy
    if contrast.labels is not None:
        same, count = contrast.same_label(every_row, every_row), contrast.positive_count()
        if not contrast.decoupled:
            return by_label(logits, same, count)
        target = logits.where(same, 0).sum(1) / count.clamp(min=1)
        return of(target, logits.masked_fill(same, -torch.inf)).where(count > 0, 0)
    of_positive = chords(*u, *(t.roll(-contrast.shift, 0) for t in v))
    positive = link.logit(*of_positive)
    losses = of(positive, logits)
    if columns is not None:
        positive = positive if column_link is link else column_link.logit(*of_positive)
        losses = (losses + of(positive, columns)) / 2
    return losses


def masked_logits(link: Link, gap: Tensor, rise: Tensor, left_out: Tensor | None) -> Tensor:
    """Logits of a matrix of similarities; a pair that is left out leaves before the link (its cosine
    reads 0), or an infinite slope at c = 1 times the zero of the mask would be NaN."""
    if left_out is None:
        return link.logit((rise - gap) / 2, gap, rise)
    gap, rise = gap.masked_fill(left_out, 1), rise.masked_fill(left_out, 1)
    return link.logit((rise - gap) / 2, gap, rise).masked_fill(left_out, -torch.inf)


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
