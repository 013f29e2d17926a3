"""What is kept of a trained encoder for the report: some features, and a few images with their neighbours.

Arrays of a run, in ``embeddings/<slug>.npz`` beside the results:

- ``features`` [MAP_POINTS, D] with ``labels`` [MAP_POINTS] and the names ``classes``;
- ``thumbnails`` [QUERY_COUNT, 1 + NEIGHBOUR_COUNT, THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3], the query first in
  each row, with ``thumbnail_labels``.

An anomaly detector keeps instead ``thumbnails`` [2, EXTREME_COUNT, THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3], the
highest and the lowest scores, and whether they are ``anomalous``; fewer where there are fewer images
of either kind.


A recipe on images and captions keeps ``caption_queries`` [QUERY_COUNT] with ``found_images`` (thumbnails) and
``image_queries`` (thumbnails) with ``found_captions``, NEIGHBOUR_COUNT of each in the order of their cosines,
and which of them are right, ``found_images_right`` and ``found_captions_right``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taufree.util.files import atomic_write

Arrays = Mapping[str, NDArray[Any]]
MAP_POINTS, QUERY_COUNT, NEIGHBOUR_COUNT = 1000, 10, 5
EXTREME_COUNT = 24
THUMBNAIL_SIDE = 64
"""Pixels of an image's side."""


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write a ``.npz`` that is whole or not there."""
    named: dict[str, Any] = dict(arrays)
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **named)


def load_arrays(path: Path) -> Arrays | None:
    """What :func:`save_arrays` wrote, None where there is nothing to read."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # a damaged file can raise anything
        return None
