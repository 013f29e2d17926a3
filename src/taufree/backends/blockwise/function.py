"""The loss in torch's graph: the gradient of a scalar loss is computed in the forward pass already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from taufree.backends import reference
from taufree.backends.autograd import ByReference, transforms_named, uncompiled
from taufree.backends.blockwise import engine, one_tile
from taufree.backends.blockwise.learned import check_unchanged, learned, values_of
from taufree.backends.numerics import full_precision
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link, from_formula

INTEGER_FIELDS = ("ids", "labels", "key_labels", "queue_ids")  # of a contrast
SAVED_FIELDS = ("anchors", "keys", "queue", "own_negatives", *INTEGER_FIELDS)


@uncompiled
def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    with transforms_named("blockwise"):
        link, params, connected = learned(link, contrast.anchors)
        inputs = (*contrast.inputs, *connected)
        if not torch.is_grad_enabled():  # or the forward would compute a gradient that nobody asks for
            inputs = tuple(None if x is None else x.detach() for x in inputs)
        result: Tensor = _Blockwise.apply(contrast, link, params, weights, *inputs)
        return result


def evaluate(
    contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], params: Sequence[Tensor],
    wanted: Sequence[bool], weights: Tensor | float | None,
) -> tuple[Tensor, list[Tensor | None]]:  # fmt: skip
    """The losses [N], and the inputs' gradients of sum(weights * losses) unless ``weights`` is None."""
    if not link.per_anchor and one_tile.fits(contrast, link, engine.TILE_SIZE**2):
        with full_precision(contrast.anchors.device):
            found = one_tile.run(contrast, link, inputs, params, weights)
        if found is not None:
            return found
    if isinstance(weights, float):
        device = contrast.anchors.device
        weights = torch.full((contrast.n,), weights, dtype=wide_dtype(device), device=device)
    return engine.BlockwiseEngine(contrast, link, inputs, params, wanted).run(weights)


class _Blockwise(torch.autograd.Function):
    """Inputs from the fifth on: anchors, keys, queue, own negatives, what the link learns."""

    @staticmethod
    def forward(
        ctx: Any, contrast: Contrast, link: Link, params: list[Tensor], weights: Tensor | float | None,
        *inputs: Tensor | None,
    ) -> Tensor:  # fmt: skip
        # Not the parameters of a link: the next loss may bring them back into range in place.
        scales = inputs[4:] if link.formula is not None else ()
        integers = [getattr(contrast, name) for name in INTEGER_FIELDS]
        ctx.save_for_backward(*integers, *inputs[:4], *scales)
        without: dict[str, Any] = dict.fromkeys(SAVED_FIELDS)  # saved above, freed after the backward
        ctx.contrast = replace(contrast, **without, tracker=None, matrix=None)
        ctx.link, ctx.weights = link, weights
        ctx.params, ctx.values = params, values_of(params)
        ctx.wanted = ctx.needs_input_grad[4:]
        losses, ctx.gradients = evaluate(
            contrast, link, inputs, params, ctx.wanted, weights if any(ctx.wanted) else None
        )
        if weights is not None:
            losses = losses.sum() * weights if isinstance(weights, float) else (losses * weights).sum()
        return losses.to(result_dtype(*inputs[:4]))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        count = len(INTEGER_FIELDS)
        integers, inputs = ctx.saved_tensors[:count], list(ctx.saved_tensors[count:])
        inputs += ctx.params if ctx.link.formula is None else []
        gradients, ctx.gradients = ctx.gradients, None  # a copy would be one more tensor of each input's size
        with torch.no_grad():  # with create_graph=True the upstream gradient may have a graph of its own
            if ctx.weights is None or gradients is None:  # computed now, or once more after retain_graph=True
                check_unchanged(ctx.link, ctx.params, ctx.values)
                contrast = _restored(ctx.contrast, inputs, integers)
                grad = upstream if ctx.weights is None else (ctx.weights * upstream).expand(contrast.n)
                _, gradients = evaluate(contrast, ctx.link, inputs, ctx.params, ctx.wanted, grad)
            else:
                for gradient, wanted in zip(gradients, ctx.wanted, strict=True):
                    if gradient is not None and wanted:
                        gradient.mul_(upstream.to(gradient.device))  # a link's parameter may be on another
            cast = [
                g.to(x.dtype) if wanted and g is not None else None
                for g, x, wanted in zip(gradients, inputs, ctx.wanted, strict=True)
            ]
        if torch.is_grad_enabled():  # create_graph=True
            views = len(inputs) if ctx.link.formula is not None else 4
            of = _reference(ctx, integers)
            cast = ByReference.apply(of, upstream, len(inputs), views, *inputs, *cast)
        return (None, None, None, None, *cast)


def _restored(contrast: Contrast, inputs: Sequence[Tensor | None], integers: Sequence[Any]) -> Contrast:
    """With what autograd has saved of it."""
    return replace(contrast, **dict(zip(SAVED_FIELDS, [*inputs[:4], *integers], strict=True)))


def _reference(ctx: Any, integers: Sequence[Tensor | None]) -> Callable[..., Tensor]:
    """The same loss as a function of its inputs, which torch can differentiate as often as it likes."""
    kept, link, params, weights = ctx.contrast, ctx.link, ctx.params, ctx.weights

    def loss(*inputs: Tensor | None) -> Tensor:
        contrast = _restored(kept, inputs, integers)
        of_inputs = link
        if params and link.formula is not None and (scale := inputs[4]) is not None:
            of_inputs = from_formula(link.formula, scale)  # the copy of the scale is of no graph
        return reference.loss(contrast, of_inputs, weights)

    return loss
