"""Two towers with a head each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taufree.experiments.image_text.open_clip_towers import (
    OpenClipImageTower,
    OpenClipTextTower,
    OpenClipTokenizer,
    is_open_clip,
    load_open_clip,
    pretrained_of,
)
from taufree.experiments.image_text.open_clip_towers import content_of as open_clip_content
from taufree.experiments.images.backbones import make_backbone, read_weights, weights_content
from taufree.experiments.language.sentences import SentenceEncoder
from taufree.experiments.language.tokens import load_encoder, load_tokenizer, model_content


def image_tower_content(name: str, weights: str) -> str | None:
    """A text that changes with what is in the files of an image tower; None where it has none."""
    return open_clip_content(name) if is_open_clip(name) else weights_content(weights)


def text_tower_content(name: str) -> str | None:
    """The same of a text tower."""
    return open_clip_content(name) if is_open_clip(name) else model_content(name)


class ImageTower(nn.Module):
    """A backbone; one that was trained before keeps the statistics of its batch norms."""

    def __init__(self, backbone: nn.Module, *, pretrained: bool) -> None:
        super().__init__()
        self.backbone, self.pretrained = backbone, pretrained
        self.to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> ImageTower:
        super().train(mode)
        if self.pretrained:
            for part in self.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, W] of images [N, 3, H, W]."""
        features: Tensor = self.backbone(images)
        return features


class ImageTowers:
    """Makes image towers, all of them with the same weights unless these are random.

    Args:
        name, weights: as :func:`.backbones.make_backbone` and :func:`.backbones.read_weights` take them; or
            a name of open_clip's, which says its weights itself.
        side: of the images, in pixels.
    """

    def __init__(self, name: str, weights: str, side: int) -> None:
        self.name, self.side = name, side
        if is_open_clip(name):
            self.pretrained = pretrained_of(name) is not None
            self._state = load_open_clip(name, side).visual.state_dict() if self.pretrained else None
        else:
            self._state = read_weights(name, weights)
            self.pretrained = self._state is not None

    def make(self) -> ImageTower:
        network = self._network()
        if self._state is not None:
            network.load_state_dict(self._state)
        if is_open_clip(self.name):
            network = OpenClipImageTower(network)
        return ImageTower(network, pretrained=self.pretrained)

    @torch.no_grad()
    def width(self) -> int:
        """How many features an image has."""
        network, side = self._network().eval(), self.side
        try:
            return int(network(torch.zeros(1, 3, side, side)).shape[-1])
        except Exception as error:  # each network has its own
            raise ValueError(f"crop must be a size that {self.name} takes, got {side} ({error}).") from error

    def _network(self) -> nn.Module:
        if not is_open_clip(self.name):
            return make_backbone(self.name)
        visual: nn.Module = load_open_clip(f"{self.name.partition('/')[0]}/random", self.side).visual
        return visual


def load_text_tower(name: str) -> tuple[nn.Module, Any, int]:
    """An encoder of transformers or of open_clip, in evaluation mode; its tokenizer; how many features a text
    has."""
    tower: nn.Module
    if is_open_clip(name):
        if pretrained_of(name) is None:
            raise ValueError(f"model must be a trained encoder, got {name}.")
        tower, tokenizer = OpenClipTextTower(load_open_clip(name)).eval(), OpenClipTokenizer(name)
    else:
        encoder, missing = load_encoder(name)
        if missing:  # they would be random, and other ones for each link of a seed
            raise ValueError(
                f"model must be a whole encoder, but {name} is without {len(missing)} of its weights, "
                f"{missing[0]} among them."
            )
        tower, tokenizer = SentenceEncoder(encoder).eval(), load_tokenizer(name)
    one = torch.ones(1, 1, dtype=torch.long)
    try:
        with torch.no_grad():
            return tower, tokenizer, int(tower(one, one).shape[-1])
    except Exception as error:  # each model has its own
        raise ValueError(
            f"model must be an encoder of texts, but {name} cannot be called as one ({type(error).__name__})."
        ) from error


class TwoTowers(nn.Module):
    """Images and texts as vectors of one space; heads of float32, whatever autocast says.

    Args:
        image, text: the towers, or ``nn.Identity()`` for features of frozen ones.
        widths: how many features an image and a text have.
        dimension: how many numbers the loss compares.
        dropout: of the features that the linear heads take.
    """

    bias: nn.Parameter | None

    def __init__(
        self, image: nn.Module, text: nn.Module, widths: tuple[int, int], dimension: int, dropout: float
    ) -> None:
        super().__init__()
        self.register_parameter("bias", None)  # of the sigmoid loss, above its prior, where it is learned
        self.image, self.text = image, text
        self.image_head, self.text_head = (
            nn.Sequential(nn.Dropout(dropout), nn.Linear(width, dimension)) for width in widths
        )

    @property
    def heads(self) -> list[nn.Parameter]:
        """The parameters of both heads."""
        return [*self.image_head.parameters(), *self.text_head.parameters()]

    @property
    def towers(self) -> list[nn.Parameter]:
        """Those of both towers; none where they are frozen."""
        return [*self.image.parameters(), *self.text.parameters()]

    def forward(self, images: Tensor | None, texts: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Vectors [N, dimension] of the images, if any are given, and then of the texts, if any are."""
        found = []
        if images is not None:
            found.append(_in_float32(self.image_head, self.image(images)))
        if texts:
            found.append(_in_float32(self.text_head, self.text(*texts)))
        return tuple(found)


def _in_float32(head: nn.Module, features: Tensor) -> Tensor:
    # The loss resolves cosines that bfloat16 does not; the heads are small.
    with torch.autocast(features.device.type, enabled=False):
        vectors: Tensor = head(features.to(next(head.parameters()).dtype))
        return vectors
