"""MSC, mean-shifted contrastive learning, on CIFAR-10 or a folder: the paper's anomaly benchmark.

A network that was trained on ImageNet is adapted to normal images alone. NT-Xent compares directions seen
from the centre of the normal features, not from the origin, so that features which all point the same way
can still be told apart. An image is the more anomalous, the further it is from its nearest normal ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from taufree import Link
from taufree.experiments.evaluation.knn_and_linear import knn_distance
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.evaluation.report_arrays import EXTREME_COUNT, THUMBNAIL_SIDE
from taufree.experiments.images.backbones import (
    Backbone,
    HalfFrozen,
    check_weights,
    make_backbone,
    read_weights,
    weights_content,
)
from taufree.experiments.images.cifar10 import CLASSES, evenly, load_cifar10
from taufree.experiments.images.decoded import DecodedImages, from_arrays, load_images
from taufree.experiments.images.image_recipe import ImageRecipe, ViewSettings
from taufree.experiments.images.listing import Listing, find_cases
from taufree.experiments.recipe import Preset, Step
from taufree.experiments.settings import Bounds

RESIZE = 256 / 224
"""The shorter side before the crop that images are scored by, in crops."""


@dataclass(frozen=True)
class MSCSettings(ViewSettings):
    """The defaults are the paper's, on the public code of MSC."""

    epochs: int = 25
    batch_size: int = 32
    crop: int = 224
    normal: Annotated[
        str, "The class that is normal; with the protocol one-anomalous, the only class that is not."
    ] = "airplane"
    protocol: Annotated[
        Literal["one-normal", "one-anomalous"],
        "Which classes are normal: one, as in the public code, or all but one, as the paper words it.",
    ] = "one-normal"
    backbone: Annotated[
        Backbone, "The network: torchvision's, or resnet50-v1, the ResNet-50 that was published first."
    ] = "resnet152"
    weights: Annotated[
        str, "imagenet (downloaded), random, or a file of weights: safetensors or a state dict."
    ] = "imagenet"
    angular: Annotated[bool, "Add the angular term, which draws features towards their centre."] = False
    learning_rate: Annotated[float, "The learning rate of SGD."] = 1e-5
    weight_decay: Annotated[float, "The weight decay of SGD."] = 5e-5
    neighbours: Annotated[
        int, "How many distances to the nearest normal images a score is the sum of.", Bounds(1)
    ] = 2


class MSC(ImageRecipe):
    name = "msc"
    title = "MSC, anomaly detection"
    data_source = (
        "cifar10.npz in the folder --data, or your own there: train/CLASS and test/CLASS (or val/CLASS), or "
        "CLASS; CIFAR-10 is downloaded if no folder is given."
    )
    example = "taufree run msc --data FOLDER --set normal=good --links free --seeds 1"
    task = (
        "The network, trained on ImageNet before, sees normal images alone: two randomly changed copies of "
        "the same one (a positive pair) should lie in similar directions from the centre of all of them, "
        "copies of different ones (negative pairs) should not. An image far from all normal ones is an "
        "anomaly."
    )
    settings_type = MSCSettings
    metrics: ClassVar = {
        "auc": "ROC-AUC in %, how often a test image that is not normal scores higher than one that is",
        "gain": "the same, minus what it was before training",
    }
    serves: ClassVar = frozenset()
    presets: ClassVar = {
        "full": Preset(seeds=5),
        "quick": Preset(
            seeds=1,
            settings={
                "epochs": 1, "batch_size": 16, "crop": 64, "subset": 64, "backbone": "resnet18",
                "weights": "random",
            },
        ),
    }  # fmt: skip
    smallest = 0.2
    stored_side = 256
    _state: dict[str, Tensor] | None = None
    """The weights before training; a network for saved ones needs none."""

    settings: MSCSettings

    @property
    def resize(self) -> int:
        return round(RESIZE * self.settings.crop)

    def load(self, data: Path | None) -> None:
        self._state = read_weights(self.settings.backbone, self.settings.weights)
        if self._state is None:
            self.notes.append("The network starts from random weights, so its scores say little.")
        super().load(data)
        tested = self.images.labels[self.images.training :].numpy()
        self._anomalous = ~self._normal(tested, self.images.classes)
        if len(set(self._anomalous.tolist())) < 2:
            raise ValueError(
                f"the {len(tested)} test images must be normal and anomalous ones, but are all of one kind."
            )

    def check(self, data: Path | None) -> None:
        super().check(data)
        check_weights(self.settings.weights)

    def content(self, data: Path | None) -> str | None:
        images = None if data is None or _holds_cifar10(data) else self._listing(data).fingerprint()
        return "-".join(filter(None, (images, weights_content(self.settings.weights)))) or None

    def find(self, data: Path | None) -> DecodedImages:
        if data is None or _holds_cifar10(data):
            return self._find_cifar10(data)
        listing = self._listing(data)
        images = load_images(listing, self.stored_side)
        skipped = set(images.skipped)
        self._names = [file.name for file in listing.val if file.name not in skipped]
        return images

    def _listing(self, data: Path) -> Listing:
        chosen = self.settings
        cases = find_cases(data, chosen.normal, normal=chosen.protocol == "one-normal")
        return cases.thinned(chosen.subset)

    def _find_cifar10(self, data: Path | None) -> DecodedImages:
        if self.settings.normal not in CLASSES:
            raise ValueError(f"normal must be one of {', '.join(CLASSES)}, got {self.settings.normal!r}.")
        x_train, y_train, x_test, y_test = load_cifar10(data)
        train = np.flatnonzero(self._normal(y_train, CLASSES))
        train = train[evenly(y_train[train], self.settings.subset)]
        test = evenly(y_test, self.settings.subset)
        self._names = [f"test/{number}" for number in test]
        return from_arrays(x_train[train], y_train[train], x_test[test], y_test[test], CLASSES)

    def _normal(self, labels: NDArray[Any], classes: Sequence[str]) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = np.equal(labels, classes.index(self.settings.normal))
        return chosen if self.settings.protocol == "one-normal" else ~chosen

    def model(self) -> nn.Module:
        network = make_backbone(self.settings.backbone)
        if self._state is not None:
            network.load_state_dict(self._state)
        return HalfFrozen(network)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [weight for weight in model.parameters() if weight.requires_grad],
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    def compiled(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, HalfFrozen)
        # Apart, since the frozen half is the same for training and scoring and is then compiled once.
        return [model.frozen, model.trained]

    def begin(self, model: nn.Module) -> None:
        bank, features = self.features(model)
        self._untrained = self._auc(knn_distance(bank, features, k=self.settings.neighbours))
        centre = bank.mean(0)
        self.centre = normalize(centre, dim=-1) if self.settings.angular else centre
        """The mean [D] of the normal training features; of length 1 where there is the angular term."""

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        """NT-Xent of a - m and b - m, with m the centre and a, b the features of two views.

        The angular term adds mean |a - m|^2 + mean |b - m|^2, which is 4 - 2 cos(a, m) - 2 cos(b, m) in the
        mean, as m has length 1 then.
        """
        a, b = (model(self.views(batch)) - self.centre).chunk(2)
        loss = self.loss(a, b, link)
        if self.settings.angular:
            loss = loss + a.square().sum(-1).mean() + b.square().sum(-1).mean()
        return Step(loss, observe_views(a, b, link))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self._bank, features = self.features(model)
        self._distances = knn_distance(self._bank, features, k=self.settings.neighbours)
        auc = self._auc(self._distances)
        return {"auc": auc, "gain": auc - self._untrained}

    def keep(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """The test images with the highest and those with the lowest scores.

        Not more than there are anomalous and normal ones: further images would be on the wrong side of a
        perfect detector too. The shorter row is filled up with white ones.
        """
        order = self._distances.argsort(descending=True, stable=True).cpu()
        high, low = (min(EXTREME_COUNT, int(kind.sum())) for kind in (self._anomalous, ~self._anomalous))
        count = max(high, low)
        rows = [order[:high], order.flip(0)[:low]]
        thumbnails = np.full((2, count, THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3), 255, np.uint8)
        anomalous = np.repeat([[True], [False]], count, axis=1)
        for i, row in enumerate(rows):
            thumbnails[i, : len(row)] = self.thumbnails(row + self.images.training)
            anomalous[i, : len(row)] = self._anomalous[row.numpy()]
        return {"thumbnails": thumbnails, "anomalous": anomalous}

    def scores(self, model: nn.Module) -> list[dict[str, Any]]:
        """The test images, the most anomalous first."""
        labels = self.images.labels[self.images.training :].tolist()
        found = {
            "image": self._names,
            "class": [self.images.classes[label] for label in labels],
            "anomalous": self._anomalous.astype(int).tolist(),
            "score": [round(score, 6) for score in self._distances.tolist()],
        }
        rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return sorted(rows, key=lambda row: -row["score"])

    def saved_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The features of the normal training images."""
        return {"normal_features": self._bank}

    def score_new(
        self, model: nn.Module, saved: Mapping[str, Tensor], source: Path, watch: Callable[[int, int], None]
    ) -> list[dict[str, Any]]:
        """The images of a folder, the most anomalous first."""
        names, features = self.embed_new(model, source, watch)
        bank = saved["normal_features"]
        distances = knn_distance(bank, features.to(bank.device), k=self.settings.neighbours).tolist()
        rows = [{"image": name, "score": round(one, 6)} for name, one in zip(names, distances, strict=True)]
        return sorted(rows, key=lambda row: -row["score"])

    def _auc(self, distances: Tensor) -> float:
        from sklearn.metrics import roc_auc_score  # takes a second, and wrong settings are refused before

        return 100 * float(roc_auc_score(self._anomalous, distances.cpu().numpy()))


def _holds_cifar10(data: Path) -> bool:
    return os.path.isfile(data / "cifar10.npz")  # Path's raises where the name is too long
