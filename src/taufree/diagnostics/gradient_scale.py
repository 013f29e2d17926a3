"""How strongly a loss acts on an anchor: the sum over its candidates of the size of dL/dc.

The loss of an anchor is the mean over its positives of -log p_j, with p the softmax of the logits over its
candidates: InfoNCE for one positive, SupCon for several. With one positive at C and all negatives at -C the
gradient scale is that of the paper, |dL/dC|, see :mod:`taufree.diagnostics.theory.closed_forms`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taufree import Link


def logit_and_slope(link: Link, cosine: Tensor) -> tuple[Tensor, Tensor]:
    """The link at these cosines, and its derivative."""
    gap, rise = 1 - cosine, 1 + cosine
    return link.logit(cosine, gap, rise), link.slope(cosine, gap, rise)


def gradient_scale(
    positive: tuple[Tensor, Tensor], negative: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient scale of each anchor, how it is spread over the anchor's negatives, and the loss.

    It is the sum of |1/P - p_j| link'(c_j) over the positives and of p_j link'(c_j) over the negatives.
    1/P - p_j is computed as (S/P + (mean(w) - w_j)) / Z, with w the weights of the P positives, S the sum of
    the negatives' weights and Z the sum of all: for one positive it is S/Z, and nothing cancels.

    Args:
        positive: logits and slopes [B, P]; where the logit is minus infinity there is no positive.
        negative: logits and slopes [B, N]; where the logit is minus infinity there is no negative.

    Returns:
        The scale [B], the negatives' parts of it [B, N], each row up to a factor, and the loss [B].
    """
    (logit, slope), (other, steep) = positive, negative
    # The negatives have a maximum of their own: next to a strong positive they would all round to zero.
    lowest = torch.finfo(other.dtype).min  # of an anchor without negatives
    highest = other.amax(1, keepdim=True) if other.shape[1] else other.new_full((len(other), 1), lowest)
    highest = highest.clamp(min=lowest)
    weight = (other - highest).exp_()
    parts = weight * steep

    there = logit > -torch.inf
    count = there.sum(1, keepdim=True)
    shift = torch.maximum(highest, logit.amax(1, keepdim=True))
    fade = (highest - shift).exp()
    negatives = weight.sum(1, keepdim=True) * fade
    positives = (logit - shift).exp()
    mean = positives.sum(1, keepdim=True) / count
    of_positives = ((negatives / count + (mean - positives)).abs() * slope).masked_fill(~there, 0.0).sum(1)
    total = (negatives + count * mean).squeeze(1)
    mean_logit = logit.masked_fill(~there, 0.0).sum(1) / count.squeeze(1)
    loss = total.log() + shift.squeeze(1) - mean_logit
    return (of_positives + parts.sum(1) * fade.squeeze(1)) / total, parts, loss


def chance_scale(link: Link, positives: Tensor, negatives: Tensor) -> Tensor:
    """The gradient scale where all cosines are 0, 2 link'(0) M / (P + M): of embeddings that know nothing."""
    _, slope = logit_and_slope(link, torch.zeros(1, dtype=torch.float32, device=positives.device))
    return 2 * slope * negatives / (positives + negatives)


def optimum_scale(link: Link, positives: Tensor, negatives: Tensor) -> Tensor:
    """The gradient scale where positives are at 1 and negatives at -1, with nothing left to gain.

    It is (1 - p) (link'(1) + link'(-1)), with 1 - p = M / (M + P exp(link(1) - link(-1))).
    """
    ends = torch.tensor([1.0, -1.0], dtype=torch.float32, device=positives.device)
    logit, slope = logit_and_slope(link, ends)
    return negatives / (negatives + positives * (logit[0] - logit[1]).exp()) * slope.sum()
