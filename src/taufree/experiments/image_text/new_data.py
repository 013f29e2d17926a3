"""Images or texts that trained towers have not seen, as vectors of their common space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from taufree.experiments.image_text.frozen import ROWS_PER_CHUNK
from taufree.experiments.images.new_images import NewImages
from taufree.experiments.language.tokens import read_texts, text_vectors, tokenise


def embed_images(
    model: nn.Module,
    frozen: nn.Module | None,
    images: NewImages,
    *,
    size: int,
    watch: Callable[[int, int], None],
) -> tuple[list[str], Tensor]:
    """Names and vectors of images; ``frozen`` is the tower whose features the model takes, if it does."""
    device = next(model.parameters()).device
    tower = nn.Identity() if frozen is None else frozen.to(device).eval()

    def embed(views: Tensor) -> Tensor:
        vectors: Tensor = model(tower(views))[0]
        return vectors

    return images.names, images.vectors(embed, size=size, resize=size, device=device, watch=watch)


def embed_texts(
    model: nn.Module,
    frozen: nn.Module | None,
    path: Path,
    tokenizer: Any,
    *,
    length: int,
    watch: Callable[[int, int], None],
) -> tuple[list[str], Tensor]:
    """The texts of a file, one a line, and their vectors."""
    texts, device = read_texts(path), next(model.parameters()).device
    tower = None if frozen is None else frozen.to(device).eval()

    def embed(*inputs: Tensor) -> Tensor:
        vectors: Tensor = model(None, inputs if tower is None else (tower(*inputs),))[0]
        return vectors

    tokens = tokenise(tokenizer, texts, length)
    return texts, text_vectors(embed, tokens, device, ROWS_PER_CHUNK, watch)
