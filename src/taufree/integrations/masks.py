"""Losses for libraries that say by masks who is compared with whom: dense, on the reference's arithmetic."""

from __future__ import annotations

from torch import Tensor

from taufree.backends import numerics as precision
from taufree.backends import reference
from taufree.functional import check_float
from taufree.links import Link


def check_rows(**rows: Tensor) -> None:
    """Raises unless all are embeddings [N, D] of one D; they are called what the library calls them."""
    (first, like), *_ = rows.items()
    for name, x in rows.items():
        check_float(name, x, like=(first, like))
        if x.dim() != 2:
            raise ValueError(f"{name} must have shape [N, D], got {list(x.shape)}.")
        if x.shape[1] != like.shape[1]:
            raise ValueError(f"{name} must have the {like.shape[1]} columns of {first}, got {x.shape[1]}.")


def similarity(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """1 - c and 1 + c of all rows of a [N, D] against all rows of b [M, D], each [N, M], exact near 0."""
    return precision.similarity(*precision.normalize(a), *precision.normalize(b))


def masked_losses(
    anchors: Tensor, samples: Tensor, positives: Tensor, candidates: Tensor, link: Link
) -> Tensor:
    r"""Each anchor's mean over its positives of -log(weight of the positive / sum over its candidates), [N].

    An anchor without positives has loss 0.

    Args:
        anchors, samples: [N, D] and [M, D].
        positives, candidates: booleans [N, M]; a positive must be a candidate.
    """
    logits = reference.masked_logits(link, *similarity(anchors, samples), ~candidates)
    losses = reference.by_label(logits, positives, positives.sum(1))
    return losses.to(precision.result_dtype(anchors, samples))
