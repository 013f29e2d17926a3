"""GRACE on CiteSeer, the paper's graph benchmark, by PyGCL's recipe.

3,327 papers that cite each other, each a bag of words with one of six subjects. Two views of the whole graph
are drawn in every epoch by dropping edges and words, a network of two graph convolutions is trained on them
without labels, and a linear probe on its frozen features is judged by F1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from taufree import Link, nt_xent
from taufree.baselines import Scheme
from taufree.experiments.acceleration import Accelerated, Acceleration
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.graphs.grace import Grace, check_citeseer, draw_views, load_citeseer
from taufree.experiments.graphs.linear_probe import draw_splits, f1_scores, probe_predictions
from taufree.experiments.recipe import Preset, Step
from taufree.experiments.settings import Bounds, Settings
from taufree.util.errors import BadInputError


@dataclass(frozen=True)
class CiteSeerSettings(Settings):
    """The defaults are PyGCL's."""

    epochs: int = 1000
    learning_rate: Annotated[float, "The learning rate of Adam."] = 0.01
    edges: Annotated[float, "The probability that a view drops a directed edge.", Bounds(0, 1)] = 0.3
    columns: Annotated[float, "The probability that a view zeroes a column of features.", Bounds(0, 1)] = 0.3
    probe_epochs: Annotated[int, "Epochs of the linear probe.", Bounds(1)] = 5000
    mask: Annotated[
        Literal["nt-xent", "pygcl"],
        "nt-xent leaves the pair of an anchor with itself out of its candidates, pygcl leaves it in.",
    ] = "nt-xent"


class CiteSeer(Accelerated):
    name = "citeseer"
    title = "GRACE on the citation graph CiteSeer"
    task = (
        "The network learns without labels: a node should get similar vectors (a positive pair) in two "
        "copies of the graph, each without some edges and features, and different nodes "
        "(negative pairs) should not."
    )
    data_source = "planetoid/CiteSeer/raw in the folder --data; downloaded if no folder is given."
    example = "taufree run citeseer --links free,0.5 --set mask=pygcl"
    settings_type = CiteSeerSettings
    metrics: ClassVar = {
        "micro": "% of the test nodes (2,663, a true 10/10/80 split) that a linear probe gets right",
        "macro": "the mean of the classes' F1 there, in %",
        "pygcl_micro": "micro by PyGCL's split, whose test nodes are the last tenth (334)",
        "pygcl_macro": "the mean of the classes' F1 there, in %",
    }
    presets: ClassVar = {
        "full": Preset(seeds=20),
        "quick": Preset(seeds=2, settings={"epochs": 3, "probe_epochs": 500}),
    }
    acceleration = Acceleration(recorded_steps=True)
    serves: ClassVar = frozenset({"index", "uncertainty"})

    settings: CiteSeerSettings

    def check(self, data: Path | None) -> None:
        check_citeseer(data)

    def load(self, data: Path | None) -> None:
        self.graph = load_citeseer(data)

    @property
    def sample_count(self) -> int:
        return len(self.graph.labels)

    def model(self) -> nn.Module:
        return Grace(self.graph, uncertainty="uncertainty" in self.needed)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """One batch: the edges and columns that two views of the whole graph keep, and the nodes' numbers for
        schemes that need them."""
        chosen = self.settings
        views = draw_views(self.graph, edges=chosen.edges, columns=chosen.columns, generator=generator)
        yield (*views, torch.arange(self.sample_count)) if "index" in self.needed else views

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link | Scheme, **inputs: Tensor) -> Tensor:
        if self.settings.mask == "pygcl":
            if isinstance(link, Scheme):
                raise BadInputError("mask=pygcl is of losses with a link, and not of schemes.")
            return with_self_pairs(view_a, view_b, link)
        return super().loss(view_a, view_b, link, **inputs)

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        kept_edges, kept_columns, *index = batch
        _, projections, *uncertainty = model(kept_edges, kept_columns)
        a, b = projections.chunk(2)
        inputs = dict(zip(sorted(self.needed), [*index, *uncertainty], strict=True))
        return Step(self.loss(a, b, link, **inputs), observe_views(a, b, link, anchors=64))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        nodes, columns = self.graph.features.shape
        whole = (torch.ones(1, size, dtype=torch.bool) for size in (self.graph.edges.shape[1], columns))
        features = model(*whole)[0]
        train, splits = draw_splits(nodes)
        predictions = probe_predictions(features, self.graph.labels, train, epochs=self.settings.probe_epochs)
        found = {name: f1_scores(predictions, self.graph.labels, split) for name, split in splits.items()}
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
    so it has no gradient, but it takes its share of the softmax from all other candidates.
    """
    losses = nt_xent(view_a, view_b, link=link, reduction="none")
    a, b = normalize(view_a.double(), dim=-1), normalize(view_b.double(), dim=-1)
    gap, rise = (a - b).square().sum(-1) / 2, (a + b).square().sum(-1) / 2
    positive = link.logit((rise - gap) / 2, gap, rise)
    zero, one = torch.zeros_like(gap), torch.ones_like(gap)
    own = link.logit(one, zero, 2 * one)
    return torch.logaddexp(losses, (own - positive).repeat(2).to(losses.dtype)).mean()
