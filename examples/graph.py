"""GRACE without a temperature: train on a graph without labels, then ask a linear probe.

    python examples/graph.py                              # a made-up graph, some seconds on a CPU
    python examples/graph.py --data FOLDER --name Cora    # Planetoid's, read from FOLDER or downloaded to it
    python examples/graph.py --tau 0.5                    # the loss it replaces, for comparison

Needs taufree, torch-geometric and scikit-learn: pip install ".[cli,graph]" has them.
"""

import argparse
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import dropout_edge, mask_feature, stochastic_blockmodel_graph

import taufree


def load(folder: Path | None, name: str) -> Data:
    """A graph with features x [N, F], edges edge_index [2, E] and labels y [N]."""
    if folder is not None:
        return Planetoid(str(folder), name, transform=NormalizeFeatures())[0]
    labels = torch.arange(3).repeat_interleave(100)
    odds = torch.full((3, 3), 0.01).fill_diagonal_(0.05)
    edges = stochastic_blockmodel_graph([100, 100, 100], odds)
    words = torch.rand(300, 90) < torch.where(torch.arange(90) % 3 == labels[:, None], 0.1, 0.05)
    return Data(x=words.float(), edge_index=edges, y=labels)


class Grace(nn.Module):
    """Two graph convolutions, whose output is kept, and a projector, which only the loss sees."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(columns, width), GCNConv(width, width)
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges).relu()

    def view(self, x: Tensor, edges: Tensor, drop: float) -> Tensor:
        """The projections of a view of the graph that lacks some edges and some columns of the features."""
        x, _ = mask_feature(x, drop, mode="col")
        edges, _ = dropout_edge(edges, drop)
        return self.projector(self(x, edges))


@torch.no_grad()
def accuracy(model: Grace, graph: Data) -> float:
    """% of nine tenths of the nodes that a linear probe, trained on the other tenth, gets right."""
    features, labels = model(graph.x, graph.edge_index).cpu(), graph.y.cpu()
    features = nn.functional.normalize(features)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    known, asked = order[: len(order) // 10], order[len(order) // 10 :]
    probe = LogisticRegression(C=10, max_iter=1000).fit(features[known], labels[known])
    return 100 * probe.score(features[asked], labels[asked])


def main() -> None:
    parser = argparse.ArgumentParser(description="GRACE without a temperature")
    parser.add_argument("--data", type=Path, help="where Planetoid's files are or go; made up if left out")
    parser.add_argument("--name", default="CiteSeer", choices=["Cora", "CiteSeer", "PubMed"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--drop", type=float, default=0.3, help="the share of edges and columns a view lacks")
    parser.add_argument("--tau", type=float, help="a temperature; none if it is left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    graph = load(args.data, args.name).to(device)
    model = Grace(graph.num_features, args.width).to(device)
    loss_of = taufree.NTXent(link=None if args.tau is None else taufree.Temperature(args.tau))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    print(f"before: {accuracy(model, graph):.1f} % by a linear probe")
    for epoch in range(1, args.epochs + 1):
        loss = loss_of(*(model.view(graph.x, graph.edge_index, args.drop) for _ in range(2)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0 or epoch == args.epochs:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    print(f"after: {accuracy(model, graph):.1f} % by a linear probe")


if __name__ == "__main__":
    main()
