"""The loss in torch's graph: the gradient of a scalar loss is computed in the forward pass already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from taufree.backends import reference
from taufree.backends.autograd import ByReference, transforms_named, uncompiled
from taufree.backends.blockwise import engine
from taufree.backends.blockwise.learned import check_unchanged, learned, values_of
from taufree.backends.blockwise.one_tile import OneTile, fits, one_tile
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link, from_formula

INTEGER_FIELDS = ("ids", "labels", "key_labels", "queue_ids")  # of a contrast
SAVED_FIELDS = ("anchors", "keys", "queue", "own_negatives", *INTEGER_FIELDS)
WITHOUT_SAVED: dict[str, Any] = dict.fromkeys((*SAVED_FIELDS, "tracker", "matrix"))


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
    """The losses [N], and the inputs' gradients of sum(weights * losses) unless ``weights`` is None.

    To be called without a graph.
    """
    tile = _one_tile(contrast, link, params)
    if tile is not None:
        return tile.losses, [] if weights is None else tile.gradients(weights)
    return _by_engine(contrast, link, inputs, params, wanted, weights)


def _one_tile(contrast: Contrast, link: Link, params: Sequence[Tensor]) -> OneTile | None:
    # Of two views the engine computes little more than half of a matrix of several tiles.
    tiles = 1 if contrast.keys is None and not contrast.matrix else 4
    if link.per_anchor or contrast.matrix is False or not fits(contrast, link, tiles * engine.TILE_SIZE**2):
        return None
    return one_tile(contrast, link, params)


def _by_engine(
    contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], params: Sequence[Tensor],
    wanted: Sequence[bool], weights: Tensor | float | None,
) -> tuple[Tensor, list[Tensor | None]]:  # fmt: skip
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
        scales = inputs[4:] if params and link.formula is not None else ()
        integers = [getattr(contrast, name) for name in INTEGER_FIELDS]
        ctx.save_for_backward(*integers, *inputs[:4], *scales)
        ctx.contrast = contrast.but(**WITHOUT_SAVED)  # those are freed after the backward
        ctx.link, ctx.weights = link, weights
        ctx.params, ctx.values = params, values_of(params)
        ctx.wanted = ctx.needs_input_grad[4:]
        ctx.gradients = ctx.tile = None
        asked, tile = any(ctx.wanted), _one_tile(contrast, link, params)
        if tile is None:
            losses, ctx.gradients = _by_engine(
                contrast, link, inputs, params, ctx.wanted, weights if asked else None
            )
        else:
            losses = tile.losses
            if asked and weights is None:
                ctx.tile = tile  # for the backward, which brings the weights
            elif asked and weights is not None:
                ctx.gradients = tile.gradients(weights)
        if weights is not None:
            losses = losses.sum() * weights if isinstance(weights, float) else (losses * weights).sum()
        return losses.to(result_dtype(*inputs[:4]))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved, count = ctx.saved_tensors, len(INTEGER_FIELDS)
        integers, inputs = saved[:count], list(saved[count:])
        if ctx.params and ctx.link.formula is None:
            inputs += ctx.params
        # Not again: a copy would be one more tensor of each input's size, and a tile is consumed.
        gradients, tile, ctx.gradients, ctx.tile = ctx.gradients, ctx.tile, None, None
        with torch.no_grad():  # with create_graph=True the upstream gradient may have a graph of its own
            if ctx.weights is None or gradients is None:  # computed now, or once more after retain_graph=True
                check_unchanged(ctx.link, ctx.params, ctx.values)
                if tile is not None:
                    gradients = tile.gradients(upstream)
                else:
                    contrast = _restored(ctx.contrast, inputs, integers)
                    grad = upstream if ctx.weights is None else (ctx.weights * upstream).expand(contrast.n)
                    _, gradients = evaluate(contrast, ctx.link, inputs, ctx.params, ctx.wanted, grad)
            else:
                for gradient, wanted in zip(gradients, ctx.wanted, strict=True):
                    if gradient is not None and wanted:
                        # A link's parameter may be on another device.
                        alike = gradient.device == upstream.device
                        gradient.mul_(upstream if alike else upstream.to(gradient.device))
            cast = [
                _own(g, x.dtype) if wanted and g is not None else None
                for g, x, wanted in zip(gradients, inputs, ctx.wanted, strict=True)
            ]
        if torch.is_grad_enabled():  # create_graph=True
            views = len(inputs) if ctx.link.formula is not None else 4
            of = _reference(ctx, integers)
            cast = ByReference.apply(of, upstream, len(inputs), views, *inputs, *cast)
        return (None, None, None, None, *cast)


def _own(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """In that dtype, with a memory of its own: one tile has the gradients of all inputs in one tensor."""
    if gradient.dtype != dtype:
        return gradient.to(dtype)
    return gradient.clone() if gradient._is_view() else gradient


def _restored(contrast: Contrast, inputs: Sequence[Tensor | None], integers: Sequence[Any]) -> Contrast:
    """With what autograd has saved of it."""
    return contrast.but(**dict(zip(SAVED_FIELDS, [*inputs[:4], *integers], strict=True)))


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
