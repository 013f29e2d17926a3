"""The operator that torch sees: a forward and a backward, opaque to torch.compile.

Compiled code calls two custom operators. Plain code calls the same two functions through an
autograd.Function, which costs the host a quarter of the time: at small N that is what a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from taufree.backends.autograd import Final, apply
from taufree.backends.fused.row_passes import SCALE, Mode, Upstream
from taufree.backends.fused.step import Evaluation, share_of
from taufree.backends.fused.tile_passes import library_precision

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _at_home(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """With the device of the first tensor as the current one: Triton launches there."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with torch.cuda.device_of(args[0]):  # type: ignore[no-untyped-call]
            return function(*args, **kwargs)

    return call


@_at_home
def _forward(
    anchors: Tensor,
    keys: Tensor | None,
    queue: Tensor | None,
    extra: Tensor | None,
    scale: Tensor,
    groups: Tensor | None,
    count: Tensor | None,
    shift: int,
    in_batch: bool,
    symmetric: bool,
    kind: int,
    delta: float,
    weight: float,
) -> tuple[Tensor, list[Tensor]]:
    """``weight`` times the losses [N]; for the backward: normalisers, positives, each input's unit rows.

    ``extra`` [N] is a sum of weights (its logarithm unless ODDS) that joins the anchors' negatives.
    ``groups`` [N] are ids, or labels if ``count`` [N] gives the positives that each anchor has.
    """
    found = Evaluation(
        anchors, keys, queue, scale, groups, count, shift, in_batch, symmetric, kind, delta
    )  # fmt: skip
    found.sums()
    loss = found.close(extra, weight)
    return loss, found.state()


def _fake_forward(
    anchors: Tensor, keys: Tensor | None, queue: Tensor | None, *_: Any
) -> tuple[Tensor, list[Tensor]]:
    n, mode = anchors.shape[0], Mode.of(anchors, keys, queue)
    state = [anchors.new_empty(2, n, dtype=torch.float32), anchors.new_empty(3, n, dtype=torch.float64)]
    for x in (anchors, keys, queue):
        if x is not None:
            width = -(-x.shape[1] // 64) * 64 * (2 if mode.split else 1)
            state += [x.new_empty(x.shape[0], width, dtype=mode.dtype)]
            state += [x.new_empty(5, x.shape[0], dtype=torch.float32)]
    return anchors.new_empty(n, dtype=torch.float32), state


@_at_home
def _backward(
    upstream: Tensor,
    state: list[Tensor],
    anchors: Tensor,
    keys: Tensor | None,
    queue: Tensor | None,
    scale: Tensor,
    groups: Tensor | None,
    count: Tensor | None,
    shift: int,
    in_batch: bool,
    symmetric: bool,
    kind: int,
    delta: float,
    weight: float,
    wanted: list[bool],
) -> list[Tensor]:
    """The ``wanted`` ones of the gradients of anchors, keys, queue and scale.

    ``upstream`` is the gradient of each of the forward's losses [N], or a scalar for all.
    """
    found = Evaluation(
        anchors, keys, queue, scale, groups, count, shift, in_batch, symmetric, kind, delta, state
    )  # fmt: skip
    outer = Upstream(upstream.contiguous(), weight)
    with library_precision(found.mode):
        found.pull_blocks(outer, wanted)
        return found.finish(outer, wanted)


def _fake_backward(
    upstream: Tensor, state: list[Tensor], anchors: Tensor, keys: Tensor | None, queue: Tensor | None,
    scale: Tensor, *rest: Any,
) -> list[Tensor]:  # fmt: skip
    inputs = (anchors, keys, queue, scale)
    return [torch.empty_like(x) for x, want in zip(inputs, rest[-1], strict=True) if want and x is not None]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    *tensors, ctx.shift, ctx.in_batch, ctx.symmetric, ctx.kind, ctx.delta, ctx.weight = inputs
    ctx.save_for_backward(*tensors, *output[1])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, upstream: Tensor | None, needs: Sequence[bool], backward: Callable[..., list[Tensor]]
) -> tuple[Tensor | None, ...]:
    """The gradients of the forward's arguments that need one."""
    if upstream is None:
        return (None,) * 13
    anchors, keys, queue, extra, scale, groups, count, *state = ctx.saved_tensors
    wanted = [needs[0], needs[1], needs[2], needs[4] and ctx.kind == SCALE]
    gradients = backward(
        upstream, state, anchors, keys, queue, scale, groups, count, ctx.shift, ctx.in_batch, ctx.symmetric,
        ctx.kind, ctx.delta, ctx.weight, wanted,
    )  # fmt: skip
    found = iter(gradients)
    of_anchors, of_keys, of_queue, of_scale = (next(found) if want else None for want in wanted)
    of_extra = None
    if extra is not None and needs[3]:
        of_extra = ctx.weight * upstream * share_of(extra, state[0][0], ctx.kind, ctx.delta)
    return (of_anchors, of_keys, of_queue, of_extra, of_scale, *(None,) * 8)


def _refuse(ctx: Any, *_: Any) -> None:
    raise RuntimeError('The triton backend has no second derivative; use backend="reference".')


contrast_backward = torch.library.custom_op("taufree::contrast_backward", _backward, mutates_args=())
contrast_backward.register_fake(_fake_backward)
contrast_backward.register_autograd(_refuse)
contrast = torch.library.custom_op("taufree::contrast", _forward, mutates_args=())
contrast.register_fake(_fake_forward)
contrast.register_autograd(
    lambda ctx, upstream, _: _differentiate(ctx, upstream, ctx.needs_input_grad, contrast_backward),
    setup_context=_setup,
)


class _Contrast(torch.autograd.Function):
    """The first argument, ``weights``, asks for the weighted sum of the losses; a number is all weights."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor | float | None, *inputs: Any) -> Tensor:
        inputs = (*inputs, weights if isinstance(weights, float) else 1.0)
        output = _forward(*inputs)
        _setup(ctx, inputs, output)
        ctx.weights = weights
        if weights is None:
            return output[0]
        return output[0].sum() if isinstance(weights, float) else (output[0] * weights).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        twice = torch.is_grad_enabled()  # create_graph=True
        with torch.no_grad():
            each = upstream
            if upstream is not None and isinstance(ctx.weights, Tensor):
                each = upstream * ctx.weights
            gradients = _differentiate(ctx, each, ctx.needs_input_grad[1:], _backward)
        if twice:
            inputs = [t for t in (upstream, *ctx.saved_tensors[:5]) if t is not None]
            gradients = tuple(None if g is None else Final.apply("triton", g, *inputs) for g in gradients)
        return (None, *gradients[:-1])


def loss(weights: Tensor | float | None, *arguments: Any) -> Tensor:
    """The weighted sum of the losses, or each loss [N]; further arguments are those of :func:`_forward`."""
    if not torch.compiler.is_compiling():
        result: Tensor = apply(_Contrast, "triton", weights, *arguments)
        return result
    losses: Tensor = contrast(*arguments, 1.0)[0]
    return losses if weights is None else (losses * weights).sum()
