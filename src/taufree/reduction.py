"""How the anchors' losses become one number: "mean", "sum", or "none" for each of them."""

from __future__ import annotations

from torch import Tensor

from taufree.dtypes import wide_dtype

REDUCTIONS = ("mean", "sum", "none")


def anchor_weights(reduction: str, n: int, positives: Tensor | None) -> Tensor | float | None:
    """What each of ``n`` anchors' losses is multiplied by in the sum; None for "none".

    ``positives`` [n] says how many positives each anchor has, None that each has one. An anchor without any
    does not count. The result is one number if it is the same for all, else [n].
    """
    if reduction == "none":
        return None
    if positives is None:
        return 1 / n if reduction == "mean" else 1.0
    counted = (positives > 0).to(wide_dtype(positives.device))
    return counted / counted.sum().clamp(min=1) if reduction == "mean" else counted
