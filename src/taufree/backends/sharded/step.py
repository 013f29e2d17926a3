"""A loss over the batches of all ranks, as one process would compute it on their concatenation.

Each rank compares its own anchors with the candidates of every rank: 1/W of the pairs. No rank holds more of
the matrix than a tile. What is exchanged besides the embeddings is of size [N]:

- pairs: a key that is an anchor too (``symmetric``) has a part of its sum on every rank; the parts are added
  up on its own rank, and its normaliser goes back to all. The gradients of keys and shared negatives are sent
  to the ranks that hold those rows.
- views and labels: an anchor's sum is complete on its own rank. Its normaliser goes to all ranks, where a
  pair's coefficient in both directions is computed, so that no gradient has to travel. The symmetry of the
  matrix is used on a rank's own rows and not across ranks.

In collectives a step, forward and backward, when rows are gathered; N counts all ranks' rows:

=====================================  =========  ==============================================
what                                   when       bytes received by a rank
=====================================  =========  ==============================================
batch sizes, and whether calls agree   always     32 W
ids or labels                          if given   8 N
ids of shared negatives                if given   8 M
weights                                if given   8 N
scales, one for each anchor            if given   8 N, not if one-way
embeddings                             in batch   N D x their item size
shared negatives                       if given   M D x their item size
column sums (all-to-all)               symmetric  8 N (fused, float32 sums: 4 N)
largest column cosines (all-to-all)    symmetric  the same, if statistics are wanted
loss (all-reduce)                      mean, sum  8
measurements (all-reduce)              measured   24
statistics (all-reduce)                if wanted  48
normalisers, backward                  not if     16 N, with labels 32 N (fused: 8 N and 16 N)
                                       one-way
gradients of such scales, backward     symmetric  8 N, by reduce-scatter
gradients of keys, backward            pairs      N D x 4 (8 for float64), by reduce-scatter
gradients of shared negatives          if wanted  M D x 4 (8 for float64), by reduce-scatter
=====================================  =========  ==============================================

By the ring the embeddings come in W - 1 messages instead, once for the forward and once more for the
backward (and once before both for a link that measures), and the gradients in W - 1.

The sigmoid loss has no sums to wait for: what it exchanges, gradients included, it exchanges once, in the
forward, but for "none"; see :mod:`.sigmoid`.

"All ranks" are the W ranks of a process group, the default one or the user's. Gradients are those of the sum
over the ranks of what each of them calls backward on, which DDP over the same group divides by W.
For "mean" and "sum" every rank holds the same loss, so that W times its gradient is divided by W; it must be
multiplied by the same number everywhere, as by a gradient scaler. With "none" a rank holds its own losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from taufree.backends import choose, moments
from taufree.backends.autograd import FirstDerivativeOnly, transforms_named, uncompiled
from taufree.backends.cosines import CosineSums
from taufree.backends.cosines import summary as cosines_of
from taufree.backends.likelihood import AnchorSample
from taufree.backends.likelihood import summary as likelihood_of
from taufree.backends.numerics import full_precision
from taufree.backends.sharded import blockwise, reference
from taufree.contrast import Contrast, Shard, balance, how_many
from taufree.distributed import Gather, GatherLike, Ranks, Ring, exchange
from taufree.dtypes import wide_dtype
from taufree.links import Cosines, Gain, Likelihood, Link
from taufree.reduction import anchor_weights
from taufree.stats import Tally


class ShardEngine(Protocol):
    """One rank's part of a loss. Own pairs and each :class:`Shard` are visited twice: for the sums, then,
    once the normalisers of all ranks are known, for the gradient."""

    empty_sum: float  # the sum over no pair
    sum_dtype: torch.dtype
    dtype: torch.dtype  # of the result, and of gradients sent to the rank of their rows
    of_far_scale: Tensor | None  # [K], the gradient of the last shard's scales, where each anchor has one

    def add_own(self) -> None:
        """The sums of own pairs."""

    def add(self, shard: Shard) -> Tensor | None:
        """The anchors' sums over a shard; if its rows are anchors too, their sums [K] over the anchors."""

    def merge(self, parts: Tensor) -> None:
        """Own keys' sums over all ranks' anchors, [W, n]."""

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """Of the statistics of own anchors, then of own keys if they are anchors too."""

    def tracked(self) -> Tensor:
        """What :class:`taufree.stats.Tracker` holds, of own anchors."""

    def losses(self) -> Tensor:
        """Own losses [n], once sums are complete."""

    def begin_gradient(self, each: Tensor) -> Tensor | None:
        """Begins a gradient with dL/dL_i [n]; what other ranks need to know of own rows [n, F]."""

    def add_own_gradients(self) -> None:
        """The gradients of own pairs."""

    def add_gradients(self, shard: Shard, far: Tensor | None, wanted: bool) -> Tensor | None:
        """The gradients of a shard's pairs, of whose rows ``far`` [K, F] is known; for its rows if wanted."""

    def add_scale_gradient(self, gradient: Tensor) -> None:
        """What other ranks found for the scales [n] of own keys."""

    def gradients(self, keys: Tensor | None, queue: Tensor | None) -> list[Tensor | None]:
        """The inputs' gradients, with what other ranks found for own keys and shared negatives."""


@uncompiled
def loss(
    contrast: Contrast, link: Link, given: Tensor | None, reduction: str, gather: GatherLike, backend: str
) -> Tensor:
    """The loss over all ranks; own rows' losses for "none". ``given`` are the user's weights of own rows."""
    backend = choose(backend, contrast, link, over_ranks=True)
    ranks = Ranks(contrast.anchors.device, gather)
    queued = 0 if contrast.queue is None else len(contrast.queue)
    call = _describe(contrast, link, given, reduction, backend)
    sizes, queues, key_sizes = ranks.agree(call, contrast.n, queued, contrast.m)
    if given is not None:
        given = ranks.gather(given.detach().double(), sizes, "the weights of all ranks").wait()
    if backend == "reference":
        return reference.loss(contrast, link, given, reduction, ranks, sizes, queues, key_sizes)
    if contrast.ids is not None:  # in one dtype with those of all ranks, or unsigned ones cannot be compared
        contrast = replace(contrast, ids=contrast.ids.long())
    if contrast.labels is not None:
        contrast = replace(contrast, labels=contrast.labels.long())
    groups = key_groups = contrast.groups
    if groups is not None:
        groups = key_groups = ranks.gather(groups, sizes, "the ids or labels of all ranks").wait()
    if contrast.key_labels is not None:
        key_labels = contrast.key_labels.long()
        contrast = replace(contrast, key_labels=key_labels)
        key_groups = ranks.gather(key_labels, key_sizes, "the labels of all ranks' keys").wait()
    count, own = None, ranks.span(ranks.rank, sizes)
    if contrast.labels is not None and groups is not None:
        count = how_many(groups, None if contrast.key_labels is None else key_groups)
        contrast = replace(contrast, positives=count[own.start : own.stop])
    weights = anchor_weights(reduction, sum(sizes), count, given)
    if isinstance(weights, Tensor):
        weights = weights[own.start : own.stop]
    if contrast.bias is not None:
        from taufree.backends.sharded import sigmoid  # which needs this module

        contrast = replace(contrast, bias=contrast.bias.among(sum(sizes)))
        return sigmoid.loss(contrast, link, ranks, sizes, groups, weights, backend)
    step = ShardedStep(contrast, ranks, sizes, queues, key_sizes, key_groups, weights)
    contrast = balance(contrast, sum(key_sizes), key_groups, sum(queues), step.queue_ids)
    link = link.prepare(step)
    step.gather_scales(link)
    make: Callable[..., ShardEngine]
    if backend == "triton":
        from taufree.backends.sharded import fused  # needs Triton

        make, inputs = fused.engine_of(contrast, link)
    else:
        make, inputs = blockwise.engine_of(contrast, link)
    with transforms_named(backend):
        result: Tensor = _Sharded.apply(step, make, backend, *inputs)
        return result


class ShardedStep:
    """The exchanges of one forward and backward.

    ``sizes``, ``queues`` and ``key_sizes`` say how many anchors, shared negatives and keys each rank has.
    """

    def __init__(
        self, contrast: Contrast, ranks: Ranks, sizes: Sequence[int], queues: Sequence[int],
        key_sizes: Sequence[int], key_groups: Tensor | None, weights: Tensor | float | None,
    ) -> None:  # fmt: skip
        self.contrast, self.ranks, self.sizes = contrast, ranks, sizes
        self.key_groups, self.weights = key_groups, weights
        self.scales: Tensor | None = None  # of all ranks' anchors that are candidates, where each has one
        self.keys: Gather | Ring | None = None
        self.queue: Gather | Ring | None = None
        if contrast.in_batch:
            rows = contrast.anchors if contrast.keys is None else contrast.keys
            self.keys = exchange(ranks, rows.detach(), key_sizes)
        self.queue_ids = contrast.queue_ids
        if contrast.queue is not None and max(queues) > 0:
            self.queue = exchange(ranks, contrast.queue.detach(), queues)
            if self.queue_ids is not None:
                self.queue_ids = ranks.gather(self.queue_ids, queues, "the negative_ids of all ranks").wait()

    def gather_scales(self, link: Link) -> None:
        """Of anchors that are candidates of others, if the link has a scale for each anchor."""
        if link.per_anchor and (self.contrast.symmetric or self.contrast.keys is None):
            own = torch.as_tensor(link.formula_scale()).detach()[-self.contrast.n :]
            self.scales = self.ranks.gather(own, self.sizes, "the scales of all ranks").wait()

    @torch.no_grad()
    def squared_cosine(self) -> tuple[Tensor, Tensor]:
        """:func:`taufree.backends.moments.measure` of all ranks' anchors, the same on every rank."""
        squares = moments.Squares(self.contrast)
        self._measure(squares)
        sums = self.ranks.sum(squares.sums(), "the squared cosines of all ranks")
        return moments.summary(sums, self.contrast.anchors.shape[1])

    @torch.no_grad()
    def likelihood(self, link: Link) -> Likelihood:
        """That of some anchors of every rank, the same on every rank."""
        sample = AnchorSample(self.contrast, link)
        self._measure(sample)
        sums = sample.sums(sum(self.sizes))
        return likelihood_of(self.ranks.sum(sums, "the likelihoods of all ranks"))

    def fit_gain(self, link: Link, gain: Gain) -> bool:
        """No kernels do it over ranks."""
        return False

    @torch.no_grad()
    def cosines(self) -> Cosines:
        """Those of all ranks' anchors, the same on every rank."""
        found = CosineSums(self.contrast)
        self._measure(found)
        sums = self.ranks.sum(found.sums(), "the cosines of all ranks")
        return cosines_of(sums, self.contrast.anchors.shape[1])

    def _measure(self, into: moments.Squares | AnchorSample | CosineSums) -> None:
        """Adds own candidates and those of all other ranks."""
        self._start()
        into.add_own()
        if self.keys is not None:
            self.keys.visit(lambda rows, span: into.add(rows, self.shard(rows, span).groups))
        if self.queue is not None:
            self.queue.visit(lambda rows, span: into.add(rows, self._queue_shard(rows, span).groups))

    def forward(self, engine: ShardEngine) -> Tensor:
        """The weighted sum of all ranks' losses, or own losses [n]."""
        self._start()
        engine.add_own()
        cols, tracker = None, self.contrast.tracker
        if self.contrast.symmetric:
            device = self.contrast.anchors.device
            cols = torch.full((sum(self.sizes),), engine.empty_sum, dtype=engine.sum_dtype, device=device)
            best = cols if tracker is None else torch.full_like(cols, -torch.inf)

        def add(rows: Tensor, span: range) -> None:
            shard = self.shard(rows, span)
            if cols is not None and tracker is not None:
                shard = shard._replace(tally=Tally.empty(rows, engine.tallies[1].table.dtype))
            found = engine.add(shard)
            if cols is not None and found is not None:
                cols[span.start : span.stop] = found
            if shard.tally is not None:
                best[span.start : span.stop] = shard.tally.table[0]
                engine.tallies[1].add_moments(shard.tally)

        if self.keys is not None:
            self.keys.visit(add)
        if self.queue is not None:
            self.queue.visit(lambda rows, span: engine.add(self._queue_shard(rows, span)))
        if cols is not None:
            engine.merge(self.ranks.swap(cols, self.sizes, "the column sums of all ranks"))
            if tracker is not None:
                found = self.ranks.swap(best, self.sizes, "the statistics of all ranks")
                engine.tallies[1].raise_to(0, slice(None), found.amax(0))
        if tracker is not None:
            tracker.sums = self.ranks.sum(engine.tracked(), "the statistics of all ranks")
        losses = engine.losses()
        if self.weights is None:
            return losses
        total = (losses.to(wide_dtype(losses.device)) * self.weights).sum()
        return self.ranks.sum(total, "the losses of all ranks")

    def backward(self, engine: ShardEngine, upstream: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """The gradients of own inputs."""
        self._start()
        each = upstream if self.weights is None else upstream * self.weights * self.ranks.world
        near = engine.begin_gradient(each.expand(self.contrast.n))
        far = None
        if near is not None:
            far = self.ranks.gather(near, self.sizes, "the normalisers of all ranks")
        engine.add_own_gradients()
        of_keys = of_queue = None
        if self.keys is not None:
            known = None if far is None else far.wait()
            give_back = self.contrast.keys is not None and wanted[1]
            of_scales = None if self.scales is None else torch.zeros_like(self.scales)

            def add(rows: Tensor, span: range) -> Tensor | None:
                theirs = None if known is None else known[span.start : span.stop]
                found = engine.add_gradients(self.shard(rows, span), theirs, give_back)
                if of_scales is not None and engine.of_far_scale is not None:
                    of_scales[span.start : span.stop] = engine.of_far_scale
                return found

            of_keys = self.keys.visit(add, engine.dtype if give_back else None)
            # An anchor that is a key has a part of its scale's gradient on every rank, a view on its own.
            if of_scales is not None and self.contrast.symmetric:
                own = self.ranks.scatter(of_scales, self.sizes, "the gradients of the scales")
                engine.add_scale_gradient(own)
        if self.queue is not None:
            of_queue = self.queue.visit(
                lambda rows, span: engine.add_gradients(self._queue_shard(rows, span), None, wanted[2]),
                engine.dtype if wanted[2] else None,
            )
        return engine.gradients(of_keys, of_queue)

    def _start(self) -> None:
        for exchanged in (self.keys, self.queue):
            if exchanged is not None:
                exchanged.start()

    def shard(self, rows: Tensor, span: range) -> Shard:
        groups = None if self.key_groups is None else self.key_groups[span.start : span.stop]
        scale = None if self.scales is None else self.scales[span.start : span.stop]
        return Shard(rows, groups, self.contrast.symmetric or self.contrast.keys is None, scale=scale)

    def _queue_shard(self, rows: Tensor, span: range) -> Shard:
        ids = self.queue_ids
        return Shard(rows, None if ids is None else ids[span.start : span.stop], are_anchors=False)


class _Sharded(torch.autograd.Function):
    """Inputs from the fourth on: anchors, keys, queue, then what the backend's engine takes."""

    @staticmethod
    def forward(
        ctx: Any, step: ShardedStep, make: Callable[..., ShardEngine], backend: str, *inputs: Tensor | None
    ) -> Tensor:
        ctx.step, ctx.backend, ctx.wanted = step, backend, ctx.needs_input_grad[3:]
        contrast = step.contrast
        integers = (contrast.ids, contrast.labels, contrast.key_labels, contrast.queue_ids)
        ctx.save_for_backward(*inputs[:4], *integers)
        ctx.params, ctx.dtypes = inputs[4:], [None if x is None else x.dtype for x in inputs]
        with full_precision(step.ranks.device):
            ctx.engine = make(inputs, ctx.wanted)
            found = step.forward(ctx.engine)
        return found.to(ctx.engine.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = (upstream, *ctx.saved_tensors, *ctx.params)  # raises if an input was changed since
        with torch.no_grad(), full_precision(ctx.step.ranks.device):
            found = ctx.step.backward(ctx.engine, upstream, ctx.wanted)
        cast = [None if g is None else g.to(d) for g, d in zip(found, ctx.dtypes, strict=True)]
        if torch.is_grad_enabled():  # create_graph=True
            cast = [None if g is None else FirstDerivativeOnly.apply(ctx.backend, g, *inputs) for g in cast]
        return (None, None, None, *cast)


def _describe(contrast: Contrast, link: Link, given: Tensor | None, reduction: str, backend: str) -> str:
    """What must be alike on all ranks."""

    def shown(name: str, x: Tensor | None, rows: str) -> str:
        if x is None:
            return ""
        shape = ", ".join([rows, *map(str, x.shape[1:])])
        grad = " with gradient" if x.requires_grad and torch.is_grad_enabled() else ""
        return f", {name} [{shape}] {str(x.dtype)[6:]}{grad}"

    if contrast.labels is not None:
        text = "sup_con with labels" + shown("embeddings", contrast.anchors, "N")
        text += shown("keys", contrast.keys, "M")
    elif contrast.keys is None:
        text = "nt_xent" + shown("both views", contrast.anchors, "N")
    elif contrast.bias is not None:
        text = "sigmoid_nce" + shown("query", contrast.anchors, "N") + shown("key", contrast.keys, "N")
        text += shown("bias", contrast.bias.learned, "") or f", bias={contrast.bias.number}"
        text += " and the prior" if contrast.bias.prior else ""
    else:
        text = "info_nce" + shown("query", contrast.anchors, "N") + shown("positive_key", contrast.keys, "N")
        text += shown("negative_keys", contrast.queue, "M")
        text += shown("negative_keys", contrast.own_negatives, "N")
        text += f", in_batch={contrast.in_batch}, symmetric={contrast.symmetric}"
    text += "" if contrast.labels is not None else ", with ids" if contrast.ids is not None else ", no ids"
    text += "" if contrast.queue_ids is None else ", with negative_ids"
    text += ", decoupled" if contrast.decoupled else ", balanced" if contrast.balanced else ""
    text += f", hardness={contrast.hardness}" if contrast.hardness else ""
    text += "" if given is None else ", with weights"
    text += "" if contrast.tracker is None else ", tracked"
    mode = " that measures" if link.measures else ""  # which exchanges sums
    return f"{text}, reduction={reduction!r}, backend={backend!r}, link={_describe_link(link)}{mode}"


def _describe_link(link: Link) -> str:
    """Without the values of its state: reading them would wait for the device."""
    if not link.state_dict():
        return repr(link)
    formula = link.formula
    return type(link).__name__ + ("" if formula is None else f"(resolution={formula.resolution})")
