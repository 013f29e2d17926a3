"""DCRec's two graphs of items: which follow each other, and which have the same users."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from taufree.experiments.recommendation.interactions import Histories
from taufree.util.optional import needs

# Newer versions of torch announce the end of torch.jit at this import.
with needs("taufree[graph]"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric import EdgeIndex
    from torch_geometric.nn.conv.gcn_conv import gcn_norm


@dataclass(frozen=True)
class ItemGraph:
    """Edges [2, E] from the first row's item to the second's, sorted by the second; their weights [E]."""

    edges: EdgeIndex
    weights: Tensor


class Neighbours(NamedTuple):
    """Both graphs, and which rows made the edges of the first, see :func:`adjacency`.

    ``walks`` are the edges of adjacent, similar and adjacent side by side, ``readouts`` those of adjacent
    twice: one product of a sparse matrix does the work of several.
    """

    adjacent: ItemGraph
    similar: ItemGraph
    made: Tensor
    walks: EdgeIndex
    readouts: EdgeIndex


def neighbours(rows: Histories, items: int, nearest: int = 4) -> Neighbours:
    """The graphs of some histories, see :func:`adjacency` and :func:`similarity`."""
    adjacent, made = adjacency(rows, items)
    similar = similarity(rows, items, nearest)
    walks = side_by_side([adjacent.edges, similar.edges, adjacent.edges], items)
    return Neighbours(adjacent, similar, made, walks, side_by_side([adjacent.edges] * 2, items))


def side_by_side(graphs: Sequence[EdgeIndex], items: int) -> EdgeIndex:
    """The edges of several graphs as one: the items of graph k have the numbers k items, k items + 1, ..."""
    moved = [edges.as_tensor() + k * items for k, edges in enumerate(graphs)]
    return _sorted(torch.cat(moved, dim=1), len(graphs) * items)


def spread(x: Tensor, edges: EdgeIndex, weights: Tensor) -> Tensor:
    """A x: each item's sum of w x over the edges that end at it; [items, width], as ``x`` is.

    One product of a sparse matrix, whose gradient is one more with its transpose: ``edges`` hold the order of
    both. The weights [E] have no gradient.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)  # there are no sparse products of halves on a CPU
    with warnings.catch_warnings():  # PyTorch warns once of every sparse matrix
        warnings.filterwarnings("ignore", "Sparse (CSR|CSC) tensor support is in beta state")
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
        found: Tensor = edges.matmul(x.to(dtype), input_value=weights.to(dtype), transpose=True)
    return found.to(x.dtype)


def _sorted(edges: Tensor, items: int) -> EdgeIndex:
    """Edges that are sorted by where they end, with their order by where they begin."""
    return EdgeIndex(edges, sparse_size=(items, items), sort_order="col").fill_cache_()


def adjacency(rows: Histories, items: int) -> tuple[ItemGraph, Tensor]:
    """Items that follow each other in a history, and which edges each row has made.

    An edge's weight is twice the number of times that its items stand side by side, an item's loop weighs 1
    (as in the public code), and the matrix A is normalised to D^-1/2 A D^-1/2.

    Shape:
        the second result: [N, 2 L], numbers of edges; that of no edge is the number of edges.
    """
    first, second = rows.items[:, :-1], rows.items[:, 1:]
    real = rows.known[:, 1:] & (first != second)
    pairs = torch.cat([first * items + second, second * items + first], dim=1)
    real = torch.cat([real, real], dim=1)
    loops = torch.arange(items) * (items + 1)
    known = torch.cat([pairs[real], loops])
    found, place, count = torch.unique(known, return_inverse=True, return_counts=True)
    edges = torch.stack([found % items, found // items])
    weights = torch.where(edges[0] == edges[1], 1.0, 2.0 * count)
    edges, weights = gcn_norm(edges, weights, items, add_self_loops=False)
    made = torch.full(pairs.shape, edges.shape[1])
    made[real] = place[: -len(loops)]
    return ItemGraph(_sorted(edges, items), weights), made


def similarity(rows: Histories, items: int, nearest: int, chunk: int = 4096) -> ItemGraph:
    """Edges to each item from itself and from the items whose users are most like its own.

    With x the users' counts of an item, cos(x, y) is 1 for the item itself; its ``nearest`` others with a
    cosine above 0 follow, and the weights of an item are divided by their sum.
    """
    known = rows.known
    user, item = (part.numpy() for part in (known.nonzero()[:, 0], rows.items[known]))
    table = sparse.coo_array((np.ones(len(user)), (item, user)), shape=(items, len(rows.lengths))).tocsr()
    length = np.sqrt(table.multiply(table).sum(axis=1))
    unit = sparse.dia_array((1 / np.maximum(length, 1)[None], [0]), shape=(items, items)) @ table
    other = unit.T.tocsr()
    to, by, weight = [np.arange(items)], [np.arange(items)], [np.ones(items)]
    for start in range(0, items, chunk):  # all cosines at once can be too many for the memory
        found = (unit[start : start + chunk] @ other).tocoo()
        row, column = found.coords
        apart = row + start != column
        row, column, cosine = row[apart], column[apart], found.data[apart]
        order = np.lexsort((column, -cosine, row))
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order])
        best = order[rank < nearest]
        to.append(row[best] + start)
        by.append(column[best])
        weight.append(cosine[best])
    target, values = np.concatenate(to), np.concatenate(weight)
    values = values / np.bincount(target, values, minlength=items)[target]
    order = np.argsort(target, kind="stable")
    edges = np.stack([np.concatenate(by)[order], target[order]]).astype(np.int64)
    return ItemGraph(_sorted(torch.from_numpy(edges), items), torch.from_numpy(values[order]).float())
