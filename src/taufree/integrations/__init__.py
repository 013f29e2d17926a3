"""Drop-ins for other libraries: one file a library, with the library's own class names.

Each class accepts its original's arguments, and ``link`` and ``backend`` by name (see ``Linked``). A
temperature of None, the default, means a link without one: the log-odds where a representation is learned,
the fitted log-odds where the vectors themselves are compared. A number or a tensor means that temperature,
and then the loss is the original's. A library is imported by its own file alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from taufree.checks import check_options
from taufree.convert import is_free
from taufree.links import Link, LinkLike, LogOdds, Temperature, as_link


def link_of(
    temperature: float | Tensor | None,
    name: str = "temperature",
    link: LinkLike = None,
    default: Callable[[], Link] = LogOdds,
    *,
    kept: bool = True,
) -> Link:
    """The link for the arguments ``link`` and ``temperature``, of which one is given; neither: the default.

    ``kept`` is that of ``taufree.links.as_link``.

    >>> link_of(0)
    Traceback (most recent call last):
    ValueError: temperature must be a positive number, got 0.
    """
    if temperature is None:
        return as_link(link, default, kept=kept)
    if link is not None:
        raise ValueError(f"{name} must be None with a link, got {temperature}.")
    return positive(temperature, name)


def positive(number: float | Tensor, name: str) -> Temperature:
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
    and without one the drop-in's default. In a module the link is a submodule, and a temperature that is a
    parameter is the link's.
    """

    temperature_name: ClassVar[str | None] = "temperature"  # the library's attribute, if it has one
    default_link: ClassVar[Callable[[], Link]] = LogOdds
    link: Link
    backend: str = "auto"

    def _set_options(self, temperature: float | Tensor | None, link: LinkLike, backend: str) -> None:
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
        elif name == "link":
            if value is None:
                value = self._link_of(None if temperature is None else getattr(self, temperature))
            value = as_link(value)
            if temperature is not None:
                self._store_temperature(self._temperature_of(value))
        elif name == temperature:
            super().__setattr__("link", self._link_of(value))
            self._store_temperature(value)
            return
        super().__setattr__(name, value)

    def _link_of(self, temperature: float | Tensor | None) -> Link:
        return link_of(temperature, self.temperature_name or "temperature", None, type(self).default_link)

    def _temperature_of(self, link: Link) -> float | Tensor | None:
        return link.tau if type(link) is Temperature else None

    def _store_temperature(self, value: float | Tensor | None) -> None:
        """Sets the library's attribute. A parameter is registered by the link alone, not by both."""
        assert self.temperature_name is not None
        vars(self).get("_parameters", {}).pop(self.temperature_name, None)
        vars(self)[self.temperature_name] = value

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes a checkpoint of the original too: its temperature if it is learned, and none of a link."""
        own = {} if self.link is None else self.link.state_dict(prefix=f"{prefix}link.")
        learned = self.temperature_name and isinstance(getattr(self, self.temperature_name), Tensor)
        theirs = f"{prefix}{self.temperature_name}"
        if learned and len(own) == 1 and theirs in state_dict:
            state_dict[next(iter(own))] = state_dict.pop(theirs)
        elif own.keys().isdisjoint(state_dict):
            state_dict.update(own)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]

    def _check_dense(self, what: str) -> None:
        """Raises if a backend was chosen for ``what``, which is computed on the matrix of all pairs alone."""
        if self.backend not in ("auto", "reference"):
            raise ValueError(f'backend must be "auto" or "reference" with {what}, got {self.backend!r}.')

    def extra_repr(self) -> str:
        """The backend; the link, a submodule, is shown by itself."""
        theirs: str = super().extra_repr()  # type: ignore[misc]
        return f"{theirs}, backend={self.backend!r}" if theirs else f"backend={self.backend!r}"


def free_options(loss: Any, link: LinkLike) -> dict[str, Any]:
    """The arguments ``link`` and ``backend`` for a twin of ``loss``: this link or, if it is None, the loss's
    own unless that has a temperature; and the loss's backend."""
    own = getattr(loss, "link", None)
    if link is None and is_free(own):
        link = copy.deepcopy(own)
    return {"link": link, "backend": getattr(loss, "backend", "auto")}


def twin_of(kind: type, twins: Mapping[type, type]) -> type:
    """The class of the twin of a loss of this kind: one of ``twins`` (original: twin), or the kind itself if
    it is a twin or derived from one.

    A class derived from an original or a twin must override none of its methods: they would have no effect.
    """
    for i, base in enumerate(kind.__mro__):
        twin = base if base in twins.values() else twins.get(base)
        if twin is None:
            continue
        # Each class derived from an abstract one has names in _abc_ of its own.
        own = {name for one in kind.__mro__[:i] for name in vars(one) if not name.startswith("_abc_")}
        changed = sorted(x for x in own & set(dir(base)) if not x.startswith("__") or x == "__call__")
        if changed:
            raise TypeError(
                f"loss must leave the methods of {base.__name__} as they are, got {kind.__name__} of "
                f"{kind.__module__}, which overrides {', '.join(changed)}."
            )
        return kind if base is twin else twin
    raise TypeError(
        f"loss must be one of {', '.join(sorted({one.__name__ for one in twins}))}, "
        f"got {kind.__name__} of {kind.__module__}."
    )


def as_twin(loss: Any, twins: Mapping[type, type], link: LinkLike) -> Any:
    """A deep copy of ``loss`` as an object of its twin class, with ``link`` or without its temperature.

    ``twins`` maps originals to twins that use the attributes of the originals, so whatever else the loss
    holds stays: reducers, memory banks with their contents, training or evaluation mode, a link without a
    temperature.
    """
    twin: Any = twin_of(type(loss), twins)
    found: Any = object.__new__(twin)
    # Bound methods among the attributes are bound to the twin.
    vars(found).update(copy.deepcopy(vars(loss), {id(loss): found}))
    if link is not None or not is_free(getattr(found, "link", None)):
        found.link = twin.default_link() if link is None else link
    return found
