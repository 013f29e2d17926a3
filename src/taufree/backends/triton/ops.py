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

from taufree.backends.triton.launch import Block, add_gradients, add_sums, library_precision
from taufree.backends.triton.rows import (
    ODDS,
    SCALE,
    Link,
    Mode,
    Rows,
    Upstream,
    close,
    close_labelled,
    fill,
    fill_pairs,
    finish,
    finish_pairs,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _blocks(
    u: Rows, v: Rows, queue: Rows | None, groups: Tensor | None, count: Tensor | None, shift: int,
    in_batch: bool, symmetric: bool,
) -> list[Block]:  # fmt: skip
    """The in-batch pairs, then the queue's."""
    labels = count is not None
    found = [Block(u, v, groups, labels, shift, cols=symmetric, positives=not labels)] if in_batch else []
    if queue is not None:
        found.append(Block(u, queue, None, labels=False, shift=0, cols=False, positives=False))
    return found


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
    mode, link = Mode.of(anchors, keys, queue), Link(kind, scale, delta)
    u = Rows(anchors, mode)
    v = u if keys is None else Rows(keys, mode)
    candidates = None if queue is None else Rows(queue, mode)
    if candidates is not None:
        fill(candidates, mode)
    if count is None:
        positive, (rows, cols) = fill_pairs(u, v, mode, shift, kind)
    else:
        fill(u, mode)
        rows = cols = anchors.new_full((3, u.n), 0.0 if kind == ODDS else -torch.inf, dtype=torch.float32)
        rows[2].zero_()
    for block in _blocks(u, v, candidates, groups, count, shift, in_batch, symmetric):
        add_sums(block, mode, link, rows, rows if block.alone else cols)
    if count is not None:
        loss, z, positive = close_labelled(rows, count, link)
        loss *= weight
    else:
        if extra is not None:
            rows = rows + extra if kind == ODDS else torch.logaddexp(rows.to(extra.dtype), extra)
        loss, z = close(positive, rows, cols if symmetric else None, link, weight)
    kept = [u] + ([] if v is u else [v]) + ([] if candidates is None else [candidates])
    return loss, [z, positive, *(t for x in kept for t in (x.unit, x.stats))]


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
    mode, link = Mode.of(anchors, keys, queue), Link(kind, scale, delta)
    z, positive, *made = state
    outer = Upstream(upstream.contiguous(), weight)
    units = [None if x is None else Rows(x, mode, (made.pop(0), made.pop(0))) for x in (anchors, keys, queue)]
    u, v, candidates = units[0], units[1] or units[0], units[2]
    assert u is not None
    assert v is not None
    with library_precision(mode):
        blocks = _blocks(u, v, candidates, groups, count, shift, in_batch, symmetric)
        fresh = (bool(blocks) and not blocks[0].alone, in_batch, True)  # the first product need not add
        grads = [
            (anchors.new_empty if new else anchors.new_zeros)((x.n, x.pad), dtype=torch.float32)
            if x is not None and want
            else None
            for x, want, new in zip(units, wanted, fresh, strict=False)
        ]
        learned = anchors.new_zeros((), dtype=torch.float32) if wanted[3] else None
        for block in blocks:
            own = grads[2] if block.v is candidates else grads[0] if block.alone else grads[1]
            sides = (z[0], z[0] if block.alone else z[1], positive)
            new = (fresh[0] and block is blocks[0], not block.alone)
            add_gradients(block, mode, link, outer, sides, (grads[0], own), new, learned)
        results: list[Tensor] = []
        paired = count is None
        roles = [(paired, paired and v is u), (False, paired), (False, False)]
        left = list(zip(units, grads, (v, u, candidates), roles, strict=True))
        if v is not u and grads[0] is not None and grads[1] is not None:
            results += finish_pairs(u, grads[0], v, grads[1], outer, positive)
            left = left[2:]
        for x, grad, other, role in left:
            if x is not None and grad is not None and other is not None:
                results.append(finish(x, grad, other, outer, positive, shift, role))
        if learned is not None:  # with the positives', whose pull is dL/dlogit * scale
            gap, rise, pull = positive
            own_part = (upstream * pull * (rise - gap)).sum() * (weight / 2) / scale.double()
            results.append((learned + own_part).to(scale.dtype).reshape(scale.shape))
    return results


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
        z = state[0][0].to(extra.dtype)
        of_extra = (
            ctx.weight * upstream * (z / (2 * (1 + ctx.delta)) if ctx.kind == ODDS else (extra - z).exp())
        )
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
            gradients = tuple(None if g is None else _Final.apply(g, *inputs) for g in gradients)
        return (None, *gradients[:-1])


class _Final(torch.autograd.Function):
    """A gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(_refuse)


def loss(weights: Tensor | float | None, *arguments: Any) -> Tensor:
    """The weighted sum of the losses, or each loss [N]; further arguments are those of :func:`_forward`."""
    if not torch.compiler.is_compiling():
        result: Tensor = _Contrast.apply(weights, *arguments)
        return result
    losses: Tensor = contrast(*arguments, 1.0)[0]
    return losses if weights is None else (losses * weights).sum()
