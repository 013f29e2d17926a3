"""What the recipes that train a pretrained masked language model on sentence pairs share."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from taufree.experiments.acceleration import Accelerated, Acceleration
from taufree.experiments.language.nli_pairs import find_corpora
from taufree.experiments.language.tokens import (
    Tokens,
    load_masked_lm,
    load_tokenizer,
    model_content,
    tokenise,
)
from taufree.experiments.settings import BatchSettings, Bounds

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class LanguageSettings(BatchSettings):
    """Settings of all of them."""

    batch_size: int = 16
    learning_rate: Annotated[float, "The highest learning rate of AdamW."] = 5e-5
    model: Annotated[str, "A masked language model of transformers: a name on the hub, or a folder."] = (
        "bert-base-uncased"
    )
    length: Annotated[int, "Sentences are cut off after so many tokens.", Bounds(1)] = 128
    subset: Annotated[int, "Use so many pairs, and evaluate so many examples, at most; 0 is all."] = 0


class FineTuning(Accelerated):
    """The sentences of a pair have numbers, ``kinds`` of them; all are tokenised when the data are read."""

    acceleration = Acceleration(precision="bf16-mixed")
    content_has_data = False  # but the model
    needs_head: ClassVar[bool] = True
    """Whether the model must come with the head that predicts masked tokens."""

    settings: LanguageSettings
    tokens: Tokens
    kinds: int

    def check(self, data: Path | None) -> None:
        find_corpora(data)

    def content(self, data: Path | None) -> str | None:
        return model_content(self.settings.model)

    def prepare(self, pairs: list[tuple[str, ...]], data: Path | None) -> None:
        """Tokenise the pairs, of which each is a tuple of ``kinds`` sentences."""
        chosen = self.settings
        pairs = pairs[: chosen.subset or len(pairs)]
        self.steps = chosen.count_batches(len(pairs), f", the number of sentence pairs in {data}")
        self.tokenizer = load_tokenizer(chosen.model)
        self.pretrained, missing = load_masked_lm(chosen.model)
        if missing and self.needs_head:
            raise ValueError(
                f"model must be a whole masked language model, but {chosen.model} is without {len(missing)} "
                f"of its weights, {missing[0]} among them; taufree pretrain-mlm adapts it."
            )
        # They would be random, and other ones for each link of a seed.
        if absent := [name for name in missing if name.startswith(f"{self.pretrained.base_model_prefix}.")]:
            raise ValueError(
                f"model must be a whole encoder, but {chosen.model} is without {len(absent)} of its weights, "
                f"{absent[0]} among them."
            )
        self.kinds = len(pairs[0])
        self.tokens = tokenise(self.tokenizer, [one for pair in pairs for one in pair], chosen.length)

    def language_model(self) -> Any:
        """A copy of the pretrained model."""
        return copy.deepcopy(self.pretrained)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW without weight decay, gradients cut to length 1: the defaults of transformers' Trainer."""
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.settings.learning_rate, weight_decay=0.0, foreach=True
        )

        def cut(*_: Any) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)

        # Before the step itself, where float16's scale is already taken out of the gradients.
        optimizer.register_step_pre_hook(cut)
        return optimizer

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        """Linear from 1 to 0 over all steps."""
        total = self.settings.epochs * self.steps
        return LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

    def accelerate(self, model: nn.Module, device: torch.device) -> Acceleration:
        self.device = device
        self.tokens = self.tokens.to(device)
        return self.acceleration

    def drawn(self, generator: torch.Generator) -> Iterator[Tensor]:
        """The numbers of each batch's sentences, [kinds * batch_size]: all first ones, then all second."""
        size = self.settings.batch_size
        order = torch.randperm(len(self.tokens) // self.kinds, generator=generator)
        for pairs in torch.split(order[: self.steps * size], size):
            yield (self.kinds * pairs + torch.arange(self.kinds)[:, None]).flatten()
