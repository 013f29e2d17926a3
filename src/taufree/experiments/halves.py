"""Matching in a minute: the left half of a handwritten digit finds its right half, and the other way round.

The two halves of scikit-learn's 8 x 8 digits are the pair, as an image and its caption are CLIP's: two towers
are trained with InfoNCE in both directions, and judged by whether the halves of 500 held-out digits find
each other among all of them. It is a small stand-in for search and image-text matching, whose data would
have to be downloaded: here too the vectors themselves are compared, and temperatures differ much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from taufree import Link, info_nce
from taufree.experiments.digits import perceptron, split_digits
from taufree.experiments.evaluation.pair_statistics import observe_pairs
from taufree.experiments.evaluation.retrieval import recalls
from taufree.experiments.recipe import Preset, Recipe, Step
from taufree.experiments.settings import BatchSettings


@dataclass(frozen=True)
class HalvesSettings(BatchSettings):
    """The defaults are those of ``digits`` without its affine maps, and were not tuned."""

    epochs: int = 60
    batch_size: int = 256
    learning_rate: Annotated[float, "The highest learning rate of AdamW."] = 2e-3
    weight_decay: Annotated[float, "The weight decay of AdamW."] = 1e-4
    noise: Annotated[float, "The standard deviation of the noise in training; ink is 1, paper 0."] = 0.2


class Towers(nn.Module):
    """A network for left halves, and one for right halves: 8 x 4 pixels to 32 numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = perceptron(32, 32), perceptron(32, 32)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors [N, 32] of the left and of the right halves of images [N, 1, 8, 8]."""
        left, right = images.chunk(2, dim=-1)
        return self.left(left), self.right(right)


class Halves(Recipe):
    name = "halves"
    title = "matching the left and right halves of scikit-learn's 8 x 8 handwritten digits"
    task = (
        "Two networks, one for left halves and one for right halves of handwritten digits, learn to match: "
        "the two halves of the same digit (a positive pair) should get similar vectors, halves of different "
        "digits (negative pairs) should not. The vectors themselves are used, to search with, as in matching "
        "images with captions or questions with answers."
    )
    data_source = "scikit-learn brings them; nothing is downloaded, and no --data is needed."
    example = "taufree run halves --links free,fitted,0.05,0.1,0.5 --seeds 5"
    settings_type = HalvesSettings
    metrics: ClassVar = {
        "recall_1": "% of the halves of 500 held-out digits that find their other half first, of all 500",
        "recall_10": "the same, among the first ten",
    }

    presets: ClassVar = {"full": Preset(seeds=5), "quick": Preset(seeds=2, settings={"epochs": 5})}

    settings: HalvesSettings

    def load(self, data: Path | None) -> None:
        digits = split_digits()
        self.images, self.held_out = digits.images, digits.held_out
        self.steps = self.settings.count_batches(len(self.images))

    def model(self) -> nn.Module:
        return Towers()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        chosen = self.settings
        return torch.optim.AdamW(
            model.parameters(), lr=chosen.learning_rate, weight_decay=chosen.weight_decay
        )

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimizer, self.settings.epochs * self.steps)

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Noisy digits [batch_size, 1, 8, 8]; every digit at most once an epoch, the rest left out."""
        order = torch.randperm(len(self.images), generator=generator)
        size = self.settings.batch_size
        for images in torch.split(self.images[order[: self.steps * size]], size):
            yield images + self.settings.noise * torch.randn(images.shape, generator=generator)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        left, right = model(batch)
        return Step(info_nce(left, right, symmetric=True, link=link), observe_pairs(left, right, link))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        left, right = (vectors.float().cpu() for vectors in model(self.held_out))
        found = recalls(left, right, torch.arange(len(left)))
        return {f"recall_{k}": (found[f"i2t_r{k}"] + found[f"t2i_r{k}"]) / 2 for k in (1, 10)}
