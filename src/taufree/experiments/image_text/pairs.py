"""The captions of decoded images, as one list and as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taufree.experiments.language.tokens import Tokens, tokenise


@dataclass(frozen=True)
class Captions:
    """All captions of N images, one image after the other.

    Shape:
        counts: [N], how many captions an image has; firsts: [N], the number of its first one; owners: [M],
        the number of each caption's image. All on the CPU, and ``tokens`` at first.
    """

    texts: Sequence[str]
    counts: Tensor
    firsts: Tensor
    owners: Tensor
    tokens: Tokens

    def draw(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The number of one caption of each image, [len(images)]."""
        place = torch.rand(len(images), generator=generator) * self.counts[images]
        return self.firsts[images] + place.long()

    def of(self, images: Tensor) -> Tensor:
        """The numbers of all captions of the images."""
        return torch.isin(self.owners, images).nonzero()[:, 0]


def make_captions(texts: Sequence[Sequence[str]], tokenizer: Any, length: int) -> Captions:
    """From the captions of each image, cut off after ``length`` tokens."""
    flat = [text for own in texts for text in own]
    counts = torch.tensor([len(own) for own in texts])
    owners = torch.arange(len(texts)).repeat_interleave(counts)
    return Captions(flat, counts, counts.cumsum(0) - counts, owners, tokenise(tokenizer, flat, length))
