"""The graphs of items, against slow code that follows the definitions."""

import itertools
import math

import pytest
import torch
from torch_geometric import EdgeIndex

from taufree.experiments.recommendation.interactions import Histories
from taufree.experiments.recommendation.item_graphs import (
    ItemGraph,
    adjacency,
    neighbours,
    similarity,
    spread,
)

ITEMS = 7  # item 6 is in no history
HISTORIES = [[0, 1, 2, 1], [1, 0], [3, 3, 4], [5], [2, 1, 0, 4, 5]]


def rows():
    longest = max(map(len, HISTORIES))
    items = torch.full((len(HISTORIES), longest + 1), ITEMS)
    for row, history in enumerate(HISTORIES):
        items[row, : len(history)] = torch.tensor(history)
        items[row, len(history)] = 6  # a target, which no graph may know of
    return Histories(items, torch.tensor([len(history) for history in HISTORIES]))


def dense(graph):
    table = torch.zeros(ITEMS, ITEMS, dtype=graph.weights.dtype)
    table[graph.edges[1], graph.edges[0]] = graph.weights
    return table


def test_adjacency_counts_neighbours_and_is_normalised():
    graph, made = adjacency(rows(), ITEMS)
    counts = torch.zeros(ITEMS, ITEMS)
    for history in HISTORIES:
        for a, b in itertools.pairwise(history):
            counts[a, b] += 2
            counts[b, a] += 2
    counts.fill_diagonal_(1)
    scale = counts.sum(1).rsqrt()
    assert torch.allclose(dense(graph), scale[:, None] * counts * scale)
    for history, edges in zip(HISTORIES, made, strict=True):
        pairs = {(a, b) for a, b in itertools.pairwise(history) if a != b}
        expected = pairs | {(b, a) for a, b in pairs}
        real = edges[edges < graph.edges.shape[1]]
        assert {tuple(pair) for pair in graph.edges[:, real].T.tolist()} == expected


@pytest.mark.parametrize("chunk", [2, 100])
def test_similarity_takes_the_nearest_of_each_item_whatever_the_chunk(chunk):
    vectors = torch.zeros(ITEMS, len(HISTORIES))
    for user, history in enumerate(HISTORIES):
        for item in history:
            vectors[item, user] += 1
    table = dense(similarity(rows(), ITEMS, nearest=2, chunk=chunk))
    assert torch.allclose(table.sum(1), torch.ones(ITEMS))
    assert table[6].tolist() == [0, 0, 0, 0, 0, 0, 1]
    for item in range(6):
        cosines = torch.nan_to_num(
            torch.nn.functional.cosine_similarity(vectors[item : item + 1], vectors)
        ).tolist()
        others = sorted((value for i, value in enumerate(cosines) if i != item and value > 0), reverse=True)[
            :2
        ]
        expected = [1.0, *others]
        found = (table[item] / table[item, item]).tolist()
        assert math.isclose(table[item, item], 1 / sum(expected), rel_tol=1e-5)
        assert sorted((value for value in found if value), reverse=True) == pytest.approx(expected, rel=1e-5)
        assert all(not value or value == pytest.approx(cosines[i], rel=1e-5) for i, value in enumerate(found))


@pytest.mark.parametrize("kind", ["adjacent", "similar"])
def test_spread_is_the_product_with_the_graph_whatever_the_weights(kind):
    graph = getattr(neighbours(rows(), ITEMS), kind)
    weights = torch.rand(len(graph.weights), generator=torch.Generator().manual_seed(0)).double()
    table = dense(ItemGraph(graph.edges, weights))
    x = torch.randn(ITEMS, 3, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    found, expected = spread(x, graph.edges, weights), table @ x
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_graphs_side_by_side_are_walked_at_once():
    adjacent, similar, _, walks, readouts = neighbours(rows(), ITEMS)
    x = torch.randn(3 * ITEMS, 2, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    for edges, graphs in ((walks, (adjacent, similar, adjacent)), (readouts, (adjacent, adjacent))):
        weights = [graph.weights * (k + 1) for k, graph in enumerate(graphs)]
        some = x[: len(graphs) * ITEMS]
        found = spread(some, edges, torch.cat(weights))
        parts = zip(some.split(ITEMS), graphs, weights, strict=True)
        expected = torch.cat([spread(part, graph.edges, weight) for part, graph, weight in parts])
        torch.testing.assert_close(found, expected)
        slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*slopes)


def test_a_moved_graph_takes_its_orders_along():
    """Else they would be sorted again in every step, or in the middle of a recording."""
    edges = neighbours(rows(), ITEMS).similar.edges.to("meta")
    assert isinstance(edges, EdgeIndex)
    orders = (edges._indptr, edges._T_perm, edges._T_indptr, *edges._T_index)
    assert [order.device.type for order in orders] == ["meta"] * 5
