"""What a page says of an experiment: from its recipe or, where that is not here, from the results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taufree.experiments.link_names import OWN
from taufree.experiments.recipe import Recipe
from taufree.experiments.registry import find_recipe
from taufree.experiments.sweep.results import Line

_TASK = (
    "What belongs together (a positive pair) should get similar vectors, and what does not (negative pairs) "
    "should not."
)


@dataclass(frozen=True)
class About:
    """The texts of :class:`.Recipe` that a page needs, and the preset that the settings are those of."""

    name: str
    title: str
    task: str
    metrics: Mapping[str, str]
    select_by: str | None = None
    data_source: str | None = None
    preset: str | None = None


def about(lines: Sequence[Line]) -> About:
    """The experiment of lines of one recipe.

    A function of the user's own has no recipe, and a recipe may be on another machine, or need what is not
    installed here: their metrics have their names alone.
    """
    name = lines[0]["recipe"]
    try:
        if OWN in name:
            raise ValueError("a function")
        recipe = find_recipe(name)
    except ValueError:
        module, _, function = name.partition(OWN)
        title = f"{function} of {module}" if function else name
        metrics = dict.fromkeys(metric for line in lines for metric in line["metrics"])
        return About(name, title, _TASK, dict.fromkeys(metrics, ""))
    return About(
        name,
        recipe.title,
        recipe.task,
        recipe.metrics,
        recipe.select_by,
        recipe.data_source,
        _preset(recipe, lines[-1]["settings"]),
    )


def _preset(recipe: type[Recipe], settings: Mapping[str, Any]) -> str | None:
    """The preset whose changes of the defaults these settings have; "full" changes none and is not told."""
    found = {
        name: len(preset.settings)
        for name, preset in recipe.presets.items()
        if preset.settings.items() <= settings.items()
    }
    best = max(found, key=lambda name: found[name], default=None)
    return best if best is not None and found[best] else None
