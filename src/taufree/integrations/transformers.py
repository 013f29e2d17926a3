"""A contrastive loss for the Hugging Face ``Trainer``: its ``compute_loss_func``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from taufree.checks import check_alike
from taufree.losses import InfoNCE, NTXent, SupCon


class ContrastiveLoss(nn.Module):
    """``Trainer(..., compute_loss_func=ContrastiveLoss(InfoNCE(link="fitted"), "query", "key"))``.

    With a ``compute_loss_func`` the Trainer does not divide by the number of accumulated batches. It gives
    instead the number of items, labels that are not -100, in all of them. So batch k with n_k items counts
    with its share of them,

        L = sum_k L_k n_k / sum_m n_m,

    for any sizes, the last incomplete group of an epoch included. Each batch contrasts with itself
    alone: accumulation does not add negatives, ``taufree.large_batch.chunked_backward`` does.

    The Trainer trains and saves the model's parameters alone. What a link learns or measures is among them if
    the model holds the loss, ``model.loss = loss``. Over several ranks what is learned so needs
    ``ddp_find_unused_parameters=False``: DDP would not find it in the model's forward.

    Args:
        loss: a loss with the reduction "mean". ``taufree.SupCon`` gets the labels as well. None is
            ``InfoNCE(link="fitted")``, for outputs that are compared with each other in use, as in a search.
        names: the model's outputs that the loss takes, in its order, as names or (of a tuple) positions.

    Shape:
        The outputs are [N, D]. ``labels`` must be in every batch, with as many items for each row, usually
        [N]: class labels, ids, or just zeros.

    Examples:
        >>> function = ContrastiveLoss(InfoNCE(symmetric=True), "image_embeds", "text_embeds")
        >>> outputs = {"image_embeds": torch.eye(4), "text_embeds": torch.eye(4)}
        >>> half = function(outputs, torch.zeros(4), num_items_in_batch=8)
        >>> torch.equal(half, InfoNCE(symmetric=True)(*outputs.values()) / 2)
        True
    """

    def __init__(self, loss: InfoNCE | NTXent | SupCon | None, *names: str | int) -> None:
        super().__init__()
        loss = InfoNCE(link="fitted") if loss is None else loss
        if not isinstance(loss, InfoNCE | NTXent | SupCon):
            raise TypeError(
                f"loss must be an InfoNCE, NTXent or SupCon of taufree, got {type(loss).__name__}."
            )
        if loss.reduction != "mean":
            raise ValueError(f'loss must have reduction="mean", got {loss.reduction!r}.')
        self.views = 1 if isinstance(loss, SupCon) else 2
        if len(names) < self.views or (self.views == 1 and len(names) > 1):
            kind = type(loss).__name__
            raise ValueError(f"names must name the {self.views} outputs [N, D] of {kind}, got {len(names)}.")
        self.loss = loss
        self.names = names

    def forward(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        rows = [self._output(outputs, name) for name in self.names]
        views = zip(self.names[: self.views], rows[: self.views], strict=True)
        check_alike(**{f"output {name!r}": x for name, x in views})
        if isinstance(self.loss, SupCon):
            rows.append(_needed(labels))
        loss: Tensor = self.loss(*rows)
        if num_items_in_batch is None and not torch.is_grad_enabled():
            return loss  # an evaluation: the Trainer takes the mean over the batches itself
        if num_items_in_batch is None:
            _needed(labels)
            raise ValueError(
                "num_items_in_batch must be the number of items in the accumulated batches, got None."
            )
        return loss * (_needed(labels).ne(-100).sum() / num_items_in_batch)

    def _output(self, outputs: Any, name: str | int) -> Tensor:
        try:
            found: Tensor = outputs[name]
        except (KeyError, IndexError, TypeError):
            there = ", ".join(outputs) if isinstance(outputs, Mapping) else f"{len(outputs)} values"
            raise ValueError(f"names must be among the model's outputs ({there}), got {name!r}.") from None
        return found


def _needed(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("labels must be in every batch, zeros [N] will do, since the Trainer counts them.")
    return labels
