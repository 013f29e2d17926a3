"""Graphs for the recipes: CiteSeer as PyTorch Geometric reads it, views of a graph, and GRACE's network.

A view drops edges and zeroes columns of the features. Both are done by zeros on fixed shapes: an edge of
weight 0 adds nothing to its node and nothing to its node's degree, so it is as good as removed, and a column
of zeros is the same as a row of zeros in the first layer's weight. So every step has the same shapes, and a
GPU can replay one recorded step.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from taufree.util.cache import cache_folder, download
from taufree.util.files import refuse_file
from taufree.util.optional import needs

# Newer versions of torch announce the end of torch.jit at this import.
with needs("taufree[graph]"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.datasets import Planetoid
    from torch_geometric.io import read_planetoid_data
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.transforms import NormalizeFeatures

FILES = tuple(
    f"ind.citeseer.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
)
PLACE = Path("planetoid") / "CiteSeer" / "raw"
# All that Planetoid's pickles name, and the same in pickles of newer versions: arrays, sparse matrices and a
# dictionary of lists.
PICKLED_NAMES = {
    ("__builtin__", "list"),
    ("builtins", "list"),
    ("collections", "defaultdict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("scipy.sparse.csr", "csr_matrix"),
    ("scipy.sparse._csr", "csr_matrix"),
}


@dataclass(frozen=True)
class Graph:
    """A graph with a label for each node.

    Shape:
        features: [N, F]; edges: [2, E] integers, from the first row's node to the second's; labels: [N].
    """

    features: Tensor
    edges: Tensor
    labels: Tensor


def load_citeseer(data: Path | None) -> Graph:
    """CiteSeer with features divided by their row's sum, from ``data`` or, for None, downloaded once.

    Raises ValueError with one sentence where a file is missing or damaged.
    """
    if data is not None:
        check_citeseer(data)
        return _read(data / PLACE)
    return download(
        cache_folder() / PLACE.parts[0],
        lambda draft: Planetoid(str(draft), "CiteSeer"),
        lambda folder: _read(folder.parent / PLACE),
        title="CiteSeer",
        advice=f"put {', '.join(FILES)} into FOLDER/{PLACE} and pass --data FOLDER",
    )


def check_citeseer(data: Path | None) -> None:
    """Raise a ValueError with one sentence if ``data`` is without a file; None needs none."""
    if data is not None:
        refuse_file(data, f"the Planetoid files in {PLACE}")
        _check_files(data / PLACE)


def _check_files(raw: Path) -> None:
    names = ", ".join(FILES)
    if not raw.is_dir():
        raise ValueError(
            f"No such folder: {raw}, which must hold the Planetoid files {names}; "
            "without --data they are downloaded."
        )
    if missing := [name for name in FILES if not (raw / name).is_file()]:
        raise ValueError(f"{raw} must hold the Planetoid files {names}; missing: {', '.join(missing)}.")


def _read(raw: Path) -> Graph:
    _check_files(raw)
    try:
        for name in FILES[:-1]:  # the last one is text
            with (raw / name).open("rb") as file:
                _DataUnpickler(file, encoding="latin1").load()
        found: Data = NormalizeFeatures()(read_planetoid_data(str(raw), "citeseer"))
    except _ForeignPickleError as error:
        raise ValueError(
            f"{raw / name} must hold arrays alone, got a pickle that calls {error}; get it from Planetoid."
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(
            f"a file in {raw} is damaged ({type(error).__name__}); "
            f"get {', '.join(FILES)} again from Planetoid."
        ) from error
    return Graph(found.x, found.edge_index, found.y)


class _ForeignPickleError(Exception):
    """A pickle names something that no file of Planetoid does."""


class _DataUnpickler(pickle.Unpickler):
    """Reads what Planetoid's files hold and nothing else: a pickle may call any function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLED_NAMES:
            raise _ForeignPickleError(f"{module}.{name}")
        return super().find_class(module, name)


def draw_views(
    graph: Graph, *, edges: float, columns: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What two views keep: booleans [2, E] and [2, F], False with probability ``edges`` and ``columns``."""
    kept_edges = torch.rand(2, graph.edges.shape[1], generator=generator) >= edges
    kept_columns = torch.rand(2, graph.features.shape[1], generator=generator) >= columns
    return kept_edges, kept_columns


class Grace(nn.Module):
    """Two graph convolutions with ReLU, and a projector that the loss looks at.

    The graph belongs to the network, as a full-batch network sees no other; it is not saved with the weights.
    With ``uncertainty`` the projector has one more output, for the scheme TaU.
    """

    features: Tensor
    edges: Tensor
    words: Tensor
    starts: Tensor
    counts: Tensor

    def __init__(self, graph: Graph, width: int = 32, *, uncertainty: bool = False) -> None:
        super().__init__()
        nodes, columns = graph.features.shape
        self.first = GCNConv(columns, width, normalize=False)
        self.second = GCNConv(width, width, normalize=False)
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))
        # Last, so that all other weights of a seed are the same with and without it.
        self.uncertainty = nn.Linear(width, 1) if uncertainty else None
        # GCN's loop at each node comes last and is never dropped, so that no degree is 0.
        loops = torch.arange(nodes).expand(2, -1)
        row, word = graph.features.nonzero(as_tuple=True)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), row.bincount(minlength=nodes).cumsum(0)])
        buffers = {
            "features": graph.features,
            "edges": torch.cat([graph.edges, loops], dim=1),
            "words": word,
            "starts": starts,
            "counts": graph.features[row, word],
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, kept_edges: Tensor, kept_columns: Tensor) -> tuple[Tensor, ...]:
        """Features and projections of V views at once, both [V * N, width], one view after the other, and
        their uncertainties [V * N].

        The views are one graph of V parts that no edge connects.

        Shape:
            kept_edges: [V, E] booleans; kept_columns: [V, F] booleans.
        """
        views, nodes, dtype = len(kept_edges), len(self.features), self.features.dtype
        loops = kept_edges.new_ones(views, nodes)
        weight = torch.cat([kept_edges, loops], dim=1).to(dtype).flatten()
        offset = nodes * torch.arange(views, device=self.edges.device)
        edges = (self.edges[:, None] + offset[:, None]).flatten(1)
        edges, weight = gcn_norm(edges, weight, views * nodes, add_self_loops=False)
        inputs = self._first_product(kept_columns.to(dtype))
        hidden = self.first.propagate(edges, x=inputs, edge_weight=weight) + self.first.bias
        features = self.second(hidden.relu(), edges, weight).relu()
        inner = self.projector[:-1](features)
        found = features, self.projector[-1](inner)
        return found if self.uncertainty is None else (*found, self.uncertainty(inner).squeeze(1))

    def _first_product(self, kept: Tensor) -> Tensor:
        """The masked features times the first layer's weight, [V * N, width]."""
        views, width = len(kept), self.first.out_channels
        weight = (kept.T[:, :, None] * self.first.lin.weight.T[:, None]).flatten(1)
        if weight.device.type == "cpu":  # one number in a hundred is not 0: six times as fast
            product = embedding_bag(
                self.words, weight, self.starts, mode="sum", per_sample_weights=self.counts,
                include_last_offset=True,
            )  # fmt: skip
        else:
            product = self.features @ weight
        return product.view(-1, views, width).transpose(0, 1).reshape(-1, width)
