"""Noise in the layout of the file cifar10.npz."""

import numpy as np


def write_cifar(folder, train=60, test=20, **changes):
    draw = np.random.default_rng(0)
    arrays = {
        "x_train": draw.integers(0, 256, (train, 32, 32, 3), dtype=np.uint8),
        "y_train": np.arange(train, dtype=np.uint8) % 10,
        "x_test": draw.integers(0, 256, (test, 32, 32, 3), dtype=np.uint8),
        "y_test": (np.arange(test, dtype=np.uint8) % 10)[:, None],
    }
    np.savez(folder / "cifar10.npz", **{**arrays, **changes})
    return folder
