"""What a recipe is: the data, the model, the training step and the evaluation of one experiment.

:mod:`taufree.experiments.digits` is the one to copy. A recipe is one file, found by its name, see
:mod:`taufree.experiments.registry`. How to make one faster on a GPU is apart from this, in
:mod:`taufree.experiments.acceleration`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from taufree import Link, nt_xent
from taufree.baselines import Scheme
from taufree.experiments.evaluation.pair_statistics import Observation
from taufree.experiments.settings import Settings, list_settings, name_and_value


@dataclass(frozen=True)
class Preset:
    """How much of a recipe is run: the number of seeds, and settings other than the defaults."""

    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What one training step gives: the loss to minimise, and what the curves show of it."""

    loss: Tensor
    observation: Observation


class Recipe(ABC):
    """One experiment, for any link: eight methods, of which :meth:`scheduler` and :meth:`loss` have defaults.

    They stand here in the order in which they are called, and below them what only some experiments need.
    Seeds, devices, precision, checkpoints and results are the trainer's: it moves to the device each batch
    and whatever the model is called with. Random numbers come from the generator that :meth:`batches` is
    given, or from PyTorch's global one, which is seeded by seed and epoch; so all links of a seed get the
    same weights, batches and views.
    """

    name: ClassVar[str]
    """As in ``taufree run NAME``; that of the file, where the recipe is a user's own."""
    title: ClassVar[str]
    """What is trained on what, in a few words, for the head of the report."""
    task: ClassVar[str] = (
        "The network learns without labels: two randomly changed copies of the same example (a positive "
        "pair) should get similar vectors, copies of different examples (negative pairs) should not."
    )
    """What the network learns and what its pairs are, for a reader of the report who is new to it."""
    data_source: ClassVar[str] = "Nothing to download."
    """Where the data come from, and what the folder ``--data`` holds."""
    example: ClassVar[str] = ""
    """A command that shows more than ``taufree run NAME --preset quick``."""
    settings_type: ClassVar[type[Settings]] = Settings
    metrics: ClassVar[dict[str, str]]
    """The figures that are reported, of :meth:`evaluate` and :meth:`follow`, and how each is measured, in one
    sentence; higher is better. ``best_<figure>`` is the highest one that was followed."""
    presets: ClassVar[Mapping[str, Preset]] = {
        "full": Preset(seeds=3),
        "quick": Preset(seeds=1, settings={"epochs": 1}),
    }
    """At least "full", the recipe as it is meant, and "quick", a look at it in a minute."""
    independent_rows: ClassVar[bool] = False
    """Whether a batch is a tuple of tensors with a row for each example (k rows for k views), and no row has
    a part in another's but by :meth:`loss` and batch norms. Such a batch can be split over processes."""
    select_by: ClassVar[str | None] = None
    """The figure of :meth:`follow` that chooses the epoch: the weights with the highest one are evaluated.
    None: those of the last epoch are."""

    serves: ClassVar[frozenset[str] | None] = None
    """For the schemes of :mod:`taufree.baselines` that are losses: what :meth:`step` gives :meth:`loss` of
    what some of them need besides two views, "index" and "uncertainty". None: :meth:`step` takes links
    alone."""

    pairs: ClassVar[bool] = False
    """Whether the views are of different kinds, as images and texts are, so that a row's candidates are those
    of the other kind alone."""

    content_has_data: ClassVar[bool] = True
    """Whether :meth:`content`, where it gives a text, changes with all of the user's own data."""

    needed: frozenset[str] = frozenset()
    """What the scheme that is trained needs of it; known before :meth:`model` is asked for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: list[str] = []
        """Sentences for the user about the data, such as what was left out of them."""

    @abstractmethod
    def load(self, data: Path | None) -> None:
        """Read the data, from the folder ``data`` where the recipe needs one.

        Raises ValueError or OSError with one sentence where the data or the settings do not fit.
        """

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model. Its ``forward`` gives all that the steps and the evaluation need."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer of the model's parameters; the trainer adds those of the link."""

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """The learning rate's schedule, moved on after every training step; None keeps it constant."""
        return None

    @abstractmethod
    def batches(self, epoch: int, generator: torch.Generator) -> Iterable[Any]:
        """The batches of one epoch, which is 0 at first; ``generator`` is seeded by seed and epoch."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        """The loss of one batch, with what was observed."""

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link | Scheme, **inputs: Tensor) -> Tensor:
        """What :meth:`step` minimises for two views [N, D] of the same rows: NT-Xent of the whole batch, also
        where that is split over processes; or a scheme's own loss, with those ``inputs`` that it needs."""
        if isinstance(link, Scheme):
            found: Tensor = link(view_a, view_b, **{name: inputs[name] for name in sorted(link.needs)})
            return found
        return nt_xent(view_a, view_b, link=link, gather_distributed=True)

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The figures of the trained model, which is in evaluation mode, without gradients."""

    # For experiments that need more.

    @property
    def sample_count(self) -> int | None:
        """How many examples are trained on, where ``serves`` has "index"; known after :meth:`load`."""
        return None

    def begin(self, model: nn.Module) -> None:
        """Look at the model before it is trained, in evaluation mode, without gradients.

        A run that goes on from a checkpoint does this again, with the model as it was at first.
        """
        return

    def follow(self, model: nn.Module) -> dict[str, float]:
        """Figures of the model after an epoch, of which each becomes a curve of the report."""
        return {}

    @property
    def follow_every(self) -> int:
        """Epochs from one :meth:`follow` to the next; the report reads a setting ``<figure>_every``."""
        return 1

    @property
    def patience(self) -> int | None:
        """Training ends when so many values of ``select_by`` in a row are no better; None: it never does."""
        return None

    def keep(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """Arrays of the trained model that the report draws, see :mod:`.evaluation.report_arrays`."""
        return {}

    def scores(self, model: nn.Module) -> list[dict[str, Any]]:
        """One row for each example that was judged; every run's rows are written as a CSV file."""
        return []

    # For models that are saved and used on new data.

    def network(self) -> nn.Module:
        """A model that saved weights are put into, made without the data: :meth:`load` was not called."""
        return self.model()

    def saved_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """What :meth:`score_new` needs beside the trained model; it is saved with it."""
        return {}

    def embed_new(
        self, model: nn.Module, source: Path, watch: Callable[[int, int], None]
    ) -> tuple[list[str], Tensor]:
        """Names and vectors [N, D], on the CPU, of what ``taufree embed`` is given, a folder or a file.

        Args:
            model: in evaluation mode, on its device.
            watch: called with how much is done, of how much.
        """
        raise ValueError(f"the recipe {self.name} cannot embed new data.")

    def score_new(
        self, model: nn.Module, saved: Mapping[str, Tensor], source: Path, watch: Callable[[int, int], None]
    ) -> list[dict[str, Any]]:
        """A row for each example that ``taufree score`` is given; ``saved`` are the saved tensors."""
        raise ValueError(f"the recipe {self.name} has no scores for new data.")

    # About the data.

    def check(self, data: Path | None) -> None:
        """Raise as :meth:`load` does where the files of the data are not there.

        It is called before the runs begin, which takes seconds, so it only looks whether they exist.
        """
        if data is not None and not data.exists():
            raise ValueError(f"No such folder: {data}.")

    def content(self, data: Path | None) -> str | None:
        """A text that changes with data of the user's own: runs on other data are other runs.

        None where the data are always the same ones. It is called before the runs begin, so it is quick, and
        raises as :meth:`load` does.
        """
        return None


def choose_settings(
    recipe: type[Recipe], preset: str, given: Mapping[str, Any] | None = None, texts: Iterable[str] = ()
) -> tuple[Settings, int]:
    """A preset's settings, changed as the user wants, and its number of seeds.

    Args:
        given: values by the names of settings; None is not given.
        texts: more of them, as ``--set`` has them: ``NAME=VALUE``.

    >>> from taufree.experiments.digits import Digits
    >>> choose_settings(Digits, "quick", {"epochs": 3}, ["noise=0.3"])[0].noise
    0.3
    """
    if preset not in recipe.presets:
        raise ValueError(f"preset must be one of {', '.join(recipe.presets)}, got {preset!r}.")
    known = {setting.name: setting for setting in list_settings(recipe.settings_type)}
    wanted = {name: value for name, value in (given or {}).items() if value is not None}
    for text in texts:
        name, value = name_and_value(text)
        if name in wanted:
            raise ValueError(f"{name} is given twice.")
        wanted[name] = known[name].parse(value) if name in known else value
    if unknown := wanted.keys() - known:
        raise ValueError(
            f"the recipe {recipe.name} has no setting {min(unknown)}; it has {', '.join(known)}."
        )
    chosen = recipe.presets[preset]
    return recipe.settings_type(**{**chosen.settings, **wanted}), chosen.seeds
