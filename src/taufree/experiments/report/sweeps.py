"""The sweeps in folders of results: which lines can be compared with each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taufree.experiments.settings import name_and_value
from taufree.experiments.sweep.results import Line, comparable, line_key, read_results, sweep_key
from taufree.util.errors import BadInputError


@dataclass(frozen=True)
class Sweep:
    """Runs of one recipe with one choice of settings.

    Attributes:
        name: the recipe, and the settings in which it differs from the other sweeps beside it.
        lines: in the order in which they were written.
    """

    name: str
    lines: list[Line]


def find_sweeps(
    outs: Sequence[Path], texts: Sequence[str] = (), warn: Callable[[str], None] = lambda sentence: None
) -> list[Sweep]:
    """The newest sweep of each folder, or all that have certain settings; the same one in several is one.

    Args:
        outs: folders of results, also of sweeps that are under way, or files of results.
        texts: settings as ``NAME=VALUE``.
        warn: called with a sentence for each damaged line and for sweeps that are left out.
    """
    wanted = [name_and_value(text) for text in texts]
    lines: dict[str, Line] = {}
    kept: dict[str, None] = {}
    for out in outs:
        found = read_results(out, warn)
        keys = {sweep_key(line["recipe"], line["settings"]): line["settings"] for line in found}
        newest = sweep_key(found[-1]["recipe"], found[-1]["settings"])
        chosen = [
            key
            for key, settings in keys.items()
            if (all(_has(settings, *one) for one in wanted) if wanted else key == newest)
        ]
        if len(chosen) < len(keys) and not wanted:
            warn(
                f"{out} has runs of {len(keys)} choices of settings, of which the newest are shown; "
                "--set NAME=VALUE shows others."
            )
        kept |= dict.fromkeys(chosen)
        for line in found:
            lines.setdefault(line_key(line), line)  # the first folder's, where several have the same run
    if not kept:
        raise BadInputError(f"no run in {', '.join(map(str, outs))} has the settings {', '.join(texts)}.")
    groups = [comparable(list(lines.values()), {key}) for key in kept]
    return [Sweep(name, group) for name, group in zip(_names(groups), groups, strict=True)]


def show_value(value: Any) -> str:
    """A setting's value as ``--set`` has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _has(settings: Mapping[str, Any], name: str, text: str) -> bool:
    value = settings.get(name, ...)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return value == float(text)
        except ValueError:
            return False
    return value is not ... and text.lower() in (show_value(value).lower(), str(value).lower())


def _names(groups: Iterable[Sequence[Line]]) -> list[str]:
    """What tells the sweeps apart: the recipe, and the settings that not all sweeps of it share."""
    firsts = [group[0] for group in groups]
    names = []
    for line in firsts:
        same = [other["settings"] for other in firsts if other["recipe"] == line["recipe"]]
        apart = [
            f"{name} {show_value(line['settings'].get(name))}"
            for name in dict.fromkeys(name for settings in same for name in settings)
            if len({show_value(settings.get(name)) for settings in same}) > 1
        ]
        names.append(", ".join([line["recipe"], *apart]))
    return names
