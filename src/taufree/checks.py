"""Argument checks of the losses: one sentence that names the argument, what came and what was needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from taufree.backends import BACKENDS
from taufree.contrast import Bias, Contrast
from taufree.links import Link, LinkLike, as_link
from taufree.links.base import check_number
from taufree.reduction import REDUCTIONS

_P = ParamSpec("_P")
_R = TypeVar("_R")
MAX_HARDNESS = 50  # beyond it the factors of one anchor leave float32's range


def check_options(link: LinkLike, reduction: str, backend: str, *, kept: bool = True) -> Link:
    """The link to use; raises if an option is not one that the losses know. ``kept``: see ``as_link``."""
    for name, value, known in (("reduction", reduction, REDUCTIONS), ("backend", backend, BACKENDS)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be one of {known}, got {type(value).__name__}.")
        if value not in known:
            raise ValueError(f"{name} must be one of {known}, got {value!r}.")
    return as_link(link, kept=kept)


def without_temperature(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function``, where an argument ``temperature`` or ``tau`` raises an error that names ``link``."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in ("temperature", "tau"):
            if name in kwargs:
                raise TypeError(f"{name} must be given as the link: link={kwargs[name]}, got {name}.")
        return function(*args, **kwargs)

    return call


def check_alike(**embeddings: Tensor) -> None:
    """Raises unless all are embeddings [N, D] of one shape and device; errors name them by their keywords."""
    (name, x), *others = embeddings.items()
    _check_embeddings(name, x)
    for other, y in others:
        _check_embeddings(other, y, like=(name, x))


def check_float(name: str, x: object, like: tuple[str, Tensor] | None = None) -> None:
    """Raises unless x is a dense floating-point tensor, on the device of ``like`` (its name and itself)."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a floating-point tensor, got {type(x).__name__}.")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got dtype {x.dtype}.")
    if x.dtype.itemsize < 2:  # which torch mixes with no other
        raise TypeError(f"{name} must have 16 bits or more a number, got dtype {x.dtype}.")
    _check_dense(name, x)
    if like is not None and x.device != like[1].device:
        raise ValueError(f"{name} must be on the device of {like[0]}, {like[1].device}, got {x.device}.")


def _check_dense(name: str, x: Tensor) -> None:
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}.")
    if x.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one.")


def _check_embeddings(name: str, x: Tensor, like: tuple[str, Tensor] | None = None) -> None:
    check_float(name, x, like)
    if x.dim() != 2 or 0 in x.shape:
        raise ValueError(f"{name} must have shape [N, D] with N and D at least 1, got {list(x.shape)}.")
    if like is not None and x.shape != like[1].shape:
        raise ValueError(
            f"{name} must have the shape of {like[0]}, {list(like[1].shape)}, got {list(x.shape)}."
        )


def check_weights(x: Tensor | None, like: Tensor) -> None:
    """Raises unless x is None, or a floating-point tensor [N] for the N rows of ``like``, on its device."""
    if x is not None:
        check_float("weights", x, like=("the embeddings", like))
        if x.shape != like.shape[:1]:
            raise ValueError(f"weights must have shape [{like.shape[0]}], got {list(x.shape)}.")


def check_flags(or_none: bool = False, **flags: object) -> None:
    """Raises unless all are True or False (numpy's are not), or None if that may be; errors name them."""
    for name, value in flags.items():
        if not isinstance(value, bool) and not (or_none and value is None):
            kind, need = type(value), "True, False or None" if or_none else "True or False"
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            raise TypeError(f"{name} must be {need}, got {module}{kind.__name__}.")


def check_denominator(decoupled: bool, balanced: bool) -> None:
    """Raises unless both are True or False, and at most one is True."""
    check_flags(decoupled=decoupled, balanced=balanced)
    if decoupled and balanced:
        raise ValueError(
            "balanced must be False with decoupled=True, got True, since without the positive in the "
            "denominator the number of negatives changes the loss by a constant alone."
        )


def check_hardness(hardness: float) -> float:
    """The hardness, if it is one; 0 for one that changes nothing.

    The losses' default is the integer 0: of a float torch.compile would make an input, and compile twice.
    """
    if (
        isinstance(hardness, bool)
        or not isinstance(hardness, (int, float))
        or not 0 <= hardness <= MAX_HARDNESS
    ):
        check_number("hardness", hardness, f"a number from 0 to {MAX_HARDNESS}", lambda _: False)  # raises
    return float(hardness) if hardness > 1e-30 else 0.0


def check_bias(x: object) -> Bias:
    """The bias that an argument means; raises unless it is None, a finite number or a tensor of one number,
    or made by a module."""
    if x is None:
        return Bias(0.0, None, True)
    if isinstance(x, Bias):
        return x
    if not isinstance(x, Tensor):
        return Bias(check_number("bias", x, "a finite number", lambda _: True), None, False)
    if x.numel() != 1 or not x.is_floating_point():
        raise ValueError(
            "bias must be a number, or a floating-point tensor of one, got a tensor of shape "
            f"{list(x.shape)} and dtype {x.dtype}."
        )
    return Bias(0.0, x.reshape(()), False)


def check_anchor_scale(link: Link, contrast: Contrast) -> None:
    """Raises unless a link with a scale for each anchor has one for each of the loss's."""
    if link.per_anchor:
        if contrast.hardness or contrast.bias is not None:
            loss = "hardness" if contrast.hardness else "the sigmoid loss"
            raise ValueError(f"link must have one scale for all anchors with {loss}, got one for each.")
        scale, anchors = link.formula_scale(), contrast.n * (2 if contrast.symmetric else 1)
        if isinstance(scale, Tensor) and len(scale) != anchors:
            raise ValueError(f"link must have one scale or {anchors}, one for each anchor, got {len(scale)}.")


def check_integers(name: str, x: Tensor, like: Tensor) -> None:
    """Raises unless x is an integer tensor [N] for the N rows of ``like``, on its device."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(x).__name__}.")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, got dtype {x.dtype}.")
    _check_dense(name, x)
    if x.shape != like.shape[:1]:
        raise ValueError(f"{name} must have shape [{like.shape[0]}], got {list(x.shape)}.")
    if x.device != like.device:
        raise ValueError(f"{name} must be on the device of the embeddings, {like.device}, got {x.device}.")
