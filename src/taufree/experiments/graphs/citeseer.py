"""GRACE on CiteSeer, the paper's graph benchmark, by PyGCL's recipe.

3,327 papers that cite each other, each a bag of words with one of six subjects. Two views of the whole graph
are drawn in every epoch by dropping edges and words, a network of two graph convolutions is trained on them
without labels, and a linear probe on its frozen features is judged by F1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from taufree import Link, nt_xent
from taufree.experiments.evaluation.linear_probe import draw_splits, probe_predictions, scores
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.graphs.grace import Grace, draw_views, load_citeseer
from taufree.experiments.recipe import Preset, Recipe, Settings, Step

MASKS = ("nt-xent", "pygcl")


@dataclass(frozen=True)
class CiteSeerSettings(Settings):
    """The defaults are PyGCL's.

    Attributes:
        edges: a view drops each directed edge with this probability,
        columns: and zeroes each column of the features with this one.
        probe_epochs: how long the linear probe is trained.
        mask: "nt-xent" leaves the pair of an anchor with itself out of its candidates, "pygcl" leaves it in.
    """

    epochs: int = 1000
    learning_rate: float = 0.01
    edges: float = 0.3
    columns: float = 0.3
    probe_epochs: int = 5000
    mask: str = "nt-xent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask not in MASKS:
            raise ValueError(f"mask must be one of {', '.join(MASKS)}, got {self.mask!r}.")


class CiteSeer(Recipe):
    name = "citeseer"
    title = "GRACE on the citation graph CiteSeer"
    task = (
        "The network learns without labels: a node should get similar vectors (a positive pair) in two "
        "copies of the graph, each without some edges and features, and different nodes "
        "(negative pairs) should not."
    )
    settings_type = CiteSeerSettings
    metrics: ClassVar = {
        "micro": "% of the test nodes (2,663, a true 10/10/80 split) that a linear probe gets right",
        "macro": "the mean of the classes' F1 there, in %",
        "pygcl_micro": "the same by PyGCL's split, whose test nodes are the last tenth (334)",
        "pygcl_macro": "the mean of the classes' F1 there, in %",
    }
    presets: ClassVar = {
        "full": Preset(seeds=20),
        "quick": Preset(seeds=2, settings={"epochs": 3, "probe_epochs": 500}),
    }
    static = True

    settings: CiteSeerSettings

    def load(self, data: Path | None) -> None:
        self.graph = load_citeseer(data)

    def model(self) -> nn.Module:
        return Grace(self.graph)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One batch: the edges and columns that two views of the whole graph keep."""
        chosen = self.settings
        yield draw_views(self.graph, edges=chosen.edges, columns=chosen.columns, generator=generator)

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link) -> Tensor:
        if self.settings.mask == "pygcl":
            return with_self_pairs(view_a, view_b, link)
        return super().loss(view_a, view_b, link)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        a, b = model(*batch)[1].chunk(2)
        return Step(self.loss(a, b, link), observe_views(a, b, link, anchors=64))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        nodes, columns = self.graph.features.shape
        whole = (torch.ones(1, size, dtype=torch.bool) for size in (self.graph.edges.shape[1], columns))
        features = model(*whole)[0]
        train, splits = draw_splits(nodes)
        predictions = probe_predictions(features, self.graph.labels, train, epochs=self.settings.probe_epochs)
        found = {name: scores(predictions, self.graph.labels, split) for name, split in splits.items()}
        return {
            "micro": found["true"][0],
            "macro": found["true"][1],
            "pygcl_micro": found["pygcl"][0],
            "pygcl_macro": found["pygcl"][1],
        }


def with_self_pairs(view_a: Tensor, view_b: Tensor, link: Link) -> Tensor:
    """NT-Xent with the denominator of PyGCL's mask, where each anchor is a candidate of its own.

    With w the weight exp(link(1)) of an anchor's pair with itself and p that of its positive, -log(p / Z)
    becomes -log(p / (Z + w)) = log(exp(NT-Xent) + w / p). The pair's cosine is 1 whatever the network does,
    so it is pulled nowhere, but all other candidates lose their share of the pull to it.
    """
    losses = nt_xent(view_a, view_b, link=link, reduction="none")
    a, b = normalize(view_a.double(), dim=-1), normalize(view_b.double(), dim=-1)
    gap, rise = (a - b).square().sum(-1) / 2, (a + b).square().sum(-1) / 2
    positive = link.logit((rise - gap) / 2, gap, rise)
    zero, one = torch.zeros_like(gap), torch.ones_like(gap)
    own = link.logit(one, zero, 2 * one)
    return torch.logaddexp(losses, (own - positive).repeat(2).to(losses.dtype)).mean()


RECIPE = CiteSeer
