"""SimCLR on images, the recipe that Imagenette, CIFAR-10 and folders of images share.

LightlySSL's recipe for Imagenette: a ResNet-18 from random weights, two augmented views of each image,
NT-Xent, SGD with a cosine schedule, and a kNN classifier on the frozen features after every epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from taufree import Link
from taufree.experiments.acceleration import Acceleration
from taufree.experiments.evaluation.knn_and_linear import knn_accuracy, linear_accuracy, nearest
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.evaluation.report_arrays import MAP_POINTS, NEIGHBOUR_COUNT, QUERY_COUNT
from taufree.experiments.images.image_recipe import ImageRecipe, ViewSettings
from taufree.experiments.recipe import Preset, Step
from taufree.experiments.settings import Bounds
from taufree.util.optional import require

# It takes a second, so it is imported after wrong settings are refused.
require("torchvision", "taufree[images]")


@dataclass(frozen=True)
class SimCLRSettings(ViewSettings):
    """The defaults are LightlySSL's for Imagenette."""

    epochs: int = 800
    learning_rate: Annotated[
        float, "The highest learning rate of SGD for 256 pairs in a batch; it is scaled with the batch."
    ] = 6e-2
    momentum: Annotated[float, "The momentum of SGD.", Bounds(0, 1)] = 0.9
    weight_decay: Annotated[float, "The weight decay of SGD."] = 5e-4
    small_stem: Annotated[
        bool,
        "Begin the network with a 3 x 3 convolution at full resolution, for images of 32 pixels, instead of "
        "ImageNet's 7 x 7 one with stride 2 and a max-pool.",
    ] = False
    neighbours: Annotated[int, "How many neighbours vote in the kNN accuracy.", Bounds(1)] = 200
    knn_every: Annotated[
        int,
        "Epochs from one kNN accuracy to the next; on a GPU they take a fifth of a run.",
        Bounds(1),
    ] = 1
    projection: Annotated[int, "How many numbers of a view the loss compares.", Bounds(1)] = 128
    together: Annotated[
        bool,
        "Both views of a batch go through the network as one batch and share the batch norms' statistics; "
        "LightlySSL sends one after the other.",
    ] = True


class SimCLREncoder(nn.Module):
    """A ResNet-18 to 512 features, and SimCLR's head to the numbers that the loss compares.

    With ``uncertainty`` the head has one more output, for the scheme TaU.
    """

    def __init__(self, *, small_stem: bool, projection: int = 128, uncertainty: bool = False) -> None:
        super().__init__()
        from torchvision.models import resnet18

        self.backbone = resnet18(weights=None)
        self.backbone.fc = nn.Identity()
        if small_stem:
            self.backbone.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(self.backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.backbone.maxpool = nn.Identity()
        self.projector = nn.Sequential(
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, projection, bias=False),
            nn.BatchNorm1d(projection),
        )
        # Last, so that all other weights of a seed are the same with and without it.
        self.uncertainty = nn.Linear(512, 1) if uncertainty else None
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Features [N, 512] and projections [N, projection] of images [N, 3, H, W], and their uncertainties
        [N]."""
        features = self.backbone(images)
        # The loss resolves cosines that bfloat16 does not; the head is small.
        with torch.autocast(images.device.type, enabled=False):
            hidden = self.projector[:3](features.to(self.projector[0].weight.dtype))
            found = features, self.projector[3:](hidden)
            return found if self.uncertainty is None else (*found, self.uncertainty(hidden).squeeze(1))


class SimCLR(ImageRecipe):
    """A recipe is a subclass that finds its images."""

    settings_type = SimCLRSettings
    metrics: ClassVar = {
        "knn": "% of validation images that a vote of their nearest training images classifies rightly, "
        "after the last epoch",
        "best_knn": "the same after the best epoch, chosen by these very images, as LightlySSL reports it",
        "linear": "% of validation images that a logistic regression on the features classifies rightly",
    }
    presets: ClassVar = {
        "full": Preset(seeds=3),
        "quick": Preset(seeds=1, settings={"epochs": 3, "batch_size": 64, "crop": 64, "subset": 256}),
    }
    independent_rows = True
    serves: ClassVar = frozenset({"index", "uncertainty"})

    settings: SimCLRSettings

    @property
    def sample_count(self) -> int:
        return self.images.training

    def model(self) -> nn.Module:
        chosen, uncertainty = self.settings, "uncertainty" in self.needed
        return SimCLREncoder(
            small_stem=chosen.small_stem, projection=chosen.projection, uncertainty=uncertainty
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        chosen = self.settings
        return torch.optim.SGD(
            model.parameters(),
            lr=chosen.learning_rate * chosen.batch_size / 256,
            momentum=chosen.momentum,
            weight_decay=chosen.weight_decay,
            fused=True,
        )

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        """A cosine from 1 towards 0, the same for all steps of an epoch."""
        epochs = self.settings.epochs
        return LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * (step // self.steps) / epochs)) / 2)

    def compiled(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, SimCLREncoder)
        return [model.backbone]

    def accelerate(self, model: nn.Module, device: torch.device) -> Acceleration:
        self._labels = self.images.labels.to(device)
        return super().accelerate(model, device)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        views, index = self.views(batch), self.numbers(batch)
        parts = [views] if self.settings.together else views.chunk(2)
        _, projections, *uncertainty = map(torch.cat, zip(*map(model, parts), strict=True))
        a, b = projections.chunk(2)
        inputs = dict(zip(sorted(self.needed), [*index, *uncertainty], strict=True))
        return Step(self.loss(a, b, link, **inputs), observe_views(a, b, link, anchors=64))

    def embed(self, model: nn.Module, views: Tensor) -> Tensor:
        features: Tensor = model(views)[0]
        return features

    @property
    def follow_every(self) -> int:
        return self.settings.knn_every

    def follow(self, model: nn.Module) -> dict[str, float]:
        return {"knn": self._knn(*self.features(model))}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        bank, features = self.features(model)
        known, truth = self._labels[: len(bank)], self._labels[len(bank) :]
        linear = linear_accuracy(bank, known, features, truth)
        return {"knn": self._knn(bank, features), "linear": linear}

    def keep(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """Features of some validation images, and the training images nearest to a few of them."""
        bank, features = self.features(model)
        count, training = len(features), self.images.training
        shown, queries = (
            torch.linspace(0, count - 1, min(most, count)).round().long()
            for most in (MAP_POINTS, QUERY_COUNT)
        )
        found = nearest(bank, features[queries.to(self._device)], NEIGHBOUR_COUNT)
        rows = torch.cat([queries[:, None] + training, found.cpu()], dim=1)
        return {
            "features": features.cpu()[shown].half().numpy(),
            "labels": self.images.labels[training:][shown].numpy(),
            "classes": np.array(self.images.classes),
            "thumbnails": self.thumbnails(rows),
            "thumbnail_labels": self.images.labels[rows].numpy(),
        }

    def _knn(self, bank: Tensor, features: Tensor) -> float:
        known, truth = self._labels[: len(bank)], self._labels[len(bank) :]
        return knn_accuracy(bank, known, features, truth, k=self.settings.neighbours)
