"""DCRec's network (Yang et al., WWW 2023): the next item from a sequence and two graphs of items.

A Transformer reads the history; two graph convolutions without weights say what the last item's neighbours
are, in the graph of items that follow each other and in that of items with the same users. Attention fuses
the three vectors of the last item. How much a user follows the crowd (conformity) is measured on the graph
without the edges of the batch's own histories, and weighs the contrastive terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, dropout, kl_div

from taufree.experiments.interactions import Interactions
from taufree.experiments.item_graphs import adjacency, similarity  # first: says if PyG is missing
from taufree.experiments.packing import one_a_row

from torch_geometric.nn import LGConv  # isort: skip


@dataclass(frozen=True)
class Shape:
    """The network's sizes; ``dropout`` is of the Transformer, of its attention and of the graphs' edges."""

    width: int = 64
    layers: int = 2
    heads: int = 2
    inner: int = 256
    dropout: float = 0.5
    nearest: int = 4


class Output(NamedTuple):
    """What the network says of B histories.

    Shape:
        scores: [B, items]; targets: [B]; last: [B], each history's last item. sequence, adjacent, similar:
        [B, width], the last item by the Transformer (with other dropout than for the scores, if training)
        and by each graph.
        conformity: [B] if training, else [0].
    """

    scores: Tensor
    targets: Tensor
    last: Tensor
    sequence: Tensor
    adjacent: Tensor
    similar: Tensor
    conformity: Tensor


class DCRec(nn.Module):
    """The data are buffers, so that they are where the network is; they are not saved with the weights.

    Args:
        data: what is trained and tested on.
        shape: the sizes.
        mean: the mean of the conformity weights.
        samples: the rows and lengths of the histories to train on, [2, samples]; the target follows.
    """

    def __init__(self, data: Interactions, shape: Shape, *, mean: float, samples: Tensor) -> None:
        super().__init__()
        self.mean, self.heads = mean, shape.heads
        longest = max(data.train.items.shape[1], data.test.items.shape[1]) - 1
        self.items = nn.Embedding(data.item_count + 1, shape.width, padding_idx=data.item_count)
        self.places = nn.Embedding(longest, shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.inner, shape.dropout, "gelu", batch_first=True
        )
        layer.dropout = nn.Dropout(0.0)  # the public code has none inside the feed-forward part
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.entry_norm, self.graph_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.fusion = nn.Linear(shape.width, shape.width, bias=False)
        self.attention = nn.Linear(shape.width, 1, bias=False)
        self.spread = LGConv(normalize=False)
        for name, weight in self.named_parameters():
            if "norm" not in name:
                nn.init.zeros_(weight) if name.endswith("bias") else nn.init.normal_(weight, std=0.02)
        for part, rows in (("train", data.train), ("test", data.test)):
            graph, made = adjacency(rows, data.item_count)
            alike = similarity(rows, data.item_count, shape.nearest)
            self._keep(part, items=rows.items, lengths=rows.lengths, edges=graph.edges, weights=graph.weights)
            self._keep(part, similar_edges=alike.edges, similar_weights=alike.weights)
            if part == "train":
                self._keep(part, made=made, samples=samples)

    def _keep(self, part: str, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            self.register_buffer(f"{part}_{name}", tensor, persistent=False)

    def forward(self, index: Tensor, part: str = "sample", slots: Tensor | None = None) -> Output:
        """The output of training samples by their numbers, or of ``train`` or ``test`` rows by theirs.

        With ``slots`` the Transformer reads several histories in a row: see :func:`~.packing.packed`.
        """
        table = "test" if part == "test" else "train"
        items, lengths, *graphs = (
            self.get_buffer(f"{table}_{name}")
            for name in ("items", "lengths", "edges", "weights", "similar_edges", "similar_weights")
        )
        row, end = (index, lengths[index]) if part != "sample" else self.get_buffer("train_samples")[:, index]
        ahead = items[row]
        last, target = (ahead.gather(1, place[:, None]).squeeze(1) for place in (end - 1, end))
        history = ahead[:, :-1]
        slots = one_a_row(end, history.shape[1]) if slots is None else slots
        read = self._read(history, end, slots)
        adjacent, similar = self._walk(*graphs[:2]), self._walk(*graphs[2:])
        views = torch.stack([read, adjacent[last], similar[last]])
        share = self.attention(self.fusion(views)).softmax(0)
        scores = (share * views).sum(0) @ self.items.weight[:-1].T
        sequence, conformity = read, read.new_empty(0)
        if self.training:
            sequence = self._read(history, end, slots)
            conformity = self._conformity(row, end, last, adjacent)
        return Output(scores, target, last, sequence, views[1], views[2], conformity)

    def _read(self, history: Tensor, end: Tensor, slots: Tensor) -> Tensor:
        """[B, width]: the Transformer's output at the last of the first ``end`` items of [B, L] items."""
        count, longest = history.shape
        item = slots.clamp(min=0)
        inputs = self.items(history.flatten()[item]) + self.places(item % longest)
        own = torch.where(slots < 0, -1, item // longest)  # empty slots see each other, which nobody reads
        strange = own[:, :, None] != own[:, None, :]
        outputs: Tensor = self.encoder(
            self.dropout(self.entry_norm(inputs)), mask=strange.repeat_interleave(self.heads, 0)
        )
        slot = torch.arange(slots.numel(), device=slots.device)
        nowhere = count * longest
        slot_of = slot.new_zeros(nowhere + 1).scatter(0, slots.where(slots >= 0, nowhere).flatten(), slot)
        last = torch.arange(count, device=end.device) * longest + end - 1
        return outputs.flatten(0, 1)[slot_of[last]]

    def _walk(self, edges: Tensor, weights: Tensor) -> Tensor:
        """[items, width]: norm(e + mean(e, Ae, AAe)) of the items' vectors e, for the graph A."""
        start = self.dropout(self.items.weight[:-1])
        weights = dropout(weights, self.dropout.p, self.training)
        once = self.spread(start, edges, weights)
        twice = self.spread(once, edges, weights)
        found: Tensor = self.graph_norm(start + (start + once + twice) / 3)
        return found

    def _conformity(self, row: Tensor, end: Tensor, last: Tensor, adjacent: Tensor) -> Tensor:
        """[B]: how alike the last item looks with and without the edges that the batch's histories have made.

        The mean of three cosines (the item's vectors in both graphs; its vector and the mean of the
        neighbours that others have made; that and the mean of the neighbours of the batch's making),
        through a sigmoid, stretched to begin at 0 and scaled to the mean; 0.5 for histories of one item,
        which say nothing.
        """
        edges, weights = self.get_buffer("train_edges"), self.get_buffer("train_weights")
        own = weights.new_zeros(len(weights) + 1)
        own = own.index_fill(0, self.get_buffer("train_made")[row].flatten(), 1.0)[:-1]
        without = self._walk(edges, weights * (1 - own))[last]
        # A cosine does not ask for the number of neighbours, so the sum is as good as the mean.
        foreign, civil = (self.spread(adjacent, edges, chosen)[last] for chosen in (1 - own, own))
        here = adjacent[last]
        pairs = ((here, without), (here, foreign), (civil, foreign))
        weight = torch.stack([cosine_similarity(*pair) for pair in pairs]).mean(0).sigmoid()
        weight = weight - weight.min()
        weight = self.mean * weight / weight.mean().clamp(min=1e-12)
        return weight.where(end > 1, 0.5)


def divergence(conformity: Tensor, expected: Tensor) -> Tensor:
    """How far the weights are from the ones expected: sum of e (log e - log softmax(w)) / B, both sorted.

    The public code's regulariser as it is, though e does not sum to 1; both are [B].
    """
    log_expected = expected.clamp(min=1e-8).log().sort().values
    log_weights = conformity.sort().values.log_softmax(0)
    return kl_div(log_weights, log_expected, reduction="batchmean", log_target=True)
