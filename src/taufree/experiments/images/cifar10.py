"""SimCLR on CIFAR-10: 50,000 training and 10,000 validation images of 32 x 32 pixels, ten classes.

What differs from Imagenette is what small images need: views of 32 pixels without blur, and a network whose
entry keeps their resolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from taufree.experiments.images.decoded import DecodedImages, from_arrays
from taufree.experiments.images.simclr import SimCLR, SimCLRSettings
from taufree.experiments.recipe import Preset
from taufree.util.cache import cache_folder, download
from taufree.util.files import check_file, refuse_file

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILE = "cifar10.npz"
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Cifar10Settings(SimCLRSettings):
    """Imagenette's, for small images."""

    epochs: int = 200
    crop: int = 32
    blur: float = 0.0
    small_stem: bool = True


class Cifar10(SimCLR):
    name = "cifar10"
    title = "SimCLR on CIFAR-10"
    data_source = (
        f"cifar10.npz with the arrays {', '.join(KEYS)} in the folder --data; downloaded if no folder is "
        "given."
    )
    settings_type = Cifar10Settings
    presets: ClassVar = {
        "full": Preset(seeds=3),
        "quick": Preset(seeds=1, settings={"epochs": 1, "batch_size": 64, "subset": 256}),
    }

    def check(self, data: Path | None) -> None:
        if data is not None:
            refuse_file(data, FILE)
            _check_file(data / FILE)

    def find(self, data: Path | None) -> DecodedImages:
        x_train, y_train, x_test, y_test = load_cifar10(data)
        train, val = (evenly(labels, self.settings.subset) for labels in (y_train, y_test))
        return from_arrays(x_train[train], y_train[train], x_test[val], y_test[val], CLASSES)


def load_cifar10(data: Path | None) -> tuple[NDArray[Any], ...]:
    """Images [N, 32, 32, 3] and labels [N] of training, then of test; downloaded if no folder is given."""
    x_train, y_train, x_test, y_test = _download() if data is None else _read(data / FILE)
    return x_train, y_train.reshape(-1), x_test, y_test.reshape(-1)


def evenly(labels: NDArray[Any], count: int) -> NDArray[Any]:
    """The numbers of ``count`` rows (0 is all), in the order of their labels and evenly from all of them."""
    chosen = np.linspace(0, len(labels) - 1, min(count or len(labels), len(labels))).round().astype(int)
    order: NDArray[Any] = np.argsort(labels, kind="stable")[chosen]
    return order


def _check_file(path: Path) -> None:
    check_file(path, f"CIFAR-10 with the arrays {', '.join(KEYS)}")


def _read(path: Path) -> tuple[NDArray[Any], ...]:
    """The arrays of Keras's file: images [N, 32, 32, 3] and labels [N], of training and of test."""
    _check_file(path)
    try:
        with np.load(path) as file:
            arrays = tuple(file[key] for key in KEYS)
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"{path} is damaged or without one of the arrays {', '.join(KEYS)} ({type(error).__name__})."
        ) from error
    for images, labels in (arrays[:2], arrays[2:]):
        if images.dtype != np.uint8 or images.shape != (labels.size, *images.shape[1:3], 3):
            raise ValueError(
                f"{path} must hold images as bytes [N, height, width, 3] with N labels, but holds "
                f"{images.dtype} {list(images.shape)} with {labels.size}."
            )
    return arrays


def _download() -> tuple[NDArray[Any], ...]:
    from torchvision import datasets

    def load(folder: Path) -> tuple[NDArray[Any], ...]:
        parts = [datasets.CIFAR10(folder, train=train) for train in (True, False)]
        return tuple(array for part in parts for array in (part.data, np.array(part.targets)))

    return download(
        cache_folder() / "cifar10",
        lambda draft: datasets.CIFAR10(draft, download=True),
        load,
        title="CIFAR-10",
        advice=f"put cifar10.npz with the arrays {', '.join(KEYS)} into FOLDER and pass --data FOLDER",
    )
