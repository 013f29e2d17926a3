"""The towers of open_clip's models, named ``open_clip:MODEL/PRETRAINED``."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taufree.experiments.images.augment import MEAN, STD
from taufree.util.files import digest_of_files
from taufree.util.optional import needs

PREFIX = "open_clip:"
RANDOM = "random"
"""What stands for PRETRAINED where nothing is loaded."""


def is_open_clip(name: str) -> bool:
    return name.startswith(PREFIX)


def pretrained_of(name: str) -> str | None:
    """The tag or the file of the weights, None for random ones.

    >>> pretrained_of("open_clip:RN50/openai"), pretrained_of("open_clip:RN50/random")
    ('openai', None)
    """
    _, pretrained = _parts(name)
    return None if pretrained == RANDOM else pretrained


def content_of(name: str) -> str | None:
    """A text that changes with what is in a file of weights; None for a tag and for random weights."""
    pretrained = pretrained_of(name)
    if pretrained is None or not os.path.isfile(pretrained):
        return None
    return digest_of_files([Path(pretrained)])


class OpenClipImageTower(nn.Module):
    """Takes images as all towers here do, in ImageNet's normalisation, and gives CLIP's image features."""

    scale: Tensor
    shift: Tensor

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual
        mean, std, own_mean, own_std = (
            torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD, visual.image_mean, visual.image_std)
        )
        self.register_buffer("scale", std / own_std, persistent=False)
        self.register_buffer("shift", (mean - own_mean) / own_std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.visual(images * self.scale + self.shift)
        return features


class OpenClipTextTower(nn.Module):
    """CLIP's text features; the image tower of the same model is not kept."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.visual = nn.Identity()
        self.model, self.length = model, int(model.context_length)

    def forward(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Features [N, W] of ids [N, L], which are zeros behind a text's end."""
        ids = nn.functional.pad(ids[:, : self.length], (0, max(0, self.length - ids.shape[1])))
        features: Tensor = self.model.encode_text(ids)
        return features


class OpenClipTokenizer:
    """open_clip's tokenizer, called as those of transformers are."""

    pad_token_id = 0

    def __init__(self, name: str) -> None:
        with needs("taufree[open-clip]"):
            from open_clip import get_tokenizer
        self._tokenizer = get_tokenizer(_parts(name)[0])
        self.all_special_ids = sorted({self.pad_token_id, *self._tokenizer.all_special_ids})

    def __call__(self, texts: Sequence[str], max_length: int, **_: object) -> dict[str, list[list[int]]]:
        length = min(max_length, self._tokenizer.context_length)
        rows = self._tokenizer(list(texts), context_length=length)
        ends = (rows != self.pad_token_id).sum(1).tolist()
        return {"input_ids": [row[:end] for row, end in zip(rows.tolist(), ends, strict=True)]}


def load_open_clip(name: str, side: int | None = None) -> Any:
    """The model, for images of that side; ValueError with one sentence where there is none."""
    model, _ = _parts(name)
    with needs("taufree[open-clip]"):
        import open_clip
    tags = open_clip.list_pretrained_tags_by_model(model)
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)  # open_clip logs what it raises, and that random weights are random
    try:
        return open_clip.create_model(model, pretrained_of(name), force_image_size=side).float()
    except Exception as error:  # errors of the network, of files, or of a size that the model does not take
        why = str(error).partition("Available")[0].strip(" .\n").replace("\n", " ")
        known = f"one of {', '.join([*tags, RANDOM])}, or a file" if tags else "random or a file"
        raise ValueError(
            f"{name} cannot be loaded: MODEL must be one of open_clip.list_models(), and PRETRAINED {known} "
            f"({type(error).__name__}: {why})."
        ) from error
    finally:
        logging.disable(level)


def _parts(name: str) -> tuple[str, str]:
    model, _, pretrained = name.removeprefix(PREFIX).partition("/")
    if not model or not pretrained:
        raise ValueError(f"a tower of open_clip must be {PREFIX}MODEL/PRETRAINED, got {name!r}.")
    return model, pretrained
