"""Links by the names they have on the command line and in the results.

Torch comes with a link that is made, not with its name: a wrong one is refused before.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING

import taufree
from taufree.util.source import source_digest

if TYPE_CHECKING:
    from taufree import Link

NAMED_LINKS = {
    "free": "LogOdds",
    "fitted": "FittedLogOdds",
    "calibrated": "CalibratedLogOdds",
    "learnable": "LearnableTemperature",
}
"""Each with its class of :mod:`taufree`."""
GAIN = "gain="
"""How the name of a free link with a gain of its own begins."""
OWN = ":"
"""What is in the name of a user's own link, ``module:Class``."""


def parse_links(text: str) -> tuple[str, ...]:
    """The links of a comma-separated list, each by its one spelling and named once.

    >>> parse_links("free, 0.10,1e-1,learnable,gain=2.0")
    ('free', '0.1', 'learnable', 'gain=2')
    """
    names = [_canonical(name.strip()) for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"links must name at least one link, got {text!r}.")
    return tuple(dict.fromkeys(names))


def make_link(name: str) -> Link:
    """A fresh link of that name.

    >>> make_link("0.1"), make_link("gain=2")
    (Temperature(tau=0.1), LogOdds(gain=2.0, resolution=0.0001))
    """
    if OWN in name:
        return _imported(name)
    if name.startswith(GAIN):
        return taufree.LogOdds(float(name.removeprefix(GAIN)))
    tau = temperature_of(name)
    if tau is not None:
        return taufree.Temperature(tau)
    made: Link = getattr(taufree, NAMED_LINKS[name])()
    return made


def temperature_of(name: str) -> float | None:
    """The fixed temperature of a link, None for the links that have none."""
    return None if name in NAMED_LINKS or name.startswith(GAIN) or OWN in name else float(name)


def link_source(name: str) -> str | None:
    """A digest of the code of a user's own link, None for the links of this package."""
    return source_digest(name.partition(OWN)[0]) if OWN in name else None


def describe(name: str) -> str:
    """The link in words for a table or a legend.

    >>> [describe(name) for name in ("free", "0.5", "learnable", "gain=2")]
    ['free', 'tau 0.5', 'learnable tau', 'gain 2']
    """
    if name.startswith(GAIN):
        return name.replace("=", " ")
    return f"{name} tau" if name == "learnable" else name if temperature_of(name) is None else f"tau {name}"


def in_order(names: set[str]) -> list[str]:
    """Names in the order of the tables: free, the temperatures from low to high, then the others.

    >>> in_order({"learnable", "1", "0.25", "free"})
    ['free', '0.25', '1', 'learnable']
    """
    return sorted(names, key=lambda name: (name != "free", temperature_of(name) or math.inf, name))


def _canonical(name: str) -> str:
    if name in NAMED_LINKS:
        return name
    if OWN in name:
        _imported(name)
        return name
    kind, least = (GAIN, 0.5) if name.startswith(GAIN) else ("", 0.0)
    try:
        number = float(name.removeprefix(kind))
    except ValueError:
        number = math.nan
    if not (number > 0 and least <= number < math.inf):
        raise ValueError(
            f"links must be {', '.join(NAMED_LINKS)}, gain=G with G of at least 0.5, MODULE:CLASS, or a "
            f"positive temperature, got {name!r}."
        )
    return kind + (f"{number:g}" if float(f"{number:g}") == number else repr(number))


def _imported(name: str) -> Link:
    """A user's own link; ValueError with one sentence for whatever is wrong with it."""
    import torch

    module, _, attribute = name.partition(OWN)
    try:
        made = getattr(importlib.import_module(module), attribute)()
        if isinstance(made, taufree.Link):
            made(torch.zeros(1))
    except Exception as error:  # a user's code may raise anything
        raise ValueError(
            f"links has {name!r}, which must be a class that can be imported, made without arguments "
            f"and called, but gave {type(error).__name__}: {error}."
        ) from error
    if not isinstance(made, taufree.Link):
        raise ValueError(f"links has {name!r}, which must be a taufree.Link, got {type(made).__name__}.")
    return made
