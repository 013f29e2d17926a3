"""For backends whose gradient is written by hand: not compiled, not transformed, not differentiated twice."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
    return call


def apply(function: type[torch.autograd.Function], backend: str, *inputs: Any) -> Any:
    """``function.apply``; torch.func and forward mode, which it does not support, raise and name the backend
    that does."""
    try:
        return function.apply(*inputs)
    except RuntimeError as error:
        if "functorch" not in str(error) and "forward mode AD" not in str(error):
            raise
        raise RuntimeError(
            f"The {backend} backend cannot be transformed by torch.func, nor differentiated in forward mode; "
            'use backend="reference".'
        ) from error


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
