"""DCRec, the paper's recommendation benchmark: the next item of a user, with two contrastive terms.

Each user's last item is for the test, the one before it for validation: the epoch with the best figure
there is the one that is tested, once. ``protocol="public"`` does as the public code does, which chooses the
epoch by the test items themselves and trains on the validation items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from taufree import Link
from taufree.experiments.acceleration import Accelerated, Acceleration
from taufree.experiments.evaluation.pair_statistics import observe_pairs
from taufree.experiments.recipe import Preset, Step
from taufree.experiments.recommendation.catalogue_loss import catalogue_loss
from taufree.experiments.recommendation.dataset import (
    NEGATIVES,
    content_digest,
    load_dataset,
    modification_times,
)
from taufree.experiments.recommendation.network import (
    DCRecNetwork,
    Output,
    contrastive,
    divergence,
)
from taufree.experiments.recommendation.packing import packed
from taufree.experiments.recommendation.ranking import (
    USERS_PER_CHUNK,
    full_ranks,
    ranking_metrics,
    sampled_ranks,
)
from taufree.experiments.settings import BatchSettings, Bounds
from taufree.util.files import refuse_file
from taufree.util.machine import compiles

NAMED_DATASETS = ("beauty", "reddit")
HISTORIES_PER_PASS = 8192
"""Histories that are judged together."""


@dataclass(frozen=True)
class DCRecSettings(BatchSettings):
    """The defaults are the public code's for MovieLens-20M, the paper's data set, for every data set."""

    epochs: Annotated[int, "Passes over the data at most, see patience.", Bounds(1)] = 300
    batch_size: int = 512
    learning_rate: Annotated[float, "The learning rate of Adam."] = 1e-3
    patience: Annotated[
        int, "Training ends when so many epochs in a row have not improved the figure of the choice."
    ] = 20
    dataset: Annotated[str, "beauty, reddit, or a folder that taufree sequences made."] = "beauty"
    protocol: Annotated[
        Literal["validation", "public"],
        "What chooses the epoch: the validation items, or, as in the public code, the test items.",
    ] = "validation"
    ids: Annotated[
        bool,
        "Rows of a batch with the same last item, whose keys are the same vectors, are not negatives of each "
        "other; in the public code they are.",
    ] = True
    contrast: Annotated[float, "The weight of the contrastive terms; 0 is a control without them."] = 0.1
    divergence: Annotated[float, "The weight of the regulariser of the conformity weights."] = 0.01
    mean: Annotated[float, "The mean of the conformity weights."] = 0.4
    dropout: Annotated[
        float, "Dropout of the Transformer, its attention and the graphs' edges.", Bounds(0, 1)
    ] = 0.5
    longest: Annotated[int, "Items of a history at most.", Bounds(1)] = 50
    users: Annotated[int, "Read so many users at most; 0 is all."] = 0


class _Judge(NamedTuple):
    """What is judged: numbers of rows with their slots, and the target [N] and negatives [N, K] of each."""

    packs: list[tuple[Tensor, Tensor]]
    targets: Tensor
    negatives: Tensor


class DCRec(Accelerated):
    name = "dcrec"
    title = "DCRec, which recommends the next item"
    task = (
        "The network learns which item a user takes next, by a loss of its own. Beside it, a user's last "
        "item should get similar vectors (a positive pair) from the user's history and from a graph of "
        "items, and last items of different users (negative pairs) should not."
    )
    data_source = (
        "dcrec/beauty or dcrec/reddit in the folder --data, two .inter files each; or your own: dataset is "
        "then a folder that taufree sequences made."
    )
    example = "taufree run dcrec --preset quick --data FOLDER --set dataset=beauty"
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
    acceleration = Acceleration(tf32=True, recorded_steps=True)
    select_by = "choice"

    settings: DCRecSettings

    def check(self, data: Path | None) -> None:
        self._folder(data)

    def content(self, data: Path | None) -> str | None:
        """Of a folder of the user's own: a data set that is made again may be another one."""
        if self.settings.dataset in NAMED_DATASETS:
            return None
        folder = self._folder(data)
        return content_digest(folder, modification_times(folder))

    def _folder(self, data: Path | None) -> Path:
        chosen = self.settings
        if chosen.dataset in NAMED_DATASETS and data is None:
            raise ValueError(
                f"the data set {chosen.dataset} needs --data FOLDER with dcrec/{chosen.dataset} in it, two "
                ".inter files; --set dataset=FOLDER reads others."
            )
        folder = Path(chosen.dataset)
        if data and chosen.dataset in NAMED_DATASETS:
            refuse_file(data, f"dcrec/{chosen.dataset}, two .inter files")
            folder = data / "dcrec" / chosen.dataset
        refuse_file(folder, "two .inter files, as taufree sequences makes it")
        if not folder.is_dir():
            raise ValueError(
                f"No such folder: {folder}; dataset must be {', '.join(NAMED_DATASETS)} or a folder that "
                "taufree sequences made."
            )
        return folder

    def load(self, data: Path | None) -> None:
        chosen, folder = self.settings, self._folder(data)
        found = load_dataset(folder, chosen.longest, chosen.users, modification_times(folder))
        self.data, self.neighbours, self.negatives = found
        self.notes = list(self.data.notes)
        self.parts = {"train": self.data.train, "test": self.data.test}
        self.judged = {part: self._judged(part) for part in self.parts}
        if chosen.protocol == "public":
            self.notes.append(
                "protocol=public chooses the epoch by the test items and trains on the validation items, "
                "as the public code does: its figures flatter every link, and are for comparison alone."
            )
        self.samples = self.data.train.beginnings(whole=chosen.protocol == "public")
        count = self.samples.shape[1]
        if count < 2:
            raise ValueError(
                f"{folder} must have users with two items or more beside those that are held out, "
                f"got {count} histories to train on."
            )
        self.steps = chosen.count_batches(count, ", the number of histories to train on")

    def _judged(self, part: str) -> Tensor:
        """The rows of a part by which the network is judged: those whose target it can know.

        Negatives drawn by popularity all occur in training, so an item that does not differs from them by
        that alone, whatever the user's taste is. The public protocol has such rows nevertheless.
        """
        rows = self.parts[part]
        known = torch.zeros(self.data.item_count, dtype=torch.bool)
        known[self.data.train.items[self.data.train.known]] = True
        judged = known[rows.targets].nonzero().squeeze(1)
        if self.settings.protocol == "public":
            return torch.arange(len(rows.lengths))
        name = {"train": "validation", "test": "test"}[part]
        if unknown := len(rows.lengths) - len(judged):
            self.notes.append(
                f"{unknown} of {len(rows.lengths)} {name} items never occur in the histories to train on; "
                "they are left out of the figures."
            )
        if not len(judged):
            raise ValueError(f"the {name} rows must have items that the training histories have, too.")
        return judged

    def model(self) -> nn.Module:
        chosen = self.settings
        return DCRecNetwork(
            self.data, self.neighbours, dropout=chosen.dropout, mean=chosen.mean, samples=self.samples
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate, fused=True)

    def accelerate(self, model: nn.Module, device: torch.device) -> Acceleration:
        # What is judged is the same after every epoch.
        self._judges = {part: self._judge(part, device) for part in self.parts}
        if compiles(device):
            network: Any = model
            network.compile_reading()
        return self.acceleration

    def _judge(self, part: str, device: torch.device) -> _Judge:
        rows, index = self.parts[part], self.judged[part]
        packs = []
        for some in torch.split(index, HISTORIES_PER_PASS):
            slots = _packed(rows.lengths[some], rows.items.shape[1] - 1)
            packs.append((some.to(device), slots.to(device)))
        return _Judge(packs, rows.targets[index].to(device), self.negatives[part][index].to(device))

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Numbers of samples, each at most once an epoch, the conformity weights that are expected, and
        where the Transformer reads each history."""
        lengths = self.samples[1]
        order = torch.randperm(len(lengths), generator=generator)
        size, longest = self.settings.batch_size, self.data.train.items.shape[1] - 1
        # Nearly all batches need fewer items, so that nearly all have the same number of rows.
        most = size * lengths.double().mean() + 4 * (size * lengths.double().var(correction=0)).sqrt()
        for index in torch.split(order[: self.steps * size], size):
            expected = self.settings.mean + 0.1 * torch.randn(size, generator=generator)
            yield index, expected, _packed(lengths[index], longest, int(most))

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        samples, expected, slots = batch
        seen: Output = model(samples, slots=slots)
        ids = seen.last if self.settings.ids else None
        loss = catalogue_loss(seen.wanted, _vectors(model), seen.targets)
        loss = loss + self.settings.divergence * divergence(seen.conformity, expected)
        if self.settings.contrast:
            loss = loss + self.settings.contrast * contrastive(seen, ids, link)
        return Step(loss, observe_pairs(seen.sequence, seen.adjacent, link, ids=ids, anchors=64))

    def follow(self, model: nn.Module) -> dict[str, float]:
        """The figure that chooses the epoch."""
        public = self.settings.protocol == "public"
        part, figure = ("test", "hr1") if public else ("train", "ndcg10")
        return {"choice": ranking_metrics(self._sampled(model, part, self._wanted(model, part)))[figure]}

    @property
    def patience(self) -> int:
        return self.settings.patience

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return self._figures(model, "test")

    def _figures(self, model: nn.Module, part: str) -> dict[str, float]:
        """The metrics of the test rows, or of the training rows' targets, which are for validation."""
        rows, judge, wanted = self.parts[part], self._judges[part], self._wanted(model, part)
        found = []
        chunks = zip(
            *(torch.split(x, USERS_PER_CHUNK) for x in (self.judged[part], wanted, judge.targets)),
            strict=True,
        )
        for index, some, targets in chunks:
            scores = some @ _vectors(model).T.to(some.dtype)
            found.append(full_ranks(scores, targets, rows.seen(index).to(scores.device)))
        full = ranking_metrics(torch.cat(found))
        sampled = ranking_metrics(self._sampled(model, part, wanted))
        return {**sampled, **{f"full_{name}": value for name, value in full.items()}}

    def _wanted(self, model: nn.Module, part: str) -> Tensor:
        """[N, width], what is wanted after each history of a part that is judged; evaluation mode."""
        network: Any = model
        walks = network.walks(part)
        return torch.cat(
            [model(index, part, slots, walks).wanted for index, slots in self._judges[part].packs]
        )

    def _sampled(self, model: nn.Module, part: str, wanted: Tensor) -> Tensor:
        """[N], the ranks among the negatives."""
        _, targets, negatives = self._judges[part]
        chunks = zip(*(torch.split(x, HISTORIES_PER_PASS) for x in (wanted, targets, negatives)), strict=True)
        found = [sampled_ranks(some, _vectors(model), *compared) for some, *compared in chunks]
        return torch.cat(found)


def _packed(lengths: Tensor, longest: int, most: int = 0) -> Tensor:
    """Slots in rows of 64, the tiles of attention on a GPU, or of the next multiple of 8, as its mask needs
    it; as many rows as ``most`` items fill, or a multiple of them."""
    width = max(64, -(-longest // 8) * 8)
    return packed(lengths, longest, width, rows=most // width + 1)


def _vectors(model: nn.Module) -> Tensor:
    network: Any = model
    vectors: Tensor = network.vectors
    return vectors
