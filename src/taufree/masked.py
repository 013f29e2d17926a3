"""Dense losses whose positives and candidates are given by masks, on the reference's exact arithmetic.

The drop-ins of other libraries use it for what the functions of taufree.functional cannot express.
"""

from __future__ import annotations

from torch import Tensor

from taufree.backends import numerics, reference
from taufree.backends.measure import ContrastMeasure, MaskMeasure
from taufree.backends.reference import masked_logits
from taufree.checks import check_float
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype
from taufree.functional import paired_logits
from taufree.links import Link

__all__ = [
    "check_rows",
    "masked_logits",
    "masked_losses",
    "paired_logits",
    "prepare",
    "prepare_by_mask",
    "similarity",
]


def check_rows(**rows: Tensor) -> None:
    """Raises unless all are embeddings [N, D] of one D and device; errors name them by their keywords."""
    (first, like), *_ = rows.items()
    for name, x in rows.items():
        check_float(name, x, like=(first, like))
        if x.dim() != 2:
            raise ValueError(f"{name} must have shape [N, D], got {list(x.shape)}.")
        if x.shape[1] != like.shape[1]:
            raise ValueError(f"{name} must have the {like.shape[1]} columns of {first}, got {x.shape[1]}.")


def prepare(link: Link, query: Tensor, positive_key: Tensor, negative_keys: Tensor | None = None) -> Link:
    """The link that one loss uses, measured on these embeddings if it measures; call it once a loss."""
    return link.prepare(ContrastMeasure(Contrast(query, positive_key, queue=negative_keys), link))


def prepare_by_mask(
    link: Link, gap: Tensor, rise: Tensor, negatives: Tensor, positives: Tensor, dimensions: int
) -> Link:
    """The link that one loss uses, measured on pairs that are given by booleans [N, M]; once a loss.

    The measure that it is given has no ``contrast``.
    """
    return link.prepare(MaskMeasure(gap, rise, negatives, positives, dimensions))


def similarity(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """1 - c and 1 + c of all rows of a [N, D] against all rows of b [M, D], each [N, M], exact near 0."""
    return numerics.similarity(*numerics.normalize(a), *numerics.normalize(b))


def masked_losses(
    anchors: Tensor,
    samples: Tensor,
    positives: Tensor,
    candidates: Tensor,
    link: Link,
    *,
    balanced: bool = False,
) -> Tensor:
    """Each anchor's mean over its positives of -log(weight of the positive / sum over its candidates), [N].

    An anchor without positives has loss 0.

    Args:
        anchors, samples: [N, D] and [M, D].
        positives, candidates: booleans [N, M]; a positive must be a candidate.
        balanced: see ``taufree.info_nce``.
    """
    gap, rise = similarity(anchors, samples)
    negatives = candidates & ~positives
    link = prepare_by_mask(link, gap, rise, negatives, positives, anchors.shape[1])
    logits = masked_logits(link, gap, rise, ~candidates)
    if balanced:
        count = negatives.sum(1, keepdim=True).clamp(min=1).to(logits.dtype)
        logits = logits.where(positives, logits - count.log())
    losses = reference.by_label(logits, positives, positives.sum(1))
    return losses.to(result_dtype(anchors, samples))
