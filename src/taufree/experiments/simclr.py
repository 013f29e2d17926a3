"""SimCLR on images, the recipe that Imagenette, CIFAR-10 and folders of images share.

LightlySSL's recipe for Imagenette: a ResNet-18 from random weights, two augmented views of each image,
NT-Xent, SGD with a cosine schedule, and a kNN classifier on the frozen features after every epoch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from taufree import Link
from taufree.experiments.augment import Parameters, augment, centre_crop, centre_view, draw_parameters
from taufree.experiments.embedding import NEIGHBOURS, QUERIES, SHOWN, THUMBNAIL
from taufree.experiments.evaluation import knn_accuracy, linear_accuracy, nearest
from taufree.experiments.images import Images, ahead, fits
from taufree.experiments.observation import observe_views
from taufree.experiments.recipe import BatchSettings, Preset, Recipe, Step
from taufree.experiments.run import BadInputError

try:
    from torchvision.models import resnet18
except ModuleNotFoundError as error:
    raise BadInputError(
        f'recipes on images need {error.name} as well: pip install "taufree[images]"'
    ) from error


@dataclass(frozen=True)
class ImageSettings(BatchSettings):
    """The defaults are LightlySSL's for Imagenette.

    Attributes:
        learning_rate: for 256 pairs in a batch; it is scaled with the batch.
        crop: pixels of a view's side.
        blur: the probability that a view is blurred.
        small_stem: a 3 x 3 convolution at full resolution at the network's entry, for images of 32 pixels,
            instead of ImageNet's 7 x 7 one with stride 2 and a max-pool.
        neighbours: how many neighbours vote in the kNN accuracy.
        projection: how many numbers of a view the loss compares.
        subset: use so many training and so many validation images at most, evenly from all classes; 0 is all.
    """

    epochs: int = 800
    learning_rate: float = 6e-2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    crop: int = 128
    blur: float = 0.5
    small_stem: bool = False
    neighbours: int = 200
    projection: int = 128
    subset: int = 0


class Encoder(nn.Module):
    """A ResNet-18 to 512 features, and SimCLR's head to the numbers that the loss compares."""

    def __init__(self, *, small_stem: bool, projection: int = 128) -> None:
        super().__init__()
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
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features [N, 512] and projections [N, projection] of images [N, 3, H, W]."""
        features = self.backbone(images)
        # The loss resolves cosines that bfloat16 does not; the head is small.
        with torch.autocast(images.device.type, enabled=False):
            return features, self.projector(features.to(self.projector[0].weight.dtype))


class SimCLR(Recipe):
    """A recipe is a subclass that finds its images."""

    settings_type = ImageSettings
    metrics: ClassVar = {
        "knn": "% of validation images that their 200 nearest training images vote for rightly, after the "
        "last epoch",
        "best_knn": "the same after the best epoch, chosen by these very images, as LightlySSL reports it",
        "linear": "% of validation images that a logistic regression on the features classifies rightly",
    }
    presets: ClassVar = {
        "full": Preset(seeds=3),
        "quick": Preset(seeds=1, settings={"epochs": 3, "batch_size": 64, "crop": 64, "subset": 256}),
    }
    static = True
    gpu_precision = "bf16-mixed"

    settings: ImageSettings

    @abstractmethod
    def find(self, data: Path | None) -> Images:
        """The images, no more than the setting ``subset`` allows."""

    def load(self, data: Path | None) -> None:
        self.images = self.find(data)
        count, skipped = len(self.images.labels), self.images.skipped
        if skipped:
            names = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
            self.notes.append(
                f"{len(skipped)} of {count + len(skipped)} images cannot be read and are left out: {names}."
            )
        if not self.images.training < count:
            raise ValueError("none of the validation images can be read.")
        if self.settings.batch_size > self.images.training:
            raise ValueError(
                f"batch_size must be at most {self.images.training}, the number of training images, "
                f"got {self.settings.batch_size}."
            )
        self.steps = self.images.training // self.settings.batch_size

    def model(self) -> nn.Module:
        return Encoder(small_stem=self.settings.small_stem, projection=self.settings.projection)

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

    def settle(self, model: nn.Module, device: torch.device) -> bool:
        self._device = device
        self._sizes, self._labels = self.images.sizes.to(device), self.images.labels.to(device)
        # Images that stay on the device are taken by their numbers, others come with each batch.
        self._resident = fits(self.images.bytes, device)
        self._lines = self.images.lines.to(device) if self._resident else self.images.lines
        views: tuple[Callable[..., Tensor], Callable[..., Tensor]] = (augment, centre_view)
        if device.type == "cuda":
            torch.compiler.reset()  # graphs of runs before in this process would count against a limit
            torch.backends.cudnn.benchmark = True
            assert isinstance(model, Encoder)
            model.backbone.compile(dynamic=False)
            views = torch.compile(augment, dynamic=False), torch.compile(centre_view, dynamic=False)
        self._augment, self._centre = (partial(view, size=self.settings.crop) for view in views)
        # Recording a step forbids other threads the device, and images come through one.
        return self._resident

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Images, or where they are on the device their numbers, and the parameters of two views of each.

        Everything random of the epoch is drawn, and moved to the device, at once.
        """
        size = self.settings.batch_size
        order = torch.randperm(self.images.training, generator=generator)[: self.steps * size]
        order = order.view(self.steps, size)
        sizes = self.images.sizes[order].repeat(1, 2, 1)
        drawn = draw_parameters(sizes.flatten(0, 1), generator, blur=self.settings.blur)
        parts = [part.view(self.steps, 2 * size, *part.shape[1:]).to(self._device) for part in drawn]
        for step, images in enumerate(self._sent(order)):
            yield images, *(part[step] for part in parts)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        images, *drawn = batch
        lines = self._lines_of(images)
        views = self._augment(torch.cat([lines, lines]), Parameters(*drawn))
        a, b = model(views)[1].chunk(2)
        return Step(self.loss(a, b, link), observe_views(a, b, link, anchors=64))

    def follow(self, model: nn.Module) -> dict[str, float]:
        return {"knn": self._knn(*self._features(model))}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        bank, features = self._features(model)
        known, truth = self.images.labels[: len(bank)], self.images.labels[len(bank) :]
        linear = linear_accuracy(bank.cpu(), known, features.cpu(), truth)
        return {"knn": self._knn(bank, features), "linear": linear}

    def keep(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """Features of some validation images, and the training images nearest to a few of them."""
        bank, features = self._features(model)
        count, training = len(features), self.images.training
        shown, queries = (
            torch.linspace(0, count - 1, min(most, count)).round().long() for most in (SHOWN, QUERIES)
        )
        found = nearest(bank, features[queries.to(self._device)], NEIGHBOURS)
        rows = torch.cat([queries[:, None] + training, found.cpu()], dim=1)
        small = centre_crop(
            self.images.lines[rows.flatten()], self.images.sizes[rows.flatten()], size=THUMBNAIL
        )
        pixels = small.mul(255).round().byte().transpose(2, 3)
        return {
            "features": features.cpu()[shown].half().numpy(),
            "labels": self.images.labels[training:][shown].numpy(),
            "classes": np.array(self.images.classes),
            "thumbnails": pixels.reshape(*rows.shape, *pixels.shape[1:]).numpy(),
            "thumbnail_labels": self.images.labels[rows].numpy(),
        }

    def _knn(self, bank: Tensor, features: Tensor) -> float:
        known, truth = self._labels[: len(bank)], self._labels[len(bank) :]
        return knn_accuracy(bank, known, features, truth, k=self.settings.neighbours)

    def _features(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Backbone features of the training and of the validation images, float32 on the device."""
        size, count = 2 * self.settings.batch_size, len(self.images.labels)
        # The last part is filled up, so that a compiled network sees one shape.
        order = torch.arange(-(-count // size) * size).clamp(max=count - 1).view(-1, size)
        found = [
            model(self._centre(self._lines_of(images), sizes))[0]
            for images, sizes in zip(self._sent(order), self._sizes[order.to(self._device)], strict=True)
        ]
        features = torch.cat(found)[:count].float()
        return features[: self.images.training], features[self.images.training :]

    def _sent(self, order: Tensor) -> Iterable[Tensor]:
        """For each row of ``order`` what :meth:`_lines_of` makes these images from, on the device."""
        if self._resident:
            return order.to(self._device)
        return ahead(self._fetch, order)

    def _lines_of(self, images: Tensor) -> Tensor:
        return self._lines[images] if self._resident else images

    def _fetch(self, rows: Tensor) -> Tensor:
        lines = self._lines[rows]
        if self._device.type == "cuda":
            lines = lines.pin_memory()
        return lines.to(self._device, non_blocking=True)
