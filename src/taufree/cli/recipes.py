"""``taufree recipes``: what ``taufree run`` can train, and the settings of each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from taufree.cli.messages import imports, refusing

if TYPE_CHECKING:
    from taufree.experiments.recipe import Recipe


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Show this one with its data and settings.")
    ] = None,
) -> None:
    """List the recipes, or show one with its settings.

    \b
    Examples:
      taufree recipes
      taufree recipes dcrec
      taufree recipes mine      a recipe of your own: the file mine.py
    """
    from taufree.experiments.registry import find_recipe

    sys.path.append(str(Path.cwd()))  # as taufree run does
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if name is None:
        with imports():
            listed = _listed()
        console.print(listed)
        console.print("Settings, data and an example of one: taufree recipes RECIPE")
        return
    with refusing(), imports():
        recipe = find_recipe(name)
    _show(recipe, console)


def _listed() -> Table:
    """A row for each recipe; one whose packages are missing says what to install."""
    from taufree.experiments.registry import find_recipe, recipe_names
    from taufree.util.errors import MissingPackageError

    table = _table("recipe", "what it trains", "presets: seeds")
    for name in recipe_names():
        try:
            recipe = find_recipe(name)
        except MissingPackageError as error:
            table.add_row(name, str(error), "")
        else:
            seeds = ", ".join(f"{preset} {one.seeds}" for preset, one in recipe.presets.items())
            table.add_row(name, recipe.title, seeds)
    return table


def _show(recipe: type[Recipe], console: Console) -> None:
    from taufree.experiments.settings import list_settings

    console.print(f"{recipe.name}: {recipe.title}")
    console.print(recipe.task)
    console.print(f"Data: {recipe.data_source}")
    for name, preset in recipe.presets.items():
        changes = "".join(f", {key}={value}" for key, value in preset.settings.items())
        console.print(f"Preset {name}: {preset.seeds} seed{'s' * (preset.seeds > 1)}{changes}")
    settings = _table("setting", "default", "what it is")
    for one in list_settings(recipe.settings_type):
        needed = "" if one.kind is str else f" Must be {one.needed}."
        default = str(one.default).lower() if isinstance(one.default, bool) else str(one.default)
        settings.add_row(one.name, default, f"{one.sentence}{needed}".strip())
    console.print(settings)
    metrics = _table("metric", "how it is measured; higher is better")
    for name, sentence in recipe.metrics.items():
        metrics.add_row(name, sentence)
    console.print(metrics)
    console.print(f"Example: {recipe.example or f'taufree run {recipe.name} --preset quick'}")


def _table(*columns: str) -> Table:
    table = Table(*columns)
    for column in table.columns:
        column.overflow = "fold"  # nothing is cut off
    return table
