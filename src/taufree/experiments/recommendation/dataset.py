"""A data set as all runs of DCRec use it, prepared once: the interactions, the graphs and the negatives."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from taufree.experiments.recommendation.interactions import Interactions, read_interactions
from taufree.experiments.recommendation.item_graphs import Neighbours, neighbours
from taufree.experiments.recommendation.ranking import draw_negatives
from taufree.util.files import digest_of_files

NEGATIVES = 100


class Dataset(NamedTuple):
    """Graphs and negatives have the parts "train" and "test"."""

    data: Interactions
    graphs: dict[str, Neighbours]
    negatives: dict[str, Tensor]


def modification_times(folder: Path) -> tuple[int, ...]:
    """When each file of a data set was last modified, in nanoseconds."""
    return tuple(path.stat().st_mtime_ns for path in sorted(folder.glob("*.inter")))


@lru_cache(maxsize=2)
def content_digest(folder: Path, modified: tuple[int, ...]) -> str:
    """A digest of the files of a data set; ``modified`` as in :func:`load_dataset`."""
    return digest_of_files(sorted(folder.glob("*.inter")))


@lru_cache(maxsize=2)  # a benchmark takes turns with two
def load_dataset(folder: Path, longest: int, users: int, modified: tuple[int, ...]) -> Dataset:
    """The data set of a folder, see :func:`~.interactions.read_interactions`, kept for the next runs.

    Args:
        modified: the :func:`modification_times` of its files: other times are other arguments of the cache,
            so that changed files are read again.
    """
    data = read_interactions(folder, longest=longest, users=users)
    parts = {"train": data.train, "test": data.test}
    graphs = {part: neighbours(rows, data.item_count) for part, rows in parts.items()}
    popularity = torch.bincount(data.train.items[data.train.known], minlength=data.item_count)
    draw = torch.Generator().manual_seed(0)  # the same negatives for every run
    negatives = {part: draw_negatives(rows, popularity, NEGATIVES, draw) for part, rows in parts.items()}
    return Dataset(data, graphs, negatives)
