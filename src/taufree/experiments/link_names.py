"""Links by the names they have on the command line and in the results.

Torch comes with a link that is made, not with its name: a wrong one is refused before.
"""

from __future__ import annotations

import importlib
import inspect
import math
from typing import TYPE_CHECKING, Any

import taufree
from taufree.util.source import source_digest

if TYPE_CHECKING:
    from taufree import Link
    from taufree.baselines import Scheme

NAMED_LINKS = {
    "free": "LogOdds",
    "fitted": "FittedLogOdds",
    "fitted-temperature": "FittedTemperature",
    "calibrated": "CalibratedLogOdds",
    "learnable": "LearnableTemperature",
}
"""Each with its class of :mod:`taufree`."""
IN_WORDS = {"learnable": "learnable tau", "fitted-temperature": "fitted tau"}
SCHEMES = {
    "macl": "MACL",
    "dystress": "DySTreSS",
    "schedule": "TemperatureSchedule",
    "dual": "DualTemperature",
    "tau-net": "TaU",
    "isogclr": "ISogCLR",
    "pps": "PositivePairTemperature",
    "vmf": "VonMisesFisherTemperature",
    "adap-tau": "AdapTau",
    "cauchy": "Cauchy",
}
"""Each with its class of :mod:`taufree.baselines`; ``macl:alpha=0.3`` has a setting of its own."""
GAIN = "gain="
"""How the name of a free link with a gain of its own begins."""
OWN = ":"
"""What is in the name of a user's own link, ``module:Class``, before the settings of a scheme, and before the
link of a balanced loss."""
BALANCED = "balanced"
"""The balanced loss of the free link; ``balanced:0.25`` is that of another."""


def parse_links(text: str) -> tuple[str, ...]:
    """The links of a comma-separated list, each by its one spelling and named once.

    >>> parse_links("free, 0.10,1e-1,learnable,gain=2.0")
    ('free', '0.1', 'learnable', 'gain=2')
    """
    names = [_canonical(name.strip()) for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"links must name at least one link, got {text!r}.")
    return tuple(dict.fromkeys(names))


def make_link(name: str, *, pairs: bool = False, samples: int | None = None) -> Any:
    """A fresh link of that name, or a :class:`taufree.baselines.Scheme`, over the batches of all ranks.

    Args:
        pairs: whether the recipe's views are of different kinds, see the scheme.
        samples: how many there are, for schemes that remember something of each.

    >>> make_link("0.1"), make_link("gain=2"), make_link("dystress:low=0.1")
    (Temperature(tau=0.1), LogOdds(gain=2.0, resolution=0.0001), DySTreSS(low=0.1, high=0.2))
    """
    recipes = {"pairs": pairs, "samples": samples, "gather_distributed": True}
    if _is_balanced(name):
        link = make_link(_link_of_balanced(name))
        return _scheme_class(name)(link, pairs=pairs, gather_distributed=True)
    if is_scheme(name):
        made = _scheme_class(name)
        return made(**_taken(made, recipes), **_settings(name))
    if OWN in name:
        return _imported(name, recipes)
    if name.startswith(GAIN):
        return taufree.LogOdds(float(name.removeprefix(GAIN)))
    tau = temperature_of(name)
    if tau is not None:
        return taufree.Temperature(tau)
    return getattr(taufree, NAMED_LINKS[name])()


def temperature_of(name: str) -> float | None:
    """The fixed temperature of a link, None for the links that have none."""
    if name in NAMED_LINKS or is_scheme(name) or name.startswith(GAIN) or OWN in name:
        return None
    return float(name)


def is_scheme(name: str) -> bool:
    """Whether it is one of :mod:`taufree.baselines`, or the balanced loss, which recipes treat as one.

    >>> is_scheme("macl:tau0=0.2"), is_scheme("balanced"), is_scheme("free")
    (True, True, False)
    """
    return name.partition(OWN)[0] in SCHEMES or _is_balanced(name)


def scheme_needs(name: str) -> frozenset[str] | None:
    """What a scheme that is a loss, one of the user's own too, needs besides two views; None for links.

    >>> scheme_needs("macl"), sorted(scheme_needs("isogclr")), scheme_needs("dystress")
    (frozenset(), ['index'], None)
    """
    made = _scheme_class(name) if is_scheme(name) else _imported(name) if OWN in name else None
    needs: frozenset[str] | None = getattr(made, "needs", None)
    return needs


def scheme_settings(name: str) -> list[str]:
    """The numbers that a user of a scheme chooses.

    >>> scheme_settings("macl"), scheme_settings("pps"), scheme_settings("balanced:0.25")
    (['tau0', 'alpha', 'a0'], [], ['tau'])
    """
    if _is_balanced(name):
        link = _link_of_balanced(name)
        return ["gain"] if link.startswith(GAIN) else [] if temperature_of(link) is None else ["tau"]
    takes = inspect.signature(_scheme_class(name)).parameters.values()
    return [one.name for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "samples"]


def link_source(name: str) -> str | None:
    """A digest of the code of a user's own link, None for the links of this package."""
    if _is_balanced(name):
        return link_source(_link_of_balanced(name))
    return source_digest(name.partition(OWN)[0]) if OWN in name and not is_scheme(name) else None


def describe(name: str) -> str:
    """The link in words for a table or a legend.

    >>> [describe(name) for name in ("free", "0.5", "learnable", "gain=2", "balanced", "balanced:0.5")]
    ['free', 'tau 0.5', 'learnable tau', 'gain 2', 'balanced', 'tau 0.5, balanced']
    """
    if _is_balanced(name) and name != BALANCED:
        return f"{describe(_link_of_balanced(name))}, {BALANCED}"
    if name.startswith(GAIN):
        return name.replace("=", " ")
    if name in IN_WORDS:
        return IN_WORDS[name]
    return name if temperature_of(name) is None else f"tau {name}"


def in_order(names: set[str]) -> list[str]:
    """Names in the order of the tables: free, the temperatures from low to high, then the others.

    >>> in_order({"learnable", "1", "0.25", "free", "balanced:10", "balanced:2"})
    ['free', '0.25', '1', 'balanced:2', 'balanced:10', 'learnable']
    """

    def place(name: str) -> tuple[bool, float, str, float]:
        balanced = _is_balanced(name)
        tau = temperature_of(_link_of_balanced(name)) if balanced else None
        return name != "free", temperature_of(name) or math.inf, BALANCED if tau else name, tau or 0.0

    return sorted(names, key=place)


def _canonical(name: str) -> str:
    if name in NAMED_LINKS or name in SCHEMES:
        return name
    if _is_balanced(name):
        return _balanced_name(name)
    if is_scheme(name):
        return _scheme_name(name)
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
            f"links must be {', '.join([*NAMED_LINKS, *SCHEMES, BALANCED])}, {BALANCED}:LINK, gain=G with G "
            f"of at least 0.5, MODULE:CLASS, or a positive temperature, got {name!r}."
        )
    return kind + _shortest(number)


def _balanced_name(name: str) -> str:
    try:
        given = name.partition(OWN)[2]
        link = _canonical(given) if OWN in name else "free"
        wrong = is_scheme(link) or scheme_needs(link) is not None
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError(f"links has {name!r}, which must be {BALANCED}:LINK with a link, got {given!r}.")
    return BALANCED if link == "free" else f"{BALANCED}{OWN}{link}"


def _shortest(number: float) -> str:
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _is_balanced(name: str) -> bool:
    return name.partition(OWN)[0] == BALANCED


def _link_of_balanced(name: str) -> str:
    return name.partition(OWN)[2] or "free"


def _scheme_class(name: str) -> Any:
    if _is_balanced(name):
        from taufree.experiments.balanced import Balanced

        return Balanced
    from taufree import baselines

    return getattr(baselines, SCHEMES[name.partition(OWN)[0]])


def _settings(name: str) -> dict[str, float]:
    """The numbers that a scheme's name gives; ValueError with one sentence for what is none of its own."""
    scheme, *given = name.split(OWN)
    known, found = scheme_settings(name), {}
    for text in given:
        key, _, value = (part.strip() for part in text.partition("="))
        try:
            found[key] = float(value)
        except ValueError:
            key = ""
        if key not in known:
            can = f"{' and '.join(f'{one}=NUMBER' for one in known)}" if known else "no settings"
            raise ValueError(f"links has {name!r}, but {scheme} takes {can}, got {text!r}.")
    return {key: found[key] for key in known if key in found}


def _scheme_name(name: str) -> str:
    settings = _settings(name)
    try:
        make_link(name, samples=1)
    except ValueError as error:
        raise ValueError(f"links has {name!r}: {error}") from error
    return OWN.join(
        [name.partition(OWN)[0], *(f"{key}={_shortest(value)}" for key, value in settings.items())]
    )


def _taken(made: Any, recipes: dict[str, Any]) -> dict[str, Any]:
    """Of what a recipe has for a scheme, the arguments that it takes."""
    takes = inspect.signature(made).parameters
    return {key: value for key, value in recipes.items() if key in takes}


def _imported(name: str, recipes: dict[str, Any] | None = None) -> Link | Scheme:
    """A user's own link or scheme; ValueError with one sentence for whatever is wrong with it."""
    import torch

    from taufree.baselines import Scheme

    module, _, attribute = name.partition(OWN)
    try:
        found = getattr(importlib.import_module(module), attribute)
        scheme = isinstance(found, type) and issubclass(found, Scheme)
        made = found(**_taken(found, recipes or {"samples": 1})) if scheme else found()
        if isinstance(made, taufree.Link):
            made(torch.zeros(1))
    except Exception as error:  # a user's code may raise anything
        raise ValueError(
            f"links has {name!r}, which must be a class that can be imported, made without arguments "
            f"and called, but gave {type(error).__name__}: {error}."
        ) from error
    if not isinstance(made, (taufree.Link, Scheme)):
        raise ValueError(
            f"links has {name!r}, which must be a taufree.Link or a taufree.baselines.Scheme, got "
            f"{type(made).__name__}."
        )
    return made
