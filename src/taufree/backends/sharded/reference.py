"""The reference over all ranks: every rank gathers the whole batch and computes all of it, densely.

For small batches, and where a second derivative is needed; :mod:`.step` shares the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from taufree.backends import reference
from taufree.backends.measure import ContrastMeasure
from taufree.contrast import Contrast, balance
from taufree.distributed import Ranks
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link, from_formula
from taufree.reduction import anchor_weights


def loss(
    contrast: Contrast, link: Link, given: Tensor | None, reduction: str, ranks: Ranks, sizes: Sequence[int],
    queues: Sequence[int], key_sizes: Sequence[int],
) -> Tensor:  # fmt: skip
    """The loss over all ranks; own rows' losses for "none". ``given`` are all ranks' weights."""

    def gathered(x: Tensor | None, sizes: Sequence[int] = sizes) -> Tensor | None:
        if x is None or x.dtype.is_floating_point:
            return None if x is None else _GatherRows.apply(x, ranks, sizes)
        return ranks.gather(x.long(), sizes, "the ids or labels of all ranks").wait()

    order = torch.arange(sum(sizes), device=contrast.anchors.device)
    if contrast.shift:  # first views before second views, as one process has them
        halves = [rows.chunk(2) for rows in torch.split(order, list(sizes))]
        order = torch.cat([half for pair in zip(*halves, strict=True) for half in pair])
    anchors, ids = gathered(contrast.anchors), gathered(contrast.ids)
    assert anchors is not None
    whole = replace(
        contrast,
        anchors=anchors[order],
        keys=gathered(contrast.keys, key_sizes),
        shift=sum(sizes) // 2 if contrast.shift else 0,
        queue=gathered(contrast.queue, queues),
        own_negatives=gathered(contrast.own_negatives),
        ids=None if ids is None else ids[order],
        labels=gathered(contrast.labels),
        key_labels=gathered(contrast.key_labels, key_sizes),
        queue_ids=gathered(contrast.queue_ids, queues),
        offsets=None if contrast.offsets is None else _offsets(contrast.offsets, ranks, sizes)[:, order],
    )
    whole = balance(whole, whole.m, whole.key_groups, sum(queues), whole.queue_ids)
    link = link.prepare(ContrastMeasure(whole, link))
    if link.per_anchor and link.formula is not None:
        scale = torch.as_tensor(link.formula_scale())
        parts = [gathered(part) for part in torch.split(scale, contrast.n)]
        link = from_formula(link.formula, torch.cat([part[order] for part in parts if part is not None]))
    losses = reference.anchor_losses(whole, link)
    positives = None if whole.labels is None else whole.positive_count()
    weights = anchor_weights(reduction, whole.n, positives, None if given is None else given[order])
    if weights is None:
        own = ranks.span(ranks.rank, sizes)
        losses = losses[order.argsort()[own.start : own.stop]]
    else:
        losses = (losses * weights).sum()
    return losses.to(result_dtype(*contrast.inputs))


def _offsets(own: Tensor, ranks: Ranks, sizes: Sequence[int]) -> Tensor:
    return ranks.gather(own.T, sizes, "the offsets of all ranks").wait().T


class _GatherRows(torch.autograd.Function):
    """All ranks' rows; the gradient is the ranks' sum for own rows. Any number of times differentiable, by
    torch.func too."""

    @staticmethod
    def forward(x: Tensor, ranks: Ranks, sizes: Sequence[int]) -> Tensor:
        return ranks.gather(x, sizes, "the embeddings of all ranks").wait()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.ranks, ctx.sizes = inputs

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return _ScatterRows.apply(upstream, ctx.ranks, ctx.sizes), None, None


class _ScatterRows(torch.autograd.Function):
    setup_context = _GatherRows.setup_context

    @staticmethod
    def forward(x: Tensor, ranks: Ranks, sizes: Sequence[int]) -> Tensor:
        wide = x.to(wide_dtype(x.device))
        return ranks.scatter(wide, sizes, "the gradients from all ranks").to(x.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return _GatherRows.apply(upstream, ctx.ranks, ctx.sizes), None, None
