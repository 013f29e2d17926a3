"""Drop-ins for other libraries: one file a library, with the library's own class names.

Each class accepts its original's arguments, and ``link`` and ``backend`` by name (see ``Linked``). A
temperature of None, the default, means the log-odds; a number means that temperature, and then the loss is
the original's. A library is imported by its own file alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from taufree.checks import check_options
from taufree.convert import is_free
from taufree.links import Link, LogOdds, Temperature


def link_of(temperature: float | None, name: str = "temperature", link: Link | None = None) -> Link:
    """The link for the arguments ``link`` and ``temperature``, of which one is given; neither: the log-odds.

    >>> link_of(0)
    Traceback (most recent call last):
    ValueError: temperature must be a positive number, got 0.
    """
    if temperature is None:
        return check_options(link, "mean", "auto")
    if link is not None:
        raise ValueError(f"{name} must be None with a link, got {temperature}.")
    return positive(temperature, name)


def positive(number: float, name: str) -> Temperature:
    """The link of this temperature, if it is one; else an error about the argument ``name``."""
    try:
        return Temperature(number)
    except (TypeError, ValueError) as error:  # which names tau; the library's argument has another name
        raise type(error)(str(error).replace("tau", name, 1)) from None


class Linked:
    """The link and the backend of a drop-in, a base before the library's class.

    Both are arguments by name, and attributes that may be set at any time. The link and the library's own
    temperature are one setting. Setting the temperature sets the link. Setting a ``Temperature`` as the link
    sets the temperature, and setting any other link makes it None. The link None is that of the temperature,
    and without one the log-odds. In a module the link is a submodule.
    """

    temperature_name: ClassVar[str | None] = "temperature"  # the library's attribute, if it has one
    link: Link
    backend: str = "auto"

    def _set_options(self, temperature: float | None, link: Link | None, backend: str) -> None:
        """What the constructor was given, once the library's own has run."""
        if self.temperature_name is not None:
            setattr(self, self.temperature_name, temperature)
        if link is not None or self.temperature_name is None:
            self.link = link  # type: ignore[assignment]
        self.backend = backend

    def __setattr__(self, name: str, value: Any) -> None:
        temperature = self.temperature_name
        if name == "backend":
            check_options(None, "mean", value)
        elif name == "link" and value is None:
            value = self._link_of(None if temperature is None else getattr(self, temperature))
        elif name == "link":
            check_options(value, "mean", "auto")
            if temperature is not None:
                super().__setattr__(temperature, self._temperature_of(value))
        elif name == temperature:
            super().__setattr__("link", self._link_of(value))
        super().__setattr__(name, value)

    def _link_of(self, temperature: float | None) -> Link:
        return link_of(temperature, self.temperature_name or "temperature")

    def _temperature_of(self, link: Link) -> float | None:
        return link.tau if type(link) is Temperature else None

    def _check_dense(self, what: str) -> None:
        """Raises if a backend was chosen for ``what``, which is computed on the matrix of all pairs alone."""
        if self.backend not in ("auto", "reference"):
            raise ValueError(f'backend must be "auto" or "reference" with {what}, got {self.backend!r}.')

    def extra_repr(self) -> str:
        """The backend; the link, a submodule, is shown by itself."""
        theirs: str = super().extra_repr()  # type: ignore[misc]
        return f"{theirs}, backend={self.backend!r}" if theirs else f"backend={self.backend!r}"


def decoupled(losses: Tensor) -> Tensor:
    """log(S / p) from InfoNCE's L = log((p + S) / p): log(exp(L) - 1), where the positive leaves the sum.

    L + log(1 - exp(-L)) has all digits for small L as for large ones, and is finite with a finite gradient
    for every L >= 0.
    """
    losses = losses.clamp(min=torch.finfo(losses.dtype).tiny)
    return losses + (-torch.expm1(-losses)).log()


def free_options(loss: Any) -> dict[str, Any]:
    """The arguments ``link`` and ``backend`` for a twin of ``loss``: its own, but for a temperature."""
    link = getattr(loss, "link", None)
    return {
        "link": copy.deepcopy(link) if is_free(link) else None,
        "backend": getattr(loss, "backend", "auto"),
    }


def as_twin(loss: Any, twins: Mapping[type, type]) -> Any:
    """A deep copy of ``loss`` as an object of its twin class, without its temperature.

    ``twins`` maps originals to twins that use the attributes of the originals, so whatever else the loss
    holds stays: reducers, memory banks with their contents, training or evaluation mode, a link without a
    temperature.
    """
    for original, twin in twins.items():
        if type(loss) in (original, twin):
            found: Any = object.__new__(twin)
            # Bound methods among the attributes are bound to the twin.
            vars(found).update(copy.deepcopy(vars(loss), {id(loss): found}))
            if not is_free(getattr(found, "link", None)):
                found.link = LogOdds()
            return found
    raise TypeError(
        f"loss must be one of {', '.join(sorted({one.__name__ for one in twins}))}, "
        f"got {type(loss).__name__} of {type(loss).__module__}."
    )
