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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from taufree import Link, nt_xent
from taufree.experiments.evaluation.pair_statistics import Observation


@dataclass(frozen=True)
class Settings:
    """What every recipe lets its user choose; a recipe adds its own fields with their defaults."""

    epochs: int = 100

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}.")

    def recorded(self) -> dict[str, Any]:
        """The settings as they stand in the results; runs with others are other runs."""
        return asdict(self)


@dataclass(frozen=True)
class BatchSettings(Settings):
    """The settings of a recipe that trains on one part of its data at a time."""

    batch_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, got {self.batch_size}.")


@dataclass(frozen=True)
class Preset:
    """How much of a recipe is run unless the user says more: seeds, and settings other than the defaults."""

    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)


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
    task: ClassVar[str] = (
        "The network learns without labels: two randomly changed copies of the same example (a positive "
        "pair) should get similar vectors, copies of different examples (negative pairs) should not."
    )
    """What the network learns and what its pairs are, for a reader of the report who is new to it."""
    settings_type: ClassVar[type[Settings]] = Settings
    metrics: ClassVar[dict[str, str]]
    """Each metric of :meth:`evaluate` and :meth:`follow` and how it is measured, in one sentence; higher is
    better."""
    presets: ClassVar[Mapping[str, Preset]]
    """At least "full", the recipe as it is meant, and "quick", a look at it in a minute."""
    static: ClassVar[bool] = False
    """Whether all batches are tuples of tensors of the same shapes, and steps differ in nothing else but the
    learning rate: a GPU then replays one recorded step, see :class:`.training.recorded.Replayed`.
    With a schedule the optimizer must take its learning rate from the device, as fused ones do."""
    stops_early: ClassVar[bool] = False
    """Whether :meth:`enough` may end the training, so that any epoch may be the last."""
    shared: ClassVar[bool] = False
    """Whether several ranks may share a batch by its rows, see :func:`.training.ranks.own_rows`.
    The loss must then gather, and nothing else but batch norms may look at more than a row."""
    gpu_precision: ClassVar[str] = "32-true"
    """The precision on a CUDA device, if the user names none."""
    tf32: ClassVar[bool] = False
    """Whether a CUDA device may round the factors of the network's float32 matrix products to TF32, which is
    many times faster. The losses of this package never do."""

    @classmethod
    def own_data(cls, data: Path) -> bool:
        """Whether a folder holds data of the user's own: runs on another folder are then other runs."""
        return False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: list[str] = []
        """Sentences for the user about the data, such as what was left out of them."""

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link) -> Tensor:
        """What :meth:`step` minimises for two views [N, D] of the same rows: NT-Xent over all ranks."""
        return nt_xent(view_a, view_b, link=link, gather_distributed=True)

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

    def settle(self, model: nn.Module, device: torch.device) -> bool:
        """Make ready for training on the device, where the model is, and say whether steps may be replayed.

        The place to keep data on the device, and to compile what is worth it there.
        """
        return self.static

    def begin(self, model: nn.Module) -> None:
        """Look at the model before it is trained, in evaluation mode, on its device and without gradients.

        A run that goes on from a checkpoint does this again, with the model as it was at first.
        """
        return

    @abstractmethod
    def batches(self, epoch: int, generator: torch.Generator) -> Iterable[Any]:
        """The batches of one epoch, every draw from ``generator`` (a CPU one, seeded by seed and epoch).

        The runner moves them to the device. Views that are better made there are made in :meth:`step`,
        with the random numbers that were drawn here.
        """

    @abstractmethod
    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        """The loss of one batch."""

    @property
    def follow_every(self) -> int:
        """How many epochs are from one :meth:`follow` to the next; a setting ``<name>_every`` for each figure
        tells those who draw its curve."""
        return 1

    def follow(self, model: nn.Module) -> dict[str, float]:
        """Figures after an epoch, higher is better: a curve each, and ``best_<name>`` is a metric more."""
        return {}

    def enough(self, curves: Mapping[str, Any]) -> bool:
        """Whether to stop before the last epoch, by the curves so far."""
        return False

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The trained model's figures, higher is better. Inputs of ``model`` are moved to its device."""

    def keep(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """Arrays of the trained model that the report draws, see :mod:`taufree.experiments.report.kept`."""
        return {}

    def scores(self, model: nn.Module) -> list[dict[str, Any]]:
        """One row for each example that was judged; every run's rows are written as a CSV file."""
        return []


def choose_settings(recipe: type[Recipe], preset: str, given: Mapping[str, Any]) -> tuple[Settings, int]:
    """A preset's settings and number of seeds; what is ``given`` and not None comes first.

    >>> choose_settings(find_recipe("digits"), "quick", {"epochs": None, "batch_size": 64})[0].epochs
    5
    """
    if preset not in recipe.presets:
        raise ValueError(f"preset must be one of {', '.join(recipe.presets)}, got {preset!r}.")
    known = {one.name for one in fields(recipe.settings_type)}
    wanted = {name: value for name, value in given.items() if value is not None}
    if unknown := wanted.keys() - known:
        raise ValueError(f"{min(unknown)} is not a setting of the recipe {recipe.name}.")
    chosen = recipe.presets[preset]
    return recipe.settings_type(**{**chosen.settings, **wanted}), chosen.seeds


MODULES = {
    "cifar10": "images.cifar10",
    "citeseer": "graphs.citeseer",
    "dcrec": "recommendation.dcrec",
    "digits": "digits",
    "imagenette": "images.imagenette",
    "images": "images.folder",
    "mabel": "language.mabel",
    "msc": "images.msc",
    "sentences": "language.sentences",
}


def recipe_names() -> list[str]:
    """The recipes there are, by name; none is imported for this."""
    return sorted(MODULES)


def find_recipe(name: str) -> type[Recipe]:
    """The recipe of that name; its module is imported now.

    >>> find_recipe("digits").name
    'digits'
    """
    if name not in recipe_names():
        raise ValueError(f"recipe must be one of {', '.join(recipe_names())}, got {name!r}.")
    recipe: type[Recipe] = importlib.import_module(f"taufree.experiments.{MODULES[name]}").RECIPE
    return recipe
