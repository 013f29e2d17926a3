"""MABEL, the paper's language benchmark: a masked language model trained away from gender stereotypes.

By the public code of MABEL (He et al. 2022): entailment pairs with a gendered word, and their copies with all
such words swapped. Three losses: premises against hypotheses (contrastive), the similarities of the
originals against those of the copies (alignment), and masked language modelling. Judged by StereoSet and
CrowS-Pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from taufree import Link, info_nce
from taufree.backends.numerics import full_precision, normalize, similarity
from taufree.experiments.evaluation.pair_statistics import observe_pairs
from taufree.experiments.language.crows import crows_pairs, crows_share, read_crows
from taufree.experiments.language.finetune import FineTuning, LanguageSettings
from taufree.experiments.language.nli_pairs import read_entailments, swap_pairs
from taufree.experiments.language.scoring import Row
from taufree.experiments.language.stereoset import (
    balance,
    find_stereoset,
    read_stereoset,
    stereoset,
    stereoset_summary,
)
from taufree.experiments.language.tokens import logits_at, mask
from taufree.experiments.link_names import make_link, parse_links, temperature_of
from taufree.experiments.recipe import Preset, Step

BIAS_TYPE = "gender"
TERMS = ("contrastive", "aligning", "modelling")


@dataclass(frozen=True)
class MabelSettings(LanguageSettings):
    """The defaults are the paper's where it names them, and those of MABEL's public code.

    Near cosine 0 the alignment term is 4 times the squared difference of the cosines for the free link, and
    1/tau^2 times for a temperature, 400 times for 0.05.
    """

    epochs: int = 2
    alignment: Annotated[
        str, "The link of the alignment term: same as that of the contrastive term, free, or a temperature."
    ] = "same"
    alignment_weight: Annotated[float, "The weight of the alignment term."] = 0.05
    mlm_weight: Annotated[float, "The weight of masked language modelling."] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alignment != "same":
            try:
                right = parse_links(self.alignment) == (self.alignment,)
                # The others change while they are trained, and here nothing would train them.
                right = right and (self.alignment == "free" or temperature_of(self.alignment) is not None)
            except ValueError:
                right = False
            if not right:
                raise ValueError(
                    f"alignment must be same, free or a temperature such as 0.05, got {self.alignment!r}."
                )


class Debiased(nn.Module):
    """A masked language model, and a head that makes a sentence's vector of its first token's."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model = language_model
        width, spread = language_model.config.hidden_size, language_model.config.initializer_range
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        for weights in self.head.parameters():
            nn.init.normal_(weights, std=spread) if weights.ndim == 2 else nn.init.zeros_(weights)

    def forward(
        self, ids: Tensor, attention: Tensor, masked: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Vectors [N, D] of ids and attention [N, L], and logits [K, V] at positions of the masked ids."""
        encoder = self.language_model.base_model
        first = encoder(input_ids=ids, attention_mask=attention).last_hidden_state[:, 0]
        logits = logits_at(self.language_model, masked, attention, positions)
        # The loss resolves cosines that bfloat16 does not; the head is small.
        with torch.autocast(ids.device.type, enabled=False):
            return self.head(first.to(self.head[0].weight.dtype)), logits


class Mabel(FineTuning):
    name = "mabel"
    title = "MABEL on gender-swapped entailment pairs"
    task = (
        "A masked language model is trained on pairs of sentences, of which the second follows from the "
        "first, and on copies of them with he and she, man and woman swapped. The two sentences of a pair (a "
        "positive pair) should get similar vectors, those of different pairs (negative pairs) should not."
    )
    data_source = (
        "The folder --data holds snli or mnli, bias/stereoset.jsonl (or bias/dev.json) and "
        "bias/crows_pairs_anonymized.csv; the model is downloaded unless it is a folder."
    )
    example = (
        "taufree run mabel --data FOLDER --links free,0.05 --set model=bert-base-uncased --set alignment=0.05"
    )
    settings_type = MabelSettings
    metrics: ClassVar = {
        "icat": "StereoSet's idealised score for gender: lm times balance",
        "lm": "% of comparisons in StereoSet's gender contexts in which a meaningful word is likelier than "
        "an unrelated one",
        "balance": "100 where the stereotype and its opposite are the likelier one equally often there, 0 "
        "where it is always the same one: min(SS, 100 - SS) / 50",
        "crows_balance": "the same for the gender pairs of CrowS-Pairs",
        "icat_all": "icat over StereoSet's contexts of every kind of bias",
    }
    presets: ClassVar = {
        "full": Preset(seeds=10),
        "quick": Preset(seeds=1, settings={"epochs": 1, "subset": 64, "length": 48}),
    }

    settings: MabelSettings

    def load(self, data: Path | None) -> None:
        pairs = swap_pairs(read_entailments(data))
        if pairs.left_out:
            total = len(pairs.quadruples) + pairs.left_out
            self.notes.append(
                f"{pairs.left_out} of {total} gendered pairs are left out: swapped back they would differ."
            )
        assert data is not None
        self.contexts = self._some(read_stereoset(find_stereoset(data)))
        pairs_of_sentences = read_crows(data / "bias" / "crows_pairs_anonymized.csv")
        self.sentences = self._some([row for row in pairs_of_sentences if row["bias_type"] == BIAS_TYPE])
        self.aligned = None if self.settings.alignment == "same" else make_link(self.settings.alignment)
        self.prepare(list(pairs.quadruples), data)
        self._terms: list[Tensor] = []

    def model(self) -> nn.Module:
        return Debiased(self.language_model())

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Ids and attention of 4 B sentences, the same masked, and the places and targets of the masks.

        The order of the sentences: premises, hypotheses, swapped premises, swapped hypotheses.
        """
        draws = torch.Generator(self.device)
        draws.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        for rows in self.drawn(generator):
            tokens = self.tokens.take(rows)
            yield tokens.ids, tokens.attention, *mask(tokens, self.tokenizer, draws)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        ids, attention, masked, positions, targets = batch
        vectors, logits = model(ids, attention, masked, positions)
        premise, hypothesis, other_premise, other_hypothesis = vectors.chunk(4)
        premises = torch.cat([premise, other_premise])
        hypotheses = torch.cat([hypothesis, other_hypothesis])
        chosen = self.settings
        contrastive = info_nce(premises, hypotheses, link=link)
        aligning = alignment(vectors, self.aligned or link)
        modelling = cross_entropy(logits.float(), targets)
        self._terms.append(torch.stack([contrastive, aligning, modelling]).detach())
        loss = contrastive + chosen.alignment_weight * aligning + chosen.mlm_weight * modelling
        return Step(loss, observe_pairs(premises, hypotheses, link))

    def follow(self, model: nn.Module) -> dict[str, float]:
        """The epoch's mean of each term before it is weighted, and what :meth:`evaluate` gives."""
        means = torch.stack(self._terms).mean(0).tolist()
        self._terms.clear()
        return {**dict(zip(TERMS, means, strict=True)), **self.evaluate(model)}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The metrics, and the figures as they are published: ``ss`` and ``crows`` are best at 50."""
        language_model: Any = model.language_model
        rows = stereoset(language_model, self.tokenizer, self.contexts)
        gender, all_kinds = stereoset_summary(rows, BIAS_TYPE), stereoset_summary(rows)
        share = crows_share(crows_pairs(language_model, self.tokenizer, self.sentences))
        return {
            **gender,
            **{f"{name}_all": value for name, value in all_kinds.items()},
            "crows": share,
            "balance": balance(gender["ss"]),
            "crows_balance": balance(share),
        }

    def _some(self, rows: list[Row]) -> list[Row]:
        """The first ones, those of gender before the others."""
        rows = sorted(rows, key=lambda row: row["bias_type"] != BIAS_TYPE)
        return rows[: self.settings.subset or len(rows)]


def alignment(vectors: Tensor, link: Link) -> Tensor:
    """How much swapping the gender changes the scores of premises against hypotheses.

    With s_ij the link of the cosine of premise i and hypothesis j, and s'_ij that of the swapped ones, the
    mean over i of the sum over j of (s_ij - s'_ij)^2, as in MABEL's code.

    Args:
        vectors: [4 B, D], premises, hypotheses, swapped premises, swapped hypotheses.
    """
    premise, hypothesis, other_premise, other_hypothesis = vectors.chunk(4)
    with full_precision(vectors.device):
        scores = []
        for rows, columns in ((premise, hypothesis), (other_premise, other_hypothesis)):
            gap, rise = similarity(*normalize(rows), *normalize(columns))
            scores.append(link.logit((rise - gap) / 2, gap, rise))
        return (scores[0] - scores[1]).square().sum(1).mean().to(vectors.dtype)
