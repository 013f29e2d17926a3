"""Sentence vectors from entailment pairs: a premise against the hypotheses of its batch, judged by STS-B.

SimCSE's supervised setting without its hard negatives: InfoNCE of SNLI's entailment pairs, from a pretrained
model, and the rank correlation of cosines with people's judgement of similarity on the STS benchmark.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from taufree import Link, info_nce
from taufree.baselines import Scheme
from taufree.experiments.evaluation.pair_statistics import observe_pairs
from taufree.experiments.language.finetune import FineTuning, LanguageSettings
from taufree.experiments.language.nli_pairs import read_entailments
from taufree.experiments.language.tokens import (
    Tokens,
    load_masked_lm,
    load_tokenizer,
    read_texts,
    text_vectors,
    tokenise,
)
from taufree.experiments.recipe import Preset, Step
from taufree.util.files import check_file

PARTS = ("test", "dev")
SENTENCES_PER_CHUNK = 256


@dataclass(frozen=True)
class SentencesSettings(LanguageSettings):
    """SimCSE's learning rate and epochs, with a batch that a few thousand pairs allow."""

    epochs: int = 3
    batch_size: int = 64
    length: int = 64


class SentenceEncoder(nn.Module):
    """A sentence's vector is the mean of its tokens' last states."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Vectors [N, D] of ids and attention [N, L]."""
        states: Tensor = self.encoder(input_ids=ids, attention_mask=attention).last_hidden_state.float()
        weight = attention[..., None].to(states.dtype)
        return (states * weight).sum(1) / weight.sum(1)


class Sentences(FineTuning):
    name = "sentences"
    title = "sentence vectors from SNLI's entailment pairs"
    task = (
        "The network learns from pairs of sentences, of which the second follows from the first (a positive "
        "pair): they should get similar vectors, sentences of different pairs (negative pairs) should not."
    )
    data_source = (
        "The folder --data holds snli or mnli, and stsb/test.csv and stsb/dev.csv; the model is downloaded "
        "unless it is a folder."
    )
    example = "taufree run sentences --data FOLDER --links free,0.05 --set model=bert-base-uncased"
    settings_type = SentencesSettings
    metrics: ClassVar = {
        "test": "100 times Spearman's correlation of cosines with people's judgement, STS-B's test part",
        "dev": "the same for its development part, by which nothing is chosen here",
    }
    presets: ClassVar = {
        "full": Preset(seeds=5),
        "quick": Preset(seeds=1, settings={"epochs": 1, "subset": 128}),
    }
    needs_head = False
    serves: ClassVar = frozenset({"index"})
    pairs = True

    settings: SentencesSettings

    def check(self, data: Path | None) -> None:
        super().check(data)
        assert data is not None
        for part in PARTS:
            check_stsb(data / "stsb" / f"{part}.csv")

    def load(self, data: Path | None) -> None:
        pairs = read_entailments(data)
        assert data is not None
        judged = {part: read_stsb(data / "stsb" / f"{part}.csv") for part in PARTS}
        self.prepare(list(pairs), data)
        self.judged: dict[str, tuple[Tokens, list[float]]] = {}
        for part, rows in judged.items():
            rows = rows[: self.settings.subset or len(rows)]
            texts = [row[0] for row in rows] + [row[1] for row in rows]
            tokens = tokenise(self.tokenizer, texts, self.settings.length)
            self.judged[part] = tokens, [row[2] for row in rows]

    def model(self) -> nn.Module:
        return SentenceEncoder(self.language_model().base_model)

    @property
    def sample_count(self) -> int:
        return len(self.tokens) // self.kinds

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Ids and attention of B premises, then of their hypotheses; the numbers of the B pairs."""
        for rows in self.drawn(generator):
            tokens = self.tokens.take(rows)
            yield tokens.ids, tokens.attention, rows[: len(rows) // 2] // self.kinds

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        *texts, index = batch
        premise, hypothesis = model(*texts).chunk(2)
        loss = self.loss(premise, hypothesis, link, index=index)
        return Step(loss, observe_pairs(premise, hypothesis, link))

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link | Scheme, **inputs: Tensor) -> Tensor:
        """A premise against the hypotheses; schemes that are losses take both directions."""
        if isinstance(link, Scheme):
            return super().loss(view_a, view_b, link, **inputs)
        return info_nce(view_a, view_b, link=link)

    def follow(self, model: nn.Module) -> dict[str, float]:
        found = {}
        for part, (tokens, scores) in self.judged.items():
            vectors = []
            for rows in torch.split(torch.arange(len(tokens)), SENTENCES_PER_CHUNK):
                taken = tokens.take(rows)
                vectors.append(model(taken.ids, taken.attention))
            first, second = torch.cat(vectors).float().chunk(2)
            cosines = cosine_similarity(first, second)
            found[part] = 100 * float(spearmanr(cosines.cpu().numpy(), scores).statistic)
        return found

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return self.follow(model)

    def network(self) -> nn.Module:
        """The pretrained model gives the layers and the tokenizer."""
        self.tokenizer = load_tokenizer(self.settings.model)
        self.pretrained, _ = load_masked_lm(self.settings.model)
        return self.model()

    def embed_new(
        self, model: nn.Module, source: Path, watch: Callable[[int, int], None]
    ) -> tuple[list[str], Tensor]:
        """The sentences of a text file, one a line."""
        texts, device = read_texts(source), next(model.parameters()).device
        tokens = tokenise(self.tokenizer, texts, self.settings.length)
        return texts, text_vectors(model, tokens, device, SENTENCES_PER_CHUNK, watch)


def check_stsb(path: Path) -> None:
    """Raise a ValueError unless the file is there."""
    check_file(path, "a part of the STS benchmark")


def read_stsb(path: Path) -> list[tuple[str, str, float]]:
    """Two sentences and how similar people found them, 0 to 5, from a CSV without a head."""
    check_stsb(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(first, second, float(score)) for first, second, score in csv.reader(file)]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} must have rows of two sentences and a number ({error}).") from error
    if not rows:
        raise ValueError(f"{path} must have rows of two sentences and a number, but is empty.")
    return rows
