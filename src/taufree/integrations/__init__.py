"""Drop-ins for other libraries: one file a library, with the library's own class names.

Each class accepts its original's arguments. A temperature of None, the default, means the log-odds; a number
means that temperature, and then the loss is the original's. A library is imported by its own file alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from taufree.links import Link, LogOdds, Temperature


def link_of(temperature: float | None, name: str = "temperature") -> Link:
    """The link for a library's argument ``temperature``: None is the log-odds.

    >>> link_of(0)
    Traceback (most recent call last):
    ValueError: temperature must be a positive number, got 0.
    """
    return LogOdds() if temperature is None else positive(temperature, name)


def positive(number: float, name: str) -> Temperature:
    """The link of this temperature, if it is one; else an error about the argument ``name``."""
    try:
        return Temperature(number)
    except (TypeError, ValueError) as error:  # which names tau; the library's argument has another name
        raise type(error)(str(error).replace("tau", name, 1)) from None


def decoupled(losses: Tensor) -> Tensor:
    """log(S / p) from InfoNCE's L = log((p + S) / p): log(exp(L) - 1), where the positive leaves the sum.

    L + log(1 - exp(-L)) has all digits for small L as for large ones, and is finite with a finite gradient
    for every L >= 0.
    """
    losses = losses.clamp(min=torch.finfo(losses.dtype).tiny)
    return losses + (-torch.expm1(-losses)).log()


def as_twin(loss: Any, twins: Mapping[type, type], **settings: object) -> Any:
    """A deep copy of ``loss`` as an object of its twin class, with some ``settings`` changed.

    ``twins`` maps originals to twins that use the attributes of the originals, so whatever else the loss
    holds stays: reducers, memory banks with their contents, training or evaluation mode.
    """
    for original, twin in twins.items():
        if type(loss) in (original, twin):
            found = copy.deepcopy(loss)
            found.__class__ = twin
            for name, value in settings.items():
                setattr(found, name, value)
            return found
    raise TypeError(
        f"loss must be one of {', '.join(sorted({one.__name__ for one in twins}))}, "
        f"got {type(loss).__name__} of {type(loss).__module__}."
    )
