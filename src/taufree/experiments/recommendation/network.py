"""DCRec's network (Yang et al., WWW 2023): the next item from a sequence and two graphs of items.

A Transformer reads the history; two graph convolutions without weights say what the last item's neighbours
are, in the graph of items that follow each other and in that of items with the same users. Attention fuses
the three vectors of the last item. How much a user follows the crowd (conformity) is measured on the graph
without the edges of the batch's own histories, and weighs the contrastive terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cosine_similarity, dropout, kl_div

from taufree import Link, info_nce
from taufree.experiments.recommendation.interactions import Interactions
from taufree.experiments.recommendation.item_graphs import ItemGraph, Neighbours, spread
from taufree.experiments.recommendation.lean_transformer import encode, normed
from taufree.experiments.recommendation.packing import one_a_row

WIDTH, LAYERS, HEADS, INNER_WIDTH = 64, 2, 2, 256
"""Of the Transformer; items and the graphs' walks have its width."""


class Output(NamedTuple):
    """The network's output for B histories.

    Shape:
        wanted: [B, width]; its product with an item's vector is the item's score.
        targets: [B]; last: [B], each history's last item. sequence, adjacent, similar:
        [B, width], the last item by the Transformer (with other dropout than for the scores, if training)
        and by each graph.
        conformity: [B] if training, else [0].
    """

    wanted: Tensor
    targets: Tensor
    last: Tensor
    sequence: Tensor
    adjacent: Tensor
    similar: Tensor
    conformity: Tensor


class DCRecNetwork(nn.Module):
    """The data are buffers, so that they are where the network is; they are not saved with the weights.

    Args:
        data: what is trained and tested on.
        neighbours: the graphs of both parts of the data.
        dropout: of the Transformer, of its attention and of the graphs' edges.
        mean: the mean of the conformity weights.
        samples: the rows and lengths of the histories to train on, [2, samples]; the target follows.
    """

    def __init__(
        self,
        data: Interactions,
        neighbours: Mapping[str, Neighbours],
        *,
        dropout: float,
        mean: float,
        samples: Tensor,
    ) -> None:
        super().__init__()
        self.mean = mean
        longest = max(data.train.items.shape[1], data.test.items.shape[1]) - 1
        self.items = nn.Embedding(data.item_count, WIDTH)
        self.places = nn.Embedding(longest, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER_WIDTH, dropout, "gelu", batch_first=True)
        layer.dropout = nn.Dropout(0.0)  # the public code has none inside the feed-forward part
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.entry_norm, self.graph_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self._read_to_train: Callable[..., Tensor] = self._read
        self.fusion = nn.Linear(WIDTH, WIDTH, bias=False)
        self.attention = nn.Linear(WIDTH, 1, bias=False)
        for name, weight in self.named_parameters():
            if "norm" not in name:
                nn.init.zeros_(weight) if name.endswith("bias") else nn.init.normal_(weight, std=0.02)
        for part, rows in (("train", data.train), ("test", data.test)):
            adjacent, similar, made, walks, readouts = neighbours[part]
            self._keep(part, items=rows.items, lengths=rows.lengths)
            self._keep(part, edges=adjacent.edges, weights=adjacent.weights)
            self._keep(part, similar_edges=similar.edges, similar_weights=similar.weights)
            if part == "train":
                self._keep(part, made=made, samples=samples, walks=walks, readouts=readouts)

    def compile_reading(self, **options: Any) -> None:
        """Compile what the Transformer does in training, most of a step's many small kernels.

        Args:
            options: of ``torch.compile``.
        """
        read: Callable[..., Tensor] = self._read

        def plainly(*inputs: Tensor, times: int) -> Tensor:
            # Rows are so short that a fused kernel for attention has little to save: a compiler that sees
            # what it is made of needs less time.
            with sdpa_kernel(SDPBackend.MATH):
                return read(*inputs, times=times)

        self._read_to_train = torch.compile(plainly, dynamic=False, **options)

    def _keep(self, part: str, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            self.register_buffer(f"{part}_{name}", tensor, persistent=False)

    def _graph(self, part: str, kind: str = "") -> ItemGraph:
        return ItemGraph(self.get_buffer(f"{part}_{kind}edges"), self.get_buffer(f"{part}_{kind}weights"))

    @property
    def vectors(self) -> Tensor:
        """[items, width]."""
        return self.items.weight

    def walks(self, part: str) -> tuple[Tensor, Tensor]:
        """[items, width] each: all items in the graphs of a part, for all histories if without dropout."""
        graphs = self._graph(part), self._graph(part, "similar_")
        adjacent, similar = (normed(self.graph_norm, self._walk(graph, self.vectors)) for graph in graphs)
        return adjacent, similar

    def forward(
        self,
        index: Tensor,
        part: str = "sample",
        slots: Tensor | None = None,
        walks: tuple[Tensor, Tensor] | None = None,
    ) -> Output:
        """The output of training samples by their numbers, or of ``train`` or ``test`` rows by theirs.

        With ``slots`` the Transformer reads several histories in a row: see :func:`~.packing.packed`. With
        :meth:`walks` of the part, which hold as long as the weights do, the graphs need not be walked again.
        """
        table = "test" if part == "test" else "train"
        items, lengths = self.get_buffer(f"{table}_items"), self.get_buffer(f"{table}_lengths")
        row, end = (index, lengths[index]) if part != "sample" else self.get_buffer("train_samples")[:, index]
        ahead = items[row]
        last, target = (ahead.gather(1, place[:, None]).squeeze(1) for place in (end - 1, end))
        history = ahead[:, :-1]
        slots = one_a_row(end, history.shape[1]) if slots is None else slots
        vectors = self.vectors
        # Training compares the sequence of the score with one that has other dropout.
        if self.training:
            reads = self._read_to_train(history, end, slots, vectors, times=2)
        else:
            reads = self._read(history, end, slots, vectors, times=1)
        read, sequence = reads[0], reads[-1]
        conformity = read.new_empty(0)
        if self.training:
            own = self._own(row)
            adjacent, *others = self._train_walks(vectors, own)
            adjacent = normed(self.graph_norm, adjacent)
            chosen = torch.stack([walk.index_select(0, last) for walk in others])
            alike, without = normed(self.graph_norm, chosen)
            here = adjacent.index_select(0, last)
            conformity = self._conformity(end, last, own, adjacent, here, without)
        else:
            here, alike = (x.index_select(0, last) for x in (self.walks(table) if walks is None else walks))
        views = torch.stack([read, here, alike])
        share = self.attention(self.fusion(views)).softmax(0)
        wanted = (share * views).sum(0)
        return Output(wanted, target, last, sequence, here, alike, conformity)

    def _read(self, history: Tensor, end: Tensor, slots: Tensor, vectors: Tensor, times: int) -> Tensor:
        """[times, B, width]: the Transformer's output at the last of the first ``end`` items of [B, L] items.

        Each time has its own dropout.
        """
        count, longest = history.shape
        item = slots.long().clamp(min=0)
        own = torch.where(slots < 0, count, item // longest)  # empty slots see each other, which nobody reads
        place = item % longest
        chosen = history.flatten()[item].flatten()
        inputs = vectors.index_select(0, chosen) + self.places.weight.index_select(0, place.flatten())
        inputs = normed(self.entry_norm, inputs).view(*slots.shape, -1)
        ends = torch.where(place + 1 == torch.cat([end, end[:1]])[own], own, count).flatten()
        slot = torch.arange(slots.numel(), device=slots.device)
        slot_of = slot.new_zeros(count + 1).scatter(0, ends, slot)
        # Each time has groups of its own: the histories, and the empty slots.
        time = torch.arange(times, device=slots.device)[:, None]
        groups = own + (count + 1) * time[..., None]
        wanted = slot_of + slots.numel() * time
        repeated = self.dropout(inputs.repeat(times, 1, 1))
        found = encode(self.encoder, repeated, groups.flatten(0, 1), wanted.flatten())
        return found.view(times, count + 1, -1)[:, :-1]

    def _walk(self, graph: ItemGraph, vectors: Tensor) -> Tensor:
        """e + mean(e, Ae, AAe) of the items' vectors e, for the graph A."""
        start = self.dropout(vectors)
        weights = dropout(graph.weights, self.dropout.p, self.training)
        # Ae + AAe = A(e + Ae)
        found = spread(start + spread(start, graph.edges, weights), graph.edges, weights)
        return torch.add(found, start, alpha=4) / 3

    def _train_walks(self, vectors: Tensor, own: Tensor) -> tuple[Tensor, ...]:
        """[items, width] each: adjacent, similar, adjacent without own edges; each with its own dropout."""
        weights, similar = self.get_buffer("train_weights"), self.get_buffer("train_similar_weights")
        three = torch.cat([weights, similar, weights * (1 - own)])
        walked = self._walk(ItemGraph(self.get_buffer("train_walks"), three), vectors.repeat(3, 1))
        return walked.view(3, *vectors.shape).unbind()

    def _own(self, row: Tensor) -> Tensor:
        """[edges]: 1 for the edges that the histories of some rows have made, 0 for others."""
        weights = self.get_buffer("train_weights")
        own = weights.new_zeros(len(weights) + 1)
        return own.index_fill_(0, self.get_buffer("train_made")[row].flatten(), 1.0)[:-1]

    def _conformity(
        self, end: Tensor, last: Tensor, own: Tensor, adjacent: Tensor, here: Tensor, without: Tensor
    ) -> Tensor:
        """[B]: how similar the last item's vectors are with and without the edges of the batch's histories.

        The mean of three cosines (the item's vectors in both graphs; its vector and the mean of the
        neighbours that others have made; that and the mean of the neighbours of the batch's making),
        through a sigmoid, stretched to begin at 0 and scaled to the mean; 0.5 for histories of one item,
        which have no conformity to measure.
        """
        # A cosine does not ask for the number of neighbours, so the sum is as good as the mean.
        edges, twice = self.get_buffer("train_readouts"), adjacent.repeat(2, 1)
        sums = spread(twice, edges, torch.cat([1 - own, own]))
        foreign, civil = sums.view(2, *adjacent.shape).index_select(1, last)
        pairs = torch.stack([here, here, civil]), torch.stack([without, foreign, foreign])
        weight = cosine_similarity(*pairs, dim=-1).mean(0).sigmoid()
        weight = weight - weight.min()
        weight = self.mean * weight / weight.mean().clamp(min=1e-12)
        return weight.where(end > 1, 0.5)


def contrastive(seen: Output, ids: Tensor | None, link: Link) -> Tensor:
    """mean of w InfoNCE(sequence, adjacent) + (max w - w) InfoNCE(adjacent, similar), w the conformity.

    A key stands for its history's last item; histories that end with the same item have the same key, which
    is a negative equal to the positive unless ``ids`` exclude it.
    """
    weight = seen.conformity
    options: dict[str, Any] = {"ids": ids, "link": link, "reduction": "none"}
    crowd = info_nce(seen.sequence, seen.adjacent, **options)
    taste = info_nce(seen.adjacent, seen.similar, **options)
    return (weight * crowd + (weight.max() - weight) * taste).mean()


def divergence(conformity: Tensor, expected: Tensor) -> Tensor:
    """How far the weights are from the ones expected: sum of e (log e - log softmax(w)) / B, both sorted.

    The public code's regulariser as it is, though e does not sum to 1; both are [B].
    """
    log_expected = expected.clamp(min=1e-8).log().sort().values
    log_weights = conformity.sort().values.log_softmax(0)
    return kl_div(log_weights, log_expected, reduction="batchmean", log_target=True)
