"""One run: which recipe, with which link, seed and settings."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taufree.experiments.link_names import link_source
from taufree.experiments.registry import find_recipe
from taufree.experiments.settings import Settings
from taufree.experiments.training import ranks
from taufree.util.errors import BadInputError
from taufree.util.machine import hardware, versions
from taufree.util.source import source_digest

if TYPE_CHECKING:
    import torch

LINK_SOURCE = "link_source"
"""The setting, as recorded, that has the version of a user's own link."""


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
    save_model: bool = False
    """Whether the trained network is kept; it is the same run either way."""
    log: tuple[str, ...] = ()
    """The trackers that follow it, see :mod:`.training.trackers`."""

    @cached_property  # data that change meanwhile change nothing in a run that has begun
    def recorded_settings(self) -> dict[str, Any]:
        """The settings as they stand in the results, with the precision, and with what identifies the data,
        the recipe and the link where they are the user's own."""
        own = {
            "content": self.content,
            "source": source_digest(find_recipe(self.recipe).__module__),
            LINK_SOURCE: link_source(self.link),
        }
        recorded = {**asdict(self.settings), "precision": self.precision}
        return recorded | {name: value for name, value in own.items() if value is not None}

    @cached_property
    def content(self) -> str | None:
        """What identifies the user's own data, see :meth:`.Recipe.content`."""
        try:
            return find_recipe(self.recipe)(self.settings).content(self.data)
        except (ValueError, OSError) as error:
            raise BadInputError(str(error)) from error

    @property
    def tells_data_apart(self) -> bool:
        """Whether it is another run where the data have changed."""
        return self.content is not None and find_recipe(self.recipe).content_has_data

    def check_data(self) -> None:
        """Raise a BadInputError with one sentence if the data are not there."""
        try:
            find_recipe(self.recipe)(self.settings).check(self.data)
        except (ValueError, OSError) as error:
            raise BadInputError(str(error)) from error

    def line(
        self, metrics: Mapping[str, float], curves: Mapping[str, Any], started: float, device: torch.device
    ) -> dict[str, Any]:
        """Its line of the results, where it ends now and began when ``time.monotonic`` was ``started``."""
        return {
            "recipe": self.recipe,
            "link": self.link,
            "seed": self.seed,
            "settings": self.recorded_settings,
            "metrics": metrics,
            "seconds": round(time.monotonic() - started, 3),
            "date": datetime.date.today().isoformat(),
            "versions": versions(),
            "hardware": {**hardware(device), "ranks": ranks.world()},
            "curves": curves,
        }

    @property
    def key(self) -> str:
        """The same text for the same run."""
        return run_key(self.recipe, self.link, self.seed, self.recorded_settings)

    @property
    def slug(self) -> str:
        """A folder name of its own."""
        return run_slug(self.recipe, self.link, self.seed, self.recorded_settings)


def check_data(runs: Sequence[Run]) -> None:
    """Look whether the data of all runs are there, once for those that have them in common."""
    for run in {(run.recipe, run.settings, run.data): run for run in runs}.values():
        run.check_data()


def share_contents(runs: Sequence[Run]) -> None:
    """Look once at the data that runs have in common, which may be many files."""
    first: dict[tuple[str, Settings, Path | None], Run] = {}
    for run in runs:
        same = first.setdefault((run.recipe, run.settings, run.data), run)
        vars(run)["content"] = same.content


def run_key(recipe: str, link: str, seed: int, settings: dict[str, Any]) -> str:
    """What makes two runs the same run, as one line of JSON."""
    return json.dumps([recipe, link, seed, settings], sort_keys=True)


def run_slug(recipe: str, link: str, seed: int, settings: dict[str, Any]) -> str:
    """A name for a run's files, another one for each run."""
    digest = hashlib.sha256(run_key(recipe, link, seed, settings).encode()).hexdigest()[:8]
    recipe, link = (name.replace(":", ".") for name in (recipe, link))  # not every system has colons in names
    return f"{recipe}-{link}-seed{seed}-{digest}"
