"""How well positives are found, without torchmetrics; ``taufree.diagnostics.metric`` has a metric of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from taufree.functional import info_nce, nt_xent, sup_con
from taufree.stats import Stats, Tracker

__all__ = ["Stats", "contrastive_accuracy"]

_LOSSES = (info_nce, nt_xent, sup_con)


@torch.no_grad()
def contrastive_accuracy(loss: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
    """The share of the anchors whose most similar candidate is a positive, at linear memory.

    Who is compared with whom says the loss; its link and weights make no difference. While training a module
    with ``track=True`` has the same number in its ``stats``, at no second pass over the pairs. See ``Stats``
    for ties and for anchors that are passed over.

    Args:
        loss: ``taufree.info_nce``, ``taufree.nt_xent`` or ``taufree.sup_con``.
        tensors, options: as the loss takes them: embeddings, then labels or keys; ``ids``, ``symmetric``,
            ``gather_distributed``.

    Shape:
        The result is a scalar on the device of the embeddings.

    Examples:
        >>> from taufree import info_nce, nt_xent, sup_con
        >>> query, key = torch.eye(3), torch.tensor([[1.0, 0.2, 0.0], [0.0, 1.0, 0.2], [0.5, 0.5, 0.1]])
        >>> round(contrastive_accuracy(info_nce, query, key).item(), 4)  # the third query is nearer to key 2
        0.6667
        >>> contrastive_accuracy(sup_con, key, torch.tensor([0, 1, 0])).item()
        1.0
        >>> contrastive_accuracy(nt_xent, torch.ones(3, 2), torch.ones(3, 2)).item()  # all the same
        0.0
    """
    if loss not in _LOSSES:
        got = getattr(loss, "__name__", type(loss).__name__)
        raise TypeError(f"loss must be taufree.info_nce, taufree.nt_xent or taufree.sup_con, got {got}.")
    tracker = Tracker()
    value = loss(*tensors, **options, _tracker=tracker)
    found = tracker.stats(torch.nan, 1, value)
    assert found is not None
    return found.accuracy
