"""The loss as operators of torch, for compiled and exported code: opaque to both, so that no graph breaks.

Plain code calls :func:`.function.loss` instead, which computes the gradient in its forward. An operator
takes tensors and numbers alone, so that a link must have a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from taufree.backends.autograd import no_second_derivative
from taufree.backends.blockwise.formulas import at_gain_one
from taufree.backends.blockwise.function import evaluate
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Formula, Link, LogOdds, from_formula
from taufree.stats import Tracker

_FIXED = ("ids", "labels", "key_labels", "positives", "queue_ids", "offsets")  # of a contrast, no gradient
_TENSORS = ("anchors", "keys", "queue", "own_negatives", "scale", *_FIXED)
_ARGUMENTS = (
    "Tensor anchors, Tensor? keys, Tensor? queue, Tensor? own_negatives, Tensor scale, Tensor? ids, "
    "Tensor? labels, Tensor? key_labels, Tensor? positives, Tensor? queue_ids, Tensor? offsets, "
    "SymInt shift, bool in_batch, bool symmetric, float hardness, bool decoupled, str kind, "
    "float resolution, bool track"
)
ODDS = "log-odds at gain 1"  # a kind of its own, since a tensor's value is not known to be 1


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss; ``link`` has a formula."""
    formula, scale, device = link.formula, link.formula_scale(), contrast.anchors.device
    assert formula is not None
    kind: str = ODDS if at_gain_one(link) else formula.kind
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=wide_dtype(device), device=device)
    losses: Tensor
    losses, sums = blockwise_losses(
        contrast.anchors,
        contrast.keys,
        contrast.queue,
        contrast.own_negatives,
        scale,
        contrast.ids,
        contrast.labels,
        contrast.key_labels,
        contrast.positives,
        contrast.queue_ids,
        contrast.offsets,
        contrast.shift,
        contrast.in_batch,
        contrast.symmetric,
        contrast.hardness,
        contrast.decoupled,
        kind,
        formula.resolution,
        contrast.tracker is not None,
    )
    if contrast.tracker is not None:
        contrast.tracker.sums = sums
    return losses if weights is None else (losses * weights).sum().to(losses.dtype)


def _call_of(arguments: Sequence[Any]) -> tuple[Contrast, Link, tuple[Tensor | None, ...], list[Tensor]]:
    """The contrast, the link, what may get a gradient, and what the link is differentiated by."""
    anchors, keys, queue, own, scale, *rest = arguments
    shift, in_batch, symmetric, hardness, decoupled, kind, delta, track = rest[len(_FIXED) :]
    contrast = Contrast(
        anchors,
        keys,
        shift,
        in_batch,
        symmetric,
        queue,
        own,
        decoupled=decoupled,
        hardness=hardness,
        tracker=Tracker() if track else None,
        **dict(zip(_FIXED, rest, strict=False)),
    )
    inputs = (anchors, keys, queue, own)
    if kind == ODDS:
        return contrast, LogOdds(resolution=delta), inputs, []
    copied = scale.detach().clone().requires_grad_()
    return contrast, from_formula(Formula(kind, delta), copied), inputs, [copied]


@torch.no_grad()
def _losses(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The losses [N], and what :class:`taufree.stats.Tracker` holds; empty unless it is wanted."""
    contrast, link, inputs, _ = _call_of(arguments)
    losses, _ = evaluate(contrast, link, inputs, [], [False] * 4, None)
    sums = None if contrast.tracker is None else contrast.tracker.sums
    return losses.to(result_dtype(*inputs)), losses.new_empty(0) if sums is None else sums


@torch.no_grad()
def _gradients(upstream: Tensor, wanted: list[bool], *arguments: Any) -> tuple[Tensor, ...]:
    """Of anchors, keys, queue, own negatives and scale; those that are not wanted are empty.

    Each has memory of its own, as torch wants it of an operator's results.
    """
    contrast, link, inputs, params = _call_of(arguments)
    params, contrast = params if wanted[4] else [], replace(contrast, tracker=None)
    _, found = evaluate(contrast, link, inputs, params, [*wanted[:4], *([True] * len(params))], upstream)
    found += [None] * (5 - len(found))
    return tuple(
        g.to(x.dtype, copy=True) if want and g is not None and x is not None else upstream.new_empty(0)
        for g, x, want in zip(found, (*inputs, arguments[4]), wanted, strict=True)
    )


blockwise_losses = torch.library.custom_op(
    "taufree::blockwise_losses", _losses, mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)"
)
blockwise_gradients = torch.library.custom_op(
    "taufree::blockwise_gradients",
    _gradients,
    mutates_args=(),
    schema=f"(Tensor upstream, bool[] wanted, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@blockwise_losses.register_fake
def _fake_losses(*arguments: Any) -> tuple[Tensor, Tensor]:
    anchors: Tensor = arguments[0]
    sums = anchors.new_empty(6 if arguments[-1] else 0, dtype=wide_dtype(anchors.device))
    return anchors.new_empty(anchors.shape[0], dtype=result_dtype(*arguments[:4])), sums


@blockwise_gradients.register_fake
def _fake_gradients(upstream: Tensor, wanted: list[bool], *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format)
        if want and x is not None
        else upstream.new_empty(0)
        for x, want in zip(arguments[:5], wanted, strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[: len(_TENSORS)])
    ctx.options = inputs[len(_TENSORS) :]


def _differentiate(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [
        need and x is not None
        for need, x in zip(ctx.needs_input_grad[:5], ctx.saved_tensors[:5], strict=True)
    ]
    found = blockwise_gradients(upstream, wanted, *ctx.saved_tensors, *ctx.options)
    gradients = [g if want else None for g, want in zip(found, wanted, strict=True)]
    return (*gradients, *([None] * (len(_TENSORS) - 5 + len(ctx.options))))


def _second_derivative(ctx: Any, *_: Any) -> None:
    raise no_second_derivative("blockwise")


blockwise_losses.register_autograd(_differentiate, setup_context=_setup)
blockwise_gradients.register_autograd(_second_derivative)
