"""What all runs of DCRec on a data set have in common, made once: the data, the graphs and the negatives."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from taufree.experiments.recommendation.interactions import Interactions, read_interactions
from taufree.experiments.recommendation.item_graphs import Neighbours, neighbours
from taufree.experiments.recommendation.ranking import draw_negatives

NEGATIVES = 100


class Prepared(NamedTuple):
    """Graphs and negatives are those of the parts "train" and "test"."""

    data: Interactions
    graphs: dict[str, Neighbours]
    negatives: dict[str, Tensor]


def changed(folder: Path) -> tuple[int, ...]:
    """When the files of a data set were changed."""
    return tuple(path.stat().st_mtime_ns for path in sorted(folder.glob("*.inter")))


@lru_cache(maxsize=2)
def content(folder: Path, changed: tuple[int, ...]) -> str:
    """A text that is the same as long as the files of a data set are; ``changed`` as below."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.inter")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=2)  # a benchmark takes turns with two
def prepared(folder: Path, longest: int, users: int, changed: tuple[int, ...]) -> Prepared:
    """The data set of a folder, see :func:`~.interactions.read_interactions`, kept for the next runs.

    Args:
        changed: when its files were; others are read again.
    """
    data = read_interactions(folder, longest=longest, users=users)
    parts = {"train": data.train, "test": data.test}
    graphs = {part: neighbours(rows, data.item_count) for part, rows in parts.items()}
    popularity = torch.bincount(data.train.items[data.train.known], minlength=data.item_count)
    draw = torch.Generator().manual_seed(0)  # the same negatives for every run
    negatives = {part: draw_negatives(rows, popularity, NEGATIVES, draw) for part, rows in parts.items()}
    return Prepared(data, graphs, negatives)
