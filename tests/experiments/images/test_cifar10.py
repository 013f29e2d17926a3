"""The CIFAR-10 recipe, on a file of the same layout with few images."""

import numpy as np
import pytest

from taufree.experiments.images.cifar10 import CLASSES, Cifar10, Cifar10Settings
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.cifar import write_cifar


def test_the_file_is_read_and_each_image_keeps_its_label(tmp_path):
    write_cifar(tmp_path)
    recipe = Cifar10(Cifar10Settings(batch_size=8))
    recipe.load(tmp_path)
    images = recipe.images
    assert (images.lines.shape, images.training, images.classes) == ((80, 32, 3, 32), 60, CLASSES)
    assert images.labels[:60].bincount().tolist() == [6] * 10
    with np.load(tmp_path / "cifar10.npz") as file:
        for number in (0, 33, 59):
            same = (
                (file["x_train"] == images.lines[number].permute(0, 2, 1).numpy()).all((1, 2, 3)).nonzero()[0]
            )
            assert file["y_train"][same].tolist() == [images.labels[number]]


def test_a_subset_is_even(tmp_path):
    recipe = Cifar10(Cifar10Settings(batch_size=8, subset=20))
    recipe.load(write_cifar(tmp_path))
    assert recipe.images.labels[:20].bincount().tolist() == [2] * 10
    assert len(recipe.images.labels) == 40


def test_it_trains(tmp_path):
    settings = Cifar10Settings(epochs=1, batch_size=8, subset=16, neighbours=5)
    line = train(Run("cifar10", "free", 0, settings, data=write_cifar(tmp_path)), tmp_path / "checkpoints")
    assert set(line["metrics"]) == set(Cifar10.metrics)
    assert (line["settings"]["crop"], line["settings"]["blur"], line["settings"]["small_stem"]) == (
        32,
        0,
        True,
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (None, r"^No such file: .*cifar10\.npz, which must hold CIFAR-10 with the arrays x_train, .*\.$"),
        ({"x_test": np.zeros((20, 32, 32, 3))}, r"holds float64 \[20, 32, 32, 3\] with 20\."),
        ({"y_train": np.zeros(3)}, r"holds uint8 \[60, 32, 32, 3\] with 3\."),
    ],
)
def test_a_file_that_is_missing_or_another_is_one_sentence(tmp_path, changes, sentence):
    if changes is not None:
        write_cifar(tmp_path, **changes)
    with pytest.raises(BadInputError, match=sentence):
        train(Run("cifar10", "free", 0, Cifar10Settings(), data=tmp_path), tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "cifar10.npz").write_bytes(b"PK nothing")
    with pytest.raises(BadInputError, match=r"cifar10\.npz is damaged or without one of the arrays"):
        train(Run("cifar10", "free", 0, Cifar10Settings(), data=tmp_path), tmp_path)
