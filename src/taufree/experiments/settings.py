"""The settings of a recipe: a frozen dataclass whose annotations describe and bound each field.

    @dataclass(frozen=True)
    class MySettings(BatchSettings):
        epochs: int = 20                                                     # another default
        noise: Annotated[float, "Standard deviation of the noise.", Bounds(0, 1)] = 0.1
        views: Literal["crop", "mask"] = "crop"

From these come the checks of values, the texts of ``taufree recipes`` and the parsing of ``--set``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from taufree.util.errors import BadInputError

MAX_SEEDS, MAX_SEED = 10_000, 2**31 - 1


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value of a number."""

    least: float = 0
    most: float = math.inf


@dataclass(frozen=True)
class Setting:
    """One field of a recipe's settings, as its annotation describes it.

    Attributes:
        kind: ``bool``, ``int``, ``float``, ``str``, a ``Literal``, or one of them or ``None``. Other types
            are for code alone: ``--set`` cannot give them.
    """

    name: str
    kind: Any
    default: Any
    sentence: str = ""
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def needed(self) -> str:
        """Which values it takes, in words that go on "must be"."""
        kind, or_none = self._kind
        if get_origin(kind) is Literal:
            words = f"one of {', '.join(map(str, get_args(kind)))}"
        elif kind in (int, float):
            least, most = self.bounds.least, self.bounds.most
            words = "an integer" if kind is int else "a number" if math.isfinite(most) else "a finite number"
            words += f" of at least {least}" if math.isinf(most) else f" between {least} and {most}"
        else:
            words = {bool: "true or false", str: "a text"}.get(kind, f"a {kind}, which --set cannot give")
        return f"{words}, or none" if or_none else words

    def parse(self, text: str) -> Any:
        """The value that the command line names by ``text``."""
        kind, or_none = self._kind
        if or_none and text.lower() == "none":
            return None
        try:
            if kind is bool:
                value = {"true": True, "false": False}[text.lower()]
            elif get_origin(kind) is Literal:
                value = {str(choice): choice for choice in get_args(kind)}[text]
            else:
                value = {int: int, float: float, str: str}[kind](text)
        except (KeyError, ValueError):
            raise ValueError(f"{self.name} must be {self.needed}, got {text!r}.") from None
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise a ValueError for a value that it does not take; types are the caller's business."""
        kind, or_none = self._kind
        if or_none and value is None:
            return
        if get_origin(kind) is Literal:
            right = value in get_args(kind)
        else:
            right = kind not in (int, float) or (
                self.bounds.least <= value <= self.bounds.most and value != math.inf
            )
        if not right:
            raise ValueError(f"{self.name} must be {self.needed}, got {value!r}.")

    @property
    def _kind(self) -> tuple[Any, bool]:
        """The kind without ``None``, and whether it had that."""
        parts = get_args(self.kind)
        if NoneType not in parts:
            return self.kind, False
        return next(part for part in parts if part is not NoneType), True


@dataclass(frozen=True)
class Settings:
    """What every recipe lets its user choose; a recipe adds its own fields with their defaults."""

    epochs: Annotated[int, "Passes over the data.", Bounds(1)] = 100

    def __post_init__(self) -> None:
        for setting in list_settings(type(self)):
            setting.check(getattr(self, setting.name))


@dataclass(frozen=True)
class BatchSettings(Settings):
    """The settings of a recipe that trains on one part of its data at a time."""

    batch_size: Annotated[int, "Pairs in a batch.", Bounds(2)] = 256

    def count_batches(self, examples: int, what: str = "") -> int:
        """How many whole batches there are; a ValueError if none, in which ``what`` follows the number of
        examples."""
        if self.batch_size > examples:
            raise ValueError(f"batch_size must be at most {examples}{what}, got {self.batch_size}.")
        return examples // self.batch_size


def list_settings(settings_type: type[Settings]) -> list[Setting]:
    """The fields in their order. A field that a subclass gives another default keeps sentence and bounds.

    >>> [(one.name, one.default, one.sentence) for one in list_settings(BatchSettings)]
    [('epochs', 100, 'Passes over the data.'), ('batch_size', 256, 'Pairs in a batch.')]
    """
    hints = [get_type_hints(base, include_extras=True) for base in settings_type.__mro__[:-1]]
    found = []
    for one in fields(settings_type):
        kind = hints[0][one.name]
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        notes = next((of[one.name].__metadata__ for of in hints if _annotated(of.get(one.name))), ())
        sentence = next((note for note in notes if isinstance(note, str)), "")
        bounds = next((note for note in notes if isinstance(note, Bounds)), Bounds())
        found.append(Setting(one.name, kind, one.default, sentence, bounds))
    return found


def name_and_value(text: str) -> tuple[str, str]:
    """The two sides of a ``--set``."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise BadInputError(f"--set must be NAME=VALUE, got {text!r}.")
    return name, value


def parse_seeds(text: str) -> range:
    """The seeds that ``--seeds`` names: so many from 0, or FIRST:END, of which END is the first one left out.

    >>> parse_seeds("3"), parse_seeds("5:10")
    (range(0, 3), range(5, 10))
    """
    first, colon, end = text.strip().partition(":")
    parts = (first, end) if colon else ("0", first)
    # Longer numbers are more than any limit, and Python refuses to read the longest.
    if all(part.isdecimal() and len(part) <= len(str(MAX_SEED)) for part in parts):
        seeds = range(int(parts[0]), int(parts[1]))
        if 0 < len(seeds) <= MAX_SEEDS and seeds[-1] <= MAX_SEED:
            return seeds
    raise ValueError(
        f"seeds must be a number from 1 to {MAX_SEEDS}, or FIRST:END with as many between them, got {text!r}."
    )


def _annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated
