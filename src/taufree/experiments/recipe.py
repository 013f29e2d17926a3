"""What a recipe is: data, views, encoder, training step and evaluation, in one file.

A recipe knows nothing of seeds, sweeps, devices, precision, checkpoints or tables; those belong to the
runner. It draws nothing random but from the generator it is given, so that every link of a seed sees the
same weights, batches and views.

To add one, write a module ``recipes/<name>.py`` with a subclass of :class:`Recipe` and, at its end,
``RECIPE = <that class>``. The module is imported when the recipe is asked for, not before, so a recipe may
import whatever it needs.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from taufree import Link
from taufree.experiments import recipes
from taufree.experiments.observation import Observation


@dataclass(frozen=True)
class Settings:
    """What every recipe lets its user choose; a recipe adds its own fields with their defaults."""

    epochs: int = 100
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}.")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, got {self.batch_size}.")


@dataclass(frozen=True)
class Step:
    """What one training step gives: the loss to minimise, and what the curves show of it."""

    loss: Tensor
    observation: Observation


class Recipe(ABC):
    """One experiment, for any link. The methods are called in the order in which they stand here."""

    name: ClassVar[str]
    title: ClassVar[str]
    """What is trained on what, in a few words, for the head of the report."""
    settings_type: ClassVar[type[Settings]] = Settings
    metrics: ClassVar[dict[str, str]]
    """Each metric of :meth:`evaluate` and how it is measured, in one sentence; higher is better."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def load(self, data: Path | None) -> None:
        """Read the data, from the folder ``data`` where the recipe needs one.

        Raises ValueError or OSError with one sentence where the data or the settings do not fit.
        """

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model, on the CPU. Its ``forward`` gives all that the steps and the evaluation need."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer of the model's parameters; the runner adds those of the link."""

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """The learning rate's schedule, moved on after every training step; None keeps it constant."""
        return None

    @abstractmethod
    def batches(self, epoch: int, generator: torch.Generator) -> Iterable[Any]:
        """The batches of one epoch, every draw from ``generator`` (a CPU one, seeded by seed and epoch).

        The runner moves them to the device. Views that are better made there are made in :meth:`step`,
        with the random numbers that were drawn here.
        """

    @abstractmethod
    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        """The loss of one batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The trained model's figures, higher is better. Inputs of ``model`` are moved to its device."""


def recipe_names() -> list[str]:
    """The recipes there are, by the names of their modules; none is imported for this."""
    return sorted(module.name for module in pkgutil.iter_modules(recipes.__path__))


def find_recipe(name: str) -> type[Recipe]:
    """The recipe of that name; its module is imported now.

    >>> find_recipe("digits").name
    'digits'
    """
    if name not in recipe_names():
        raise ValueError(f"recipe must be one of {', '.join(recipe_names())}, got {name!r}.")
    recipe: type[Recipe] = importlib.import_module(f"{recipes.__name__}.{name}").RECIPE
    return recipe
