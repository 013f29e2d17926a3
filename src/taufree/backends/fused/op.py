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

from taufree.backends.autograd import FirstDerivativeOnly, no_second_derivative, transforms_named
from taufree.backends.fused.arguments import SCALE, TENSOR_COUNT, Arguments, Gradients, Saved
from taufree.backends.fused.row_passes import Mode, Upstream
from taufree.backends.fused.step import FusedStep, own_share
from taufree.backends.fused.tile_passes import library_precision
from taufree.stats import Tracker

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ARGUMENTS = (
    "Tensor anchors, Tensor? keys, Tensor? queue, Tensor? own_sums, Tensor scale, Tensor? groups, "
    "Tensor? key_groups, Tensor? positive_count, Tensor? queue_ids, Tensor? offsets, Tensor? tally, "
    "SymInt shift, bool in_batch, bool symmetric, bool decoupled, int kind, float resolution, float weight, "
    "float hardness"
)
_SAVED = ", ".join(f"Tensor {name}" for name in Saved._fields)


def _on_its_device(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """With the device of the first tensor as the current one, where Triton launches."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with torch.cuda.device_of(args[0]):  # type: ignore[no-untyped-call]
            return function(*args, **kwargs)

    return call


@_on_its_device
def _forward(*flat: Any) -> tuple[Tensor, ...]:
    """The weighted losses [N]; what :class:`taufree.stats.Tracker` holds, empty unless it is wanted; then
    what :class:`Saved` holds."""
    step = FusedStep(Arguments(*flat))
    step.add_sums()
    losses = step.close()
    sums = step.tracked() if step.tallies else losses.new_empty(0, dtype=torch.float64)
    return (losses, sums, *step.saved())


def _fake_forward(*flat: Any) -> tuple[Tensor, ...]:
    arguments = Arguments(*flat)
    inputs, n = (arguments.anchors, arguments.keys, arguments.queue), arguments.anchors.shape[0]
    mode, make = Mode.of(*inputs), arguments.anchors.new_empty
    found = [make(n, dtype=torch.float32), make(0 if arguments.tally is None else 6, dtype=torch.float64)]
    found += [make(2, n, dtype=torch.float32), make(3, n, dtype=torch.float64)]
    for x in inputs:
        found += mode.buffers(arguments.anchors, *((0, 0) if x is None else x.shape))
    return tuple(found)


@_on_its_device
def _backward(upstream: Tensor, wanted: list[bool], *flat: Any) -> tuple[Tensor, ...]:
    """The gradients of anchors, keys, queue and scale; those that are not wanted are empty.

    ``upstream`` is the gradient of each of the forward's losses [N], or a scalar for all.
    """
    saved, arguments = Saved(*flat[: len(Saved._fields)]), Arguments(*flat[len(Saved._fields) :])
    step = FusedStep(arguments, saved)
    outer = Upstream(upstream.contiguous(), arguments.weight)
    with library_precision(step.mode):
        step.add_tile_gradients(outer, wanted)
        found = step.finish(outer, wanted)
    return tuple(arguments.anchors.new_empty(0) if x is None else x for x in found)


def _fake_backward(upstream: Tensor, wanted: list[bool], *flat: Any) -> tuple[Tensor, ...]:
    arguments = Arguments(*flat[len(Saved._fields) :])
    inputs = (arguments.anchors, arguments.keys, arguments.queue, arguments.scale)
    return tuple(
        torch.empty_like(x) if want and x is not None else arguments.anchors.new_empty(0)
        for x, want in zip(inputs, wanted, strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:TENSOR_COUNT], *output[2:])
    ctx.options = inputs[TENSOR_COUNT:]
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, upstream: Tensor | None, needs: Sequence[bool], backward: Callable[..., tuple[Tensor, ...]]
) -> tuple[Tensor | None, ...]:
    """The gradients of the forward's flat arguments that need one."""
    if upstream is None:
        return (None,) * len(Arguments._fields)
    arguments = Arguments(*ctx.saved_tensors[:TENSOR_COUNT], *ctx.options)
    saved = Saved(*ctx.saved_tensors[TENSOR_COUNT:])
    need = dict(zip(Arguments._fields, needs, strict=True))
    wanted = [need["anchors"], need["keys"], need["queue"], need["scale"] and arguments.kind == SCALE]
    found = backward(upstream, wanted, *saved, *arguments)
    gradients = {name: x for name, x, want in zip(Gradients._fields, found, wanted, strict=True) if want}
    if arguments.own_sums is not None and need["own_sums"]:
        gradients["own_sums"] = arguments.weight * upstream * own_share(arguments, saved.normalisers)
    return tuple(gradients.get(name) for name in Arguments._fields)


def _second_derivative(ctx: Any, *_: Any) -> None:
    raise no_second_derivative("triton")


contrast_backward = torch.library.custom_op(
    "taufree::contrast_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor upstream, bool[] wanted, {_SAVED}, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
contrast_backward.register_fake(_fake_backward)
contrast_backward.register_autograd(_second_derivative)
contrast = torch.library.custom_op(
    "taufree::contrast",
    _forward,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> ({', '.join(['Tensor'] * (2 + len(Saved._fields)))})",
)
contrast.register_fake(_fake_forward)
contrast.register_autograd(
    lambda ctx, upstream, *_: _differentiate(ctx, upstream, ctx.needs_input_grad, contrast_backward),
    setup_context=_setup,
)


class _Contrast(torch.autograd.Function):
    """The operator without torch's dispatcher, and with the sum over the losses.

    ``weights`` asks for the weighted sum of the losses; True for their sum, None for each of them.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor | bool | None, tracker: Tracker | None, *flat: Any) -> Tensor:
        output = _forward(*flat)
        if tracker is not None:
            tracker.sums = output[1]
        _setup(ctx, flat, output)
        ctx.weights = weights
        if weights is None:
            return output[0]
        return (output[0] * weights).sum() if isinstance(weights, Tensor) else output[0].sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        twice = torch.is_grad_enabled()  # create_graph=True
        with torch.no_grad():
            each = upstream
            if upstream is not None and isinstance(ctx.weights, Tensor):
                each = upstream * ctx.weights
            gradients = _differentiate(ctx, each, ctx.needs_input_grad[2:], _backward)
        if twice:
            inputs = [t for t in (upstream, *ctx.saved_tensors[:TENSOR_COUNT]) if t is not None]
            gradients = tuple(
                None if g is None else FirstDerivativeOnly.apply("triton", g, *inputs) for g in gradients
            )
        return (None, None, *gradients)


def loss(weights: Tensor | float | None, arguments: Arguments, tracker: Tracker | None = None) -> Tensor:
    """The weighted sum of the losses, or each loss [N]."""
    one_for_all = isinstance(weights, float)
    if not torch.compiler.is_compiling():
        if isinstance(weights, float):
            arguments = arguments._replace(weight=weights)
        with transforms_named("triton"):
            result: Tensor = _Contrast.apply(True if one_for_all else weights, tracker, *arguments)
            return result
    losses: Tensor
    losses, sums, *_ = contrast(*arguments)
    if tracker is not None:
        tracker.sums = sums
    return losses if weights is None else (losses * weights).sum()
