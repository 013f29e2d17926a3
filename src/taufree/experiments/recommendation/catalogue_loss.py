"""The cross-entropy over a whole catalogue of items, without a score for each history and item in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_SCORES = 2**26


def catalogue_loss(wanted: Tensor, items: Tensor, targets: Tensor, max_scores: int = MAX_SCORES) -> Tensor:
    """``cross_entropy(wanted @ items.T, targets)``: the mean of -log softmax(w e) at the target.

    The gradient is computed along with the loss, for some histories at a time, so that the scores are read
    and written as seldom as can be. It can be differentiated once.

    Shape:
        wanted: [B, D]; items: [M, D], of any dtype: the wider of the two is computed in. targets: [B].

    >>> wanted, items = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> round(catalogue_loss(wanted, items, torch.tensor([0, 1])).item(), 4)
    0.6348
    """
    dtype = torch.promote_types(wanted.dtype, items.dtype)
    pieces = -(-len(wanted) * len(items) // max_scores)
    at_once = -(-len(wanted) // pieces)  # alike, so that no small one is left over
    with torch.autocast(wanted.device.type, enabled=False):
        loss: Tensor = _CatalogueLoss.apply(wanted.to(dtype), items.to(dtype), targets, at_once)
    return loss


class _CatalogueLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wanted: Tensor, items: Tensor, targets: Tensor, at_once: int) -> Tensor:
        total = wanted.new_zeros(())
        slopes, item_slopes = [], torch.zeros_like(items)
        chunks = (torch.split(x, at_once) for x in (wanted, targets[:, None]))
        for some, target in zip(*chunks, strict=True):
            logs = (some @ items.T).log_softmax(1)
            total -= logs.gather(1, target).sum()
            slope = logs.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=logs.dtype))
            slopes.append(slope @ items)
            item_slopes.addmm_(slope.T, some)
        ctx.save_for_backward(torch.cat(slopes), item_slopes)
        return total / len(wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, None]:
        slopes, item_slopes = ctx.saved_tensors
        scale = gradients[0] / len(slopes)
        return slopes * scale, item_slopes * scale, None, None
