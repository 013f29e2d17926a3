"""Seeds of the parts of a run."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int, *part: str | int) -> int:
    """Seed all global generators for one part of a run, and return the number they were seeded with.

    >>> seed_everything(0, "epoch", 1) == seed_everything(0, "epoch", 1) != seed_everything(0, "epoch", 2)
    True
    """
    entropy = [seed, *(int.from_bytes(str(word).encode(), "big") for word in part)]
    mixed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
    torch.manual_seed(mixed)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    return mixed
