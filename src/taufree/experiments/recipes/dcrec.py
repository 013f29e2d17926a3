"""DCRec, the paper's recommendation benchmark: the next item of a user, with two contrastive terms.

Each user's last item is for the test, the one before it for validation: the epoch with the best figure
there is the one that is tested, once. ``protocol="public"`` does as the public code does, which chooses the
epoch by the test items themselves and trains on the validation items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from taufree import Link, info_nce
from taufree.experiments.dcrec import DCRec, Output, Shape, divergence
from taufree.experiments.interactions import read_interactions
from taufree.experiments.observation import observe_pairs
from taufree.experiments.packing import packed
from taufree.experiments.ranking import AT_ONCE, draw_negatives, figures, ranks
from taufree.experiments.recipe import BatchSettings, Preset, Recipe, Step

NAMED = ("beauty", "reddit")
PROTOCOLS = ("validation", "public")
NEGATIVES = 100


@dataclass(frozen=True)
class DCRecSettings(BatchSettings):
    """The defaults are the public code's for MovieLens-20M, the paper's data set, whatever the data set is.

    Attributes:
        epochs: at most; training ends when ``patience`` epochs have not bettered the figure of the choice.
        dataset: beauty, reddit, or the folder of another one.
        protocol: "validation", or "public", see above.
        ids: whether rows of a batch with the same last item, whose keys are the same vectors, are left out
            of each other's negatives.
        contrast: the weight of the contrastive terms; 0 is a control without them.
        divergence: the weight of the conformity weights' regulariser, and
        mean: their mean.
        dropout: of the Transformer, its attention and the graphs' edges.
        longest: items of a history at most.
        users: read so many at most; 0 is all.
    """

    epochs: int = 300
    batch_size: int = 512
    learning_rate: float = 1e-3
    patience: int = 20
    dataset: str = "beauty"
    protocol: str = "validation"
    ids: bool = True
    contrast: float = 0.1
    divergence: float = 0.01
    mean: float = 0.4
    dropout: float = 0.5
    longest: int = 50
    users: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}.")


class Recommendation(Recipe):
    name = "dcrec"
    title = "DCRec, which recommends the next item"
    task = (
        "The network learns which item a user takes next, by a loss of its own. Beside it, a user's last "
        "item should get similar vectors (a positive pair) from the user's history and from a graph of "
        "items, and last items of different users (negative pairs) should not."
    )
    settings_type = DCRecSettings
    metrics: ClassVar = {
        "hr1": f"% of users whose test item is ranked first among {NEGATIVES} others, drawn by popularity",
        "hr5": "% whose test item is among the first 5 there",
        "hr10": "% whose test item is among the first 10 there",
        "ndcg5": "the mean of 1 / log2(rank + 1) there in %, 0 beyond rank 5",
        "ndcg10": "the same, 0 beyond rank 10",
        "full_hr1": "% of users whose test item is ranked first of all items that are new to them",
        "full_hr5": "% whose test item is among the first 5 of all",
        "full_hr10": "% whose test item is among the first 10 of all",
        "full_ndcg5": "the mean of 1 / log2(rank + 1) among all in %, 0 beyond rank 5",
        "full_ndcg10": "the same, 0 beyond rank 10",
        "choice": "what the epoch was chosen by: ndcg10 of the validation items, or, by the public protocol, "
        "hr1 of the test items",
    }
    presets: ClassVar = {
        "full": Preset(seeds=10),
        "quick": Preset(seeds=1, settings={"epochs": 2, "batch_size": 256, "users": 500, "longest": 12}),
    }
    static = True
    stops_early = True

    settings: DCRecSettings

    def load(self, data: Path | None) -> None:
        chosen = self.settings
        if chosen.dataset in NAMED and data is None:
            raise ValueError(
                f"the data set {chosen.dataset} needs --data FOLDER with dcrec/{chosen.dataset} in it, two "
                ".inter files; --dataset FOLDER reads others."
            )
        folder = data / "dcrec" / chosen.dataset if data and chosen.dataset in NAMED else Path(chosen.dataset)
        if not folder.is_dir():
            raise ValueError(
                f"dataset must be {', '.join(NAMED)} or a folder that taufree sequences made, but {folder} "
                "is no folder."
            )
        self.data = read_interactions(folder, longest=chosen.longest, users=chosen.users)
        self.notes = list(self.data.notes)
        self.parts = {"train": self.data.train, "test": self.data.test}
        self.judged = {part: self._judged(part) for part in self.parts}
        if chosen.protocol == "public":
            self.notes.append(
                "--protocol public chooses the epoch by the test items and trains on the validation items, "
                "as the public code does: its figures flatter every link, and are for comparison alone."
            )
        draw = torch.Generator().manual_seed(0)  # the same negatives for every run
        train = self.data.train
        popularity = torch.bincount(train.items[train.known], minlength=self.data.item_count)
        self.negatives = {
            part: draw_negatives(rows, popularity, NEGATIVES, draw) for part, rows in self.parts.items()
        }
        self.samples = train.beginnings(whole=chosen.protocol == "public")
        count = self.samples.shape[1]
        if count < chosen.batch_size:
            raise ValueError(
                f"batch_size must be at most {count}, the number of histories to train on, "
                f"got {chosen.batch_size}."
            )

    def _judged(self, part: str) -> Tensor:
        """The rows of a part by which the network is judged: those whose target it can know.

        Negatives drawn by popularity all occur in training, so an item that does not is told apart from
        them by that alone, whatever the user's taste is. The public protocol has such rows nevertheless.
        """
        rows = self.parts[part]
        known = torch.zeros(self.data.item_count, dtype=torch.bool)
        known[self.data.train.items[self.data.train.known]] = True
        judged = known[rows.targets].nonzero().squeeze(1)
        if self.settings.protocol == "public":
            return torch.arange(len(rows.lengths))
        name = {"train": "validation", "test": "test"}[part]
        if strange := len(rows.lengths) - len(judged):
            self.notes.append(
                f"{strange} of {len(rows.lengths)} {name} items never occur in the histories to train on; "
                "they are left out of the figures."
            )
        if not len(judged):
            raise ValueError(f"the {name} rows must have items that the training histories have, too.")
        return judged

    def model(self) -> nn.Module:
        chosen = self.settings
        shape = Shape(dropout=chosen.dropout)
        model = DCRec(self.data, shape, mean=chosen.mean, samples=self.samples)
        # Buffers, for they are a part of the run's state: the weights of the best epoch, and its figure.
        model.register_buffer("chosen", _flat(model).clone())
        model.register_buffer("chosen_figure", torch.tensor(-1.0, dtype=torch.float64))
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)

    def settle(self, model: nn.Module, device: torch.device) -> bool:
        self.negatives = {part: table.to(device) for part, table in self.negatives.items()}
        return self.static

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Numbers of samples, each at most once an epoch, the conformity weights that are expected, and
        where the Transformer reads each history."""
        lengths = self.samples[1]
        order = torch.randperm(len(lengths), generator=generator)
        size, width = self.settings.batch_size, self.data.train.items.shape[1] - 1
        # More than the mean need, so that nearly all batches have the same number of rows.
        rows = math.ceil(1.2 * size * lengths.double().mean().item() / width)
        for start in range(0, len(order) - size + 1, size):
            index = order[start : start + size]
            expected = self.settings.mean + 0.1 * torch.randn(size, generator=generator)
            yield index, expected, packed(lengths[index].tolist(), width, rows)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        samples, expected, slots = batch
        seen: Output = model(samples, slots=slots)
        ids = seen.last if self.settings.ids else None
        loss = cross_entropy(seen.scores, seen.targets)
        loss = loss + self.settings.divergence * divergence(seen.conformity, expected)
        if self.settings.contrast:
            loss = loss + self.settings.contrast * contrastive(seen, ids, link)
        return Step(loss, observe_pairs(seen.sequence, seen.adjacent, link, ids=ids, anchors=64))

    def follow(self, model: nn.Module) -> dict[str, float]:
        """The figure that chooses the epoch; the weights of the best one so far are kept."""
        public = self.settings.protocol == "public"
        found = self._figures(model, "test" if public else "train")["hr1" if public else "ndcg10"]
        kept: Any = model
        if found > kept.chosen_figure:
            kept.chosen.copy_(_flat(model))
            kept.chosen_figure.fill_(found)
        return {"choice": found}

    def enough(self, curves: Mapping[str, list[float]]) -> bool:
        figures_so_far = curves.get("choice", [])
        if not figures_so_far:
            return False
        best = figures_so_far.index(max(figures_so_far))
        return len(figures_so_far) - 1 - best >= self.settings.patience

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        kept: Any = model
        weights = list(model.parameters())
        sizes = [weight.numel() for weight in weights]
        for weight, part in zip(weights, torch.split(kept.chosen, sizes), strict=True):
            weight.copy_(part.view_as(weight))
        return {**self._figures(model, "test"), "choice": kept.chosen_figure.item()}

    def _figures(self, model: nn.Module, part: str) -> dict[str, float]:
        """The metrics of the test rows, or of the training rows' targets, which are for validation."""
        rows, negatives = self.parts[part], self.negatives[part]
        found: list[tuple[Tensor, Tensor]] = []
        for index in torch.split(self.judged[part], AT_ONCE):
            out: Output = model(index, part)
            device = out.scores.device
            seen = rows.seen(index).to(device)
            found.append(ranks(out.scores, out.targets, negatives[index.to(device)], seen))
        sampled, full = (torch.cat(rank) for rank in zip(*found, strict=True))
        return {**figures(sampled), **{f"full_{name}": value for name, value in figures(full).items()}}


def contrastive(seen: Output, ids: Tensor | None, link: Link) -> Tensor:
    """mean of w InfoNCE(sequence, adjacent) + (max w - w) InfoNCE(adjacent, similar), w the conformity.

    A key stands for its history's last item; histories that end with the same item have the same key, which
    is a negative equal to the positive unless ``ids`` tell.
    """
    weight = seen.conformity
    options: dict[str, Any] = {"ids": ids, "link": link, "reduction": "none"}
    crowd = info_nce(seen.sequence, seen.adjacent, **options)
    taste = info_nce(seen.adjacent, seen.similar, **options)
    return (weight * crowd + (weight.max() - weight) * taste).mean()


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


RECIPE = Recommendation
