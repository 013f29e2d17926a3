"""The diagnosis as a metric to watch while training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taufree.diagnostics.anchors import TAUS, blocks, measure, schemes
from taufree.diagnostics.diagnosis import OPTIMAL_COSINE, VANISHED_SHARE
from taufree.util.optional import needs

with needs("taufree[lightning]"):
    from torchmetrics import Metric


class ContrastiveDiagnostics(Metric):
    """Where positives stand in the batches seen, and what temperatures would do with them, see
    `taufree.diagnostics.diagnosis`.

    Row i of `second` is the positive of row i of `first`, the other rows of `second` in the batch are its
    negatives. With `labels` the positives are the rows of the same label (other than itself), the negatives
    those of other labels: in `second` if given, or in `first`. Every value is a mean over all anchors seen,
    so it describes the batch size that is trained with; on several processes each counts its own batches, and
    the means are over all of them.

    `compute` returns floats:
        positive_cosine, negative_cosine: means over the pairs (of positives first over those of an anchor).
        ranked_first: the share of the anchors whose most similar candidate is a positive.
        non_optimal: the share of the anchors whose positive cosine is below 0.95.
        local_temperature: the mean of (1 - c^2) / 2 over the positives.
        scale/NAME: the gradient scale, for the schemes "free", "tau=0.05", ...
        vanished/NAME: the share of the non-optimal anchors whose scale is below 1 % of that at chance: in a
            trained model, what having learned looks like.
        hardest/NAME: the share of the negatives' gradient that is spent on the hardest 1 % of them.

    Args:
        taus: the temperatures to compare with free.
        kwargs: those of `torchmetrics.Metric`.

    Shape:
        first, second: [N, D]; labels: [N] integers. An anchor without a positive or a negative is passed
            over, and so is a batch of one row.

    Examples:
        >>> metric = ContrastiveDiagnostics(taus=[0.05])
        >>> for step in range(3):
        ...     metric.update(torch.eye(4, 8), torch.eye(4, 8) + 0.5 * torch.eye(4, 8).roll(1, 1))
        >>> values = metric.compute()
        >>> round(values["vanished/free"], 2), round(values["vanished/tau=0.05"], 2)
        (0.0, 1.0)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    anchors: Tensor
    negatives: Tensor
    positive_sum: Tensor
    negative_sum: Tensor
    local_sum: Tensor
    first_sum: Tensor
    non_optimal_sum: Tensor
    scale_sum: Tensor
    vanished_sum: Tensor
    hardest_sum: Tensor

    def __init__(self, taus: Sequence[float] = TAUS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schemes = schemes(taus)
        for name in ("anchors", "negatives"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")
        # In float32 whatever the default is: sums of many anchors stand still in bfloat16.
        for name in ("positive_sum", "negative_sum", "local_sum", "first_sum", "non_optimal_sum"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float32), dist_reduce_fx="sum")
        for name in ("scale_sum", "vanished_sum", "hardest_sum"):
            zeros = torch.zeros(len(self.schemes), dtype=torch.float32)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, first: Tensor, second: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Take in a batch of pairs, or of rows with labels."""
        groups = _groups(first, second, labels)
        sizes = groups.bincount()
        rows = (sizes[groups] > (second is None)).nonzero().squeeze(1)
        if len(sizes) < 2 or len(rows) == 0:
            return
        for block in blocks(first, second, groups, rows):
            found = measure(self.schemes.values(), block)
            non_optimal = found.cosine < OPTIMAL_COSINE
            self.anchors += len(found.cosine)
            self.negatives += found.negatives.sum()
            self.positive_sum += found.cosine.sum()
            # The columns of the anchor's own group hold -1 among the negatives.
            self.negative_sum += (block.negative.sum(1) + len(first) - block.negatives).sum()
            self.first_sum += found.first.sum()
            self.local_sum += found.local.sum()
            # No comparison is true for NaN: keep it, since a share of 0 would look like a good one.
            self.non_optimal_sum += non_optimal.float().masked_fill(found.cosine.isnan(), torch.nan).sum()
            self.scale_sum += found.scale.sum(1)
            self.vanished_sum += (non_optimal & (found.scale < VANISHED_SHARE * found.chance)).sum(1)
            self.hardest_sum += found.hardest.sum(1)

    def compute(self) -> dict[str, float]:
        """The means over everything seen since the last reset; NaN before anything was."""
        values = {
            "positive_cosine": self.positive_sum / self.anchors,
            "negative_cosine": self.negative_sum / self.negatives,
            "ranked_first": self.first_sum / self.anchors,
            "non_optimal": self.non_optimal_sum / self.anchors,
            "local_temperature": self.local_sum / self.anchors,
        }
        some = self.non_optimal_sum.clamp(min=(self.anchors > 0).to(self.non_optimal_sum))
        for number, name in enumerate(self.schemes):
            values[f"scale/{name}"] = self.scale_sum[number] / self.anchors
            values[f"vanished/{name}"] = self.vanished_sum[number] / some
            values[f"hardest/{name}"] = self.hardest_sum[number] / self.anchors
        return {name: value.item() for name, value in values.items()}


def _groups(first: Tensor, second: Tensor | None, labels: Tensor | None) -> Tensor:
    """Number the groups of rows that are each other's positives from 0 on."""
    for name, x in (("first", first), ("second", second), ("labels", labels)):
        if not isinstance(x, Tensor) and (x is not None or name == "first"):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}.")
    if first.ndim != 2:
        raise ValueError(f"first must be [N, D], got {tuple(first.shape)}")
    if second is not None and first.shape != second.shape:
        raise ValueError(
            f"first and second must both be [N, D], got {tuple(first.shape)} and {tuple(second.shape)}"
        )
    if labels is None:
        if second is None:
            raise ValueError("second or labels must be given: without them no row has a positive")
        return torch.arange(len(first), device=first.device)
    if labels.shape != first.shape[:1] or labels.is_floating_point() or labels.is_complex():
        got = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ValueError(f"labels must be {len(first)} integers, one a row, got {got}")
    groups: Tensor = torch.unique(labels.to(first.device), return_inverse=True)[1]
    return groups
