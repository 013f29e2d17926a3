"""Arithmetic of one number that is a float or a tensor.

What a link measures is a tensor, as nothing may wait for a GPU. On a CPU its value is there, and a step in
plain numbers takes a tenth of the time of the same in calls of torch. The formulas are written once for both.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype

Scalar: TypeAlias = Any  # a float or a tensor of one number


def known(x: Tensor) -> bool:
    """Whether the value can be read at once: not on a GPU, in compiled code, or in a transform."""
    if torch.compiler.is_compiling() or not x.is_cpu or torch._C._are_functorch_transforms_active():
        return False
    return type(x) is Tensor or type(x.data) is Tensor  # a parameter


def numbers(*tensors: Tensor) -> tuple[Scalar, ...]:
    """The same as floats, if all can be read at once."""
    return tuple(x.item() for x in tensors) if all(map(known, tensors)) else tensors


def number(x: Tensor) -> Scalar:
    """The same of one, without its graph; a tensor is of the widest dtype."""
    return x.item() if known(x) else x.detach().to(wide_dtype(x.device))


def clamp(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """NaN stays."""
    return x.clamp(low, high) if isinstance(x, Tensor) else min(max(x, low), high)


def where(condition: Scalar, x: Scalar, other: Scalar) -> Scalar:
    if isinstance(condition, Tensor):
        return torch.where(condition, x, other)
    return x if condition else other


def divide(x: Scalar, by: Scalar) -> Scalar:
    """With the infinities and NaN of floating-point arithmetic; ``by`` is not negative."""
    return x / by if isinstance(by, Tensor) or by else x * math.inf


def exp(x: Scalar) -> Scalar:
    return x.exp() if isinstance(x, Tensor) else math.exp(x)


def lgamma(x: Scalar) -> Scalar:
    return torch.lgamma(x) if isinstance(x, Tensor) else math.lgamma(x)


def text(x: Scalar) -> str:
    """Three digits; on the meta device no number has any."""
    if isinstance(x, Tensor):
        return "?" if x.is_meta else f"{x.item():.3g}"
    return f"{x:.3g}"


def keep(buffer: Tensor, value: Scalar) -> None:
    """Sets a buffer, in place."""
    if isinstance(value, Tensor):
        buffer.copy_(value)
    else:
        buffer.fill_(value)
