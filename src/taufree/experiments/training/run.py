"""One run: which recipe, with which link, seed and settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from taufree.experiments.registry import find_recipe, source_digest
from taufree.experiments.settings import Settings


@dataclass(frozen=True)
class Run:
    """One training: what it is, before there is a result. Runs with the same :attr:`key` are the same run."""

    recipe: str
    link: str
    seed: int
    settings: Settings
    precision: str = "32-true"
    device: str = "cpu"
    data: Path | None = None

    @cached_property  # data that change meanwhile change nothing in a run that has begun
    def recorded_settings(self) -> dict[str, Any]:
        """The settings as they stand in the results, with the precision, the folder of a user's own data, and
        the version of a user's own recipe."""
        recipe = find_recipe(self.recipe)
        recorded = {**self.settings.recorded(), "precision": self.precision}
        if self.data is not None and recipe.own_data(self.data):
            recorded["data"] = str(self.data.resolve())
        if source := source_digest(recipe):
            recorded["source"] = source
        return recorded

    @property
    def key(self) -> str:
        """The same text for the same run."""
        return run_key(self.recipe, self.link, self.seed, self.recorded_settings)

    @property
    def slug(self) -> str:
        """A folder name of its own."""
        return run_slug(self.recipe, self.link, self.seed, self.recorded_settings)


def run_key(recipe: str, link: str, seed: int, settings: dict[str, Any]) -> str:
    """What makes two runs the same run, as one line of JSON."""
    return json.dumps([recipe, link, seed, settings], sort_keys=True)


def run_slug(recipe: str, link: str, seed: int, settings: dict[str, Any]) -> str:
    """A name for a run's files, another one for each run."""
    digest = hashlib.sha256(run_key(recipe, link, seed, settings).encode()).hexdigest()[:8]
    link = link.replace(":", ".")  # not every system has colons in names
    return f"{recipe}-{link}-seed{seed}-{digest}"
