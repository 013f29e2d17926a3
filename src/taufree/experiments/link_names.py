"""Links by the names they have on the command line and in the results."""

from __future__ import annotations

import math
from collections.abc import Callable

from taufree import LearnableTemperature, Link, LogOdds, Temperature

NAMED: dict[str, Callable[[], Link]] = {"free": LogOdds, "learnable": LearnableTemperature}


def parse_links(text: str) -> tuple[str, ...]:
    """The links of a comma-separated list, each by its one spelling and named once.

    >>> parse_links("free, 0.10,1e-1,learnable")
    ('free', '0.1', 'learnable')
    """
    names = [_canonical(name.strip()) for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"links must name at least one link, got {text!r}.")
    return tuple(dict.fromkeys(names))


def make_link(name: str) -> Link:
    """A fresh link of that name.

    >>> make_link("0.1")
    Temperature(tau=0.1)
    """
    tau = temperature_of(name)
    return NAMED[name]() if tau is None else Temperature(tau)


def temperature_of(name: str) -> float | None:
    """The fixed temperature of a link, None for the links that have none."""
    return None if name in NAMED else float(name)


def describe(name: str) -> str:
    """The link in words for a table or a legend.

    >>> [describe(name) for name in ("free", "0.5", "learnable")]
    ['free', 'tau 0.5', 'learnable tau']
    """
    return {"free": "free", "learnable": "learnable tau"}.get(name, f"tau {name}")


def in_order(names: set[str]) -> list[str]:
    """Names in the order of the tables: free, the temperatures from low to high, then the others.

    >>> in_order({"learnable", "1", "0.25", "free"})
    ['free', '0.25', '1', 'learnable']
    """
    return sorted(names, key=lambda name: (name != "free", temperature_of(name) or math.inf, name))


def _canonical(name: str) -> str:
    if name in NAMED:
        return name
    try:
        tau = float(name)
    except ValueError:
        tau = math.nan
    if not (tau > 0 and math.isfinite(tau)):
        raise ValueError(f"links must be {', '.join(NAMED)} or a positive temperature, got {name!r}.")
    return f"{tau:g}" if float(f"{tau:g}") == tau else repr(tau)
