"""Graphs: views, the network against PyG's own convolution and by hand, and files that are not as needed."""

import math
import pickle
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import GCNConv

from taufree.experiments.graphs.grace import FILES, PLACE, Grace, Graph, draw_views, load_citeseer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_graph(nodes=30, columns=12, edges=80):
    draw = generator(3)
    features = (torch.rand(nodes, columns, generator=draw) < 0.3).float() * torch.rand(
        nodes, columns, generator=draw
    )
    pairs = torch.randperm(nodes * nodes, generator=draw)[:edges]
    pairs = torch.stack([pairs // nodes, pairs % nodes])
    return Graph(features, pairs[:, pairs[0] != pairs[1]], torch.zeros(nodes, dtype=torch.long))


def test_a_view_drops_edges_and_columns_at_their_rates():
    graph = Graph(torch.zeros(1, 20_000), torch.zeros(2, 40_000, dtype=torch.long), torch.zeros(1))
    edges, columns = draw_views(graph, edges=0.3, columns=0.1, generator=generator())
    assert (edges.shape, columns.shape) == ((2, 40_000), (2, 20_000))
    # Five standard deviations of a binomial share.
    assert (~edges).double().mean(1).tolist() == pytest.approx([0.3, 0.3], abs=5 * math.sqrt(0.21 / 40_000))
    assert (~columns).double().mean(1).tolist() == pytest.approx([0.1, 0.1], abs=5 * math.sqrt(0.09 / 20_000))
    # The two views are drawn apart: both drop an edge with probability 0.3 squared.
    assert (~edges).all(0).double().mean().item() == pytest.approx(0.09, abs=5 * math.sqrt(0.082 / 40_000))


def test_views_depend_on_the_generator_alone():
    graph = random_graph()
    torch.manual_seed(1)
    one = draw_views(graph, edges=0.3, columns=0.3, generator=generator())
    torch.manual_seed(2)
    two = draw_views(graph, edges=0.3, columns=0.3, generator=generator())
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
    kept = draw_views(graph, edges=0.0, columns=1.0, generator=generator())
    assert kept[0].all()
    assert not kept[1].any()


def test_two_nodes_by_hand():
    """Node 0 cites node 1; weights are 1, so layers only average: with loops, the degrees are 1 and 2."""
    graph = Graph(torch.tensor([[3.0, 1.0], [2.0, 0.0]]), torch.tensor([[0], [1]]), torch.zeros(2))
    model = Grace(graph, width=1)
    for weight in (model.first.lin.weight, model.second.lin.weight):
        torch.nn.init.ones_(weight)
    edges = torch.tensor([[True], [False], [True]])
    columns = torch.tensor([[True, True], [True, True], [True, False]])
    features = model(edges, columns)[0].view(3, 2)
    root = math.sqrt(0.5)

    def twice(first, second):
        """Two layers over the edge: node 1 gets half of itself and 1/sqrt(2) of node 0."""
        second = second / 2 + root * first
        return [first, second / 2 + root * first]

    assert features[0].tolist() == pytest.approx(twice(4.0, 2.0))
    assert features[1].tolist() == pytest.approx([4.0, 2.0])  # without its edge, each node is alone
    assert features[2].tolist() == pytest.approx(twice(3.0, 2.0))  # without the second column


def test_zero_weights_are_removed_edges_and_zero_columns():
    """The same features and gradients as PyG's GCNConv on a graph that really lacks them."""
    graph = random_graph()
    torch.manual_seed(0)
    model = Grace(graph, width=5)
    kept_edges, kept_columns = draw_views(graph, edges=0.3, columns=0.3, generator=generator())
    features = model(kept_edges, kept_columns)[0].view(2, 30, 5)
    first, second = GCNConv(12, 5), GCNConv(5, 5)
    first.load_state_dict(model.first.state_dict())
    second.load_state_dict(model.second.state_dict())
    expected = []
    for edges, columns in zip(kept_edges, kept_columns, strict=True):
        removed = graph.edges[:, edges]
        assert removed.shape[1] < graph.edges.shape[1]
        hidden = first(graph.features * columns, removed).relu()
        expected.append(second(hidden, removed).relu())
    assert torch.allclose(features, torch.stack(expected), atol=1e-6)
    for value in (features, torch.stack(expected)):
        value.square().sum().backward()
    for mine, theirs in ((model.first, first), (model.second, second)):
        assert torch.allclose(mine.lin.weight.grad, theirs.lin.weight.grad, atol=1e-5)
        assert torch.allclose(mine.bias.grad, theirs.bias.grad, atol=1e-5)


def test_the_graph_is_not_saved_with_the_weights():
    assert set(Grace(random_graph()).state_dict()) == {
        *(f"{layer}.{part}" for layer in ("first", "second") for part in ("lin.weight", "bias")),
        *(f"projector.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")),
    }


def test_missing_files_are_named(tmp_path):
    files = r"ind\.citeseer\.x, .*ind\.citeseer\.test\.index"
    with pytest.raises(
        ValueError,
        match=rf"^No such folder: .*, which must hold the Planetoid files {files}; without --data ",
    ):
        load_citeseer(tmp_path)
    raw = tmp_path / PLACE
    raw.mkdir(parents=True)
    for name in FILES[1:]:
        (raw / name).touch()
    with pytest.raises(ValueError, match=r"; missing: ind\.citeseer\.x\.$"):
        load_citeseer(tmp_path)
    (raw / FILES[0]).touch()
    with pytest.raises(ValueError, match=r"a file in .* is damaged \(EOFError\); get ind\.citeseer\.x, "):
        load_citeseer(tmp_path)


class Harmful:
    """A pickle of it creates the file ``made`` when it is read."""

    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return (Path.touch, (self.made,))


def test_a_pickle_that_calls_functions_is_refused_before_it_can(tmp_path):
    raw, made = tmp_path / PLACE, tmp_path / "made"
    raw.mkdir(parents=True)
    for name in FILES:
        (raw / name).write_bytes(pickle.dumps(Harmful(made)))
    with pytest.raises(ValueError, match=r"x must hold arrays alone, got a pickle that calls "):
        load_citeseer(tmp_path)
    assert not made.exists()
    pickle.loads((raw / FILES[0]).read_bytes())  # which would have
    assert made.exists()
