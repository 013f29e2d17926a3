"""Features of frozen towers, which are computed once: the next run finds them in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from taufree.experiments.images.augment import centre_view
from taufree.experiments.images.decoded import DecodedImages, ahead
from taufree.experiments.language.tokens import Tokens, text_vectors
from taufree.util.cache import cache_folder, cached

CACHE_FORMAT = 1
"""Of the cached features; another number leaves those of before alone."""
ROWS_PER_CHUNK = 64
"""Images, or texts, that go through a tower at once."""


def features_file(digest: str) -> Path:
    """Where the cache has these features."""
    return cache_folder() / "features" / f"{digest}-{CACHE_FORMAT}.npy"


def cached_features(digest: str, compute: Callable[[], Tensor]) -> Tensor:
    """What ``compute`` gives, from the cache if it is there.

    Args:
        digest: a text that changes with all that the features depend on, see :func:`digest_of`.
    """

    def make(draft: Path) -> None:
        with draft.open("wb") as file:
            np.save(file, compute().numpy())

    return torch.from_numpy(cached(features_file(digest), make, np.load))


def digest_of(module: nn.Module, *more: object) -> str:
    """A text that changes with the weights of a module and with ``more``; tensors count by their values."""
    found = hashlib.sha256()
    for one in (*(part for item in module.state_dict().items() for part in item), *more):
        if isinstance(one, Tensor):
            found.update(one.detach().cpu().contiguous().numpy().tobytes())
        else:
            found.update(repr(one).encode())
    return found.hexdigest()[:20]


@torch.no_grad()
def image_features(tower: nn.Module, images: DecodedImages, side: int, device: torch.device) -> Tensor:
    """Features [N, W] of the middles of all images, on the CPU."""

    def take(rows: Tensor) -> tuple[Tensor, Tensor]:
        return images.lines[rows].to(device), images.sizes[rows].to(device)

    tower = tower.to(device).eval()
    chunks = torch.split(torch.arange(len(images.labels)), ROWS_PER_CHUNK)
    return torch.cat([tower(centre_view(*some, size=side)).float().cpu() for some in ahead(take, chunks)])


def text_features(tower: nn.Module, tokens: Tokens, device: torch.device) -> Tensor:
    """Features [M, W] of all texts, on the CPU."""
    tower = tower.to(device).eval()
    # Texts of a chunk are alike in length, so that there is little padding.
    order = tokens.lengths.argsort(stable=True)
    return text_vectors(tower, tokens.take(order), device, ROWS_PER_CHUNK)[order.argsort()]
