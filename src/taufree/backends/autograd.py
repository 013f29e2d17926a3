"""For backends whose gradient is written by hand: not compiled, not transformed, and what happens then."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


REASON = 'it is not compiled; give backend="reference" for a graph without breaks'


class NotTransformableError(RuntimeError):
    """A backend was asked for a transform of torch.func, or for forward mode, and has none."""


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """torch.compiler.disable, without its import of the whole compiler before anything is compiled."""

    disabled: list[Callable[_P, _R]] = []

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(sys.modules["torch._dynamo"].disable(function))
        return disabled[0](*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = REASON  # type: ignore[attr-defined]
    return call


def transformed() -> bool:
    """Whether the call is within a transform of torch.func, whose tensors have no meaning outside of it."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active())


def exporting() -> bool:
    """Whether torch.export follows the call; before PyTorch 2.12 is_exporting() says so of torch.compile."""
    return torch.compiler._is_exporting_flag


class transforms_named:  # noqa: N801
    """Within, what torch.func and forward mode cannot do raises :class:`NotTransformableError`."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, RuntimeError):
            return
        if "functorch" in str(error) or "forward mode AD" in str(error):
            raise NotTransformableError(
                f"The {self.backend} backend cannot be transformed by torch.func, nor differentiated in "
                'forward mode; use backend="reference".'
            ) from error


class ByReference(torch.autograd.Function):
    """Gradients that are known, given with what they were computed from; their derivatives, of any order, are
    those of ``loss``, a function of the ``count`` inputs that is differentiable in all of them. Of these the
    first ``views`` are its arguments, the others parameters that it holds."""

    @staticmethod
    def forward(
        ctx: Any, loss: Callable[..., torch.Tensor], upstream: torch.Tensor, count: int, views: int,
        *inputs_and_gradients: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        ctx.loss, ctx.count, ctx.views = loss, count, views
        ctx.save_for_backward(upstream, *inputs_and_gradients[:count])
        return tuple(None if g is None else g.view_as(g) for g in inputs_and_gradients[count:])

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # As views, or detached: the upstream gradient may itself depend on the inputs, and these are the
            # derivatives of this function alone. ``loss`` finds parameters by itself, which are no views.
            saved: list[Any] = list(ctx.saved_tensors)
            upstream, *inputs = saved
            fixed = ctx.count - ctx.views
            inputs = [x if x is None or i >= ctx.views else x.view_as(x) for i, x in enumerate(inputs)]
            upstream = upstream.detach().requires_grad_() if fixed else upstream.view_as(upstream)
            given = [i for i, g in enumerate(outer) if g is not None]
            first = torch.autograd.grad(
                ctx.loss(*inputs),
                [inputs[i] for i in given],
                upstream,
                create_graph=True,
                materialize_grads=True,
            )
            wanted = [i for i, x in enumerate((upstream, *inputs)) if x is not None and x.requires_grad]
            second = torch.autograd.grad(
                first,
                [(upstream, *inputs)[i] for i in wanted],
                [outer[i] for i in given],
                create_graph=again,
                allow_unused=True,
            )
        found = dict(zip(wanted, second, strict=True))
        return (
            None,
            found.get(0),
            None,
            None,
            *(found.get(i + 1) for i in range(ctx.count)),
            *([None] * len(outer)),
        )


class FirstDerivativeOnly(torch.autograd.Function):
    """A gradient, given with what it was computed from, whose own derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, backend: str, gradient: torch.Tensor, *inputs: torch.Tensor | None) -> torch.Tensor:
        ctx.backend = backend
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> None:
        raise no_second_derivative(ctx.backend)


def no_second_derivative(backend: str) -> RuntimeError:
    return RuntimeError(f'The {backend} backend has no second derivative; use backend="reference".')
