"""How the anchors' losses become one number: "mean", "sum", or "none" for each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype

REDUCTIONS = ("mean", "sum", "none")


def anchor_weights(
    reduction: str, n: int, positives: Tensor | None, given: Tensor | None = None
) -> Tensor | float | None:
    """What each of ``n`` anchors' losses is multiplied by in the sum; None for "none".

    ``positives`` [n] says how many positives each anchor has, None that each has one. An anchor without any
    does not count. ``given`` [n] are the user's weights, by which "mean" is a weighted mean. The result is
    one number if it is the same for all, else [n].
    """
    if reduction == "none":
        return None
    if positives is None and given is None:
        return 1 / n if reduction == "mean" else 1.0
    found = positives if given is None else given
    assert found is not None
    weights = torch.ones(n, dtype=wide_dtype(found.device), device=found.device)
    if given is not None:
        weights = given.detach().to(weights)
    if positives is not None:
        weights = weights.where(positives > 0, 0)
    if reduction == "sum":
        return weights
    total = weights.sum()
    return weights / total.where(total != 0, 1)
