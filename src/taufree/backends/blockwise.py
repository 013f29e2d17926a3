"""Linear memory on any device: the loss and its analytic gradient, tile by tile.

The similarity matrix is visited in tiles that fit the cache, at most two times: once for the sums,
once for the gradient; what still fits a fixed budget is kept from the first visit. A scalar loss
computes its gradient in the forward pass, while the tiles are warm. Rows and columns of a tile are
used together: both directions of a symmetric loss come from one pass, and when anchors are
compared with each other only the tiles on and above the diagonal are computed.

Exactness: float32 products are good enough while |c| < 0.95. A tile with a closer pair is computed
again in float64, and its gradient is taken from differences v - u, which stay exact where u and v
nearly agree. Positives and per-query negatives always take the exact way; they are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from taufree.backends.precision import full_precision, result_dtype, wide_dtype
from taufree.backends.rows import CHUNK, Pairs, Rows, cut, exact_unit, full, spans, through_normalize
from taufree.backends.tiles import Direction, OddsTile, Side, SoftmaxTile, link_gradient
from taufree.contrast import Contrast
from taufree.links import Link, LogOdds

TILE = 512  # rows and columns of a tile: 1 MiB in float32
KEPT = 24 * 2**20  # bytes of tiles kept between the two visits
NEAR = 0.05  # a pair with |c| > 1 - NEAR has its tile computed in float64


@torch.compiler.disable
def loss(contrast: Contrast, link: Link, weights: Tensor | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    params = [p for p in link.parameters() if p.requires_grad]
    inputs = (contrast.anchors, contrast.keys, contrast.queue, contrast.own_negatives)
    result: Tensor = _Blockwise.apply(contrast, link, weights, *inputs, *params)  # type: ignore[no-untyped-call]
    return result


class _Blockwise(torch.autograd.Function):
    """Inputs from the fourth on: anchors, keys, queue, own negatives, the link's parameters."""

    @staticmethod
    def forward(ctx: Any, contrast: Contrast, link: Link, weights: Tensor | None, *inputs: Tensor | None) -> Tensor:
        ctx.contrast, ctx.link, ctx.reduced = contrast, link, weights is not None
        ctx.wanted = ctx.needs_input_grad[3:]
        engine = _Engine(contrast, link, inputs, ctx.wanted)
        grad = weights if any(ctx.wanted) else None
        losses, ctx.gradients = engine.run(grad)
        ctx.save_for_backward(*inputs)
        return (losses if weights is None else (losses * weights).sum()).to(engine.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs = ctx.saved_tensors
        if ctx.reduced:
            gradients = [None if g is None else g * upstream for g in ctx.gradients]
        else:
            with torch.no_grad():
                _, gradients = _Engine(ctx.contrast, ctx.link, inputs, ctx.wanted).run(upstream)
        cast = [None if g is None else g.to(x.dtype) for g, x in zip(gradients, inputs, strict=True)]
        if torch.is_grad_enabled():  # create_graph=True
            cast = [None if g is None else _Final.apply(g, upstream, *inputs) for g in cast]  # type: ignore[no-untyped-call]
        return (None, None, None, *cast)


class _Final(torch.autograd.Function):
    """A gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> None:  # type: ignore[override]
        raise RuntimeError('The blockwise backend has no second derivative; use backend="reference".')


class _Place(NamedTuple):
    """A tile of the matrix: anchors ``rows`` against ``cols`` of ``block``, and who looks back, if anyone."""

    rows: range
    cols: range
    block: Rows
    across: Direction | None


class _Engine:
    """One evaluation of the loss and, if wanted, of its gradient."""

    def __init__(
        self, contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> None:
        anchors, keys, queue, own = inputs[:4]
        assert anchors is not None
        self.contrast, self.link = contrast, link
        self.n, self.wide = anchors.shape[0], wide_dtype(anchors.device)
        self.dtype = result_dtype(*[x for x in inputs[:4] if x is not None])
        self.u = Rows(anchors, self.dtype, wanted[0])
        self.v = self.u if keys is None else Rows(keys, self.dtype, wanted[1])
        self.queue = None if queue is None else Rows(queue, self.dtype, wanted[2])
        self.own = None if own is None else own.detach()
        self.own_grad = torch.zeros_like(own, dtype=self.dtype) if own is not None and wanted[3] else None
        self.params = [p for p in inputs[4:] if p is not None]
        self.param_grads = [torch.zeros_like(p) for p in self.params]
        odds = type(link) is LogOdds and link.gain == 1
        self.kind: type[OddsTile] | type[SoftmaxTile] = OddsTile if odds else SoftmaxTile

    @torch.no_grad()
    def run(self, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """The losses [N], and the inputs' gradients of sum(weights * losses) unless weights is None."""
        with full_precision(self.u.x.device):
            rows, cols = self._directions(weights)
            for pairs in self._own_negatives():
                part = pairs.part
                rows.negatives[part] = self.kind.merge(rows.negatives[part], pairs.logit(self.link))
            self._visit(rows, cols, weights is not None)
            losses = rows.losses if cols is None else (rows.losses + cols.losses) / 2
            return losses, [] if weights is None else self._gradients(rows, cols)

    def _directions(self, weights: Tensor | None) -> tuple[Direction, Direction | None]:
        positive = None
        if self.contrast.labels is None:
            positive = torch.cat([pairs.logit(self.link)[:, 0] for pairs, _ in self._positives()])
        count = self.contrast.positive_count()
        if not self.contrast.symmetric:
            return Direction(self.kind, count, positive, weights, self.wide), None
        half = None if weights is None else weights / 2
        return (
            Direction(self.kind, count, positive, half, self.wide),
            Direction(self.kind, count, positive, half, self.wide),
        )

    def _gradients(self, rows: Direction, cols: Direction | None) -> list[Tensor | None]:
        """Adds the pairs outside the matrix, then takes everything back through the normalisation."""
        if self.contrast.labels is None:
            pull = rows.side.pull if cols is None else rows.side.pull + cols.side.pull
            for pairs, key in self._positives():
                dv = self._pull(pairs, -pull[pairs.part, None])
                if self.v.grad is not None:
                    self.v.grad[key] += dv[:, 0].to(self.dtype)
        for pairs in self._own_negatives():
            share = (pairs.logit(self.link) - rows.side.log_z[pairs.part, None]).exp()
            dv = self._pull(pairs, rows.side.grad[pairs.part, None] * share)
            if self.own is not None and self.own_grad is not None:
                self.own_grad[pairs.part] = through_normalize(self.own[pairs.part], dv).to(self.dtype)
        keys = None if self.contrast.keys is None else self.v.finish()
        queue = None if self.queue is None else self.queue.finish()
        return [self.u.finish(), keys, queue, self.own_grad, *self.param_grads]

    # The matrix, tile by tile.

    def _visit(self, rows: Direction, cols: Direction | None, want_grad: bool) -> None:
        """The sums of all tiles, and their part of the gradient."""
        across = rows if self.contrast.keys is None else cols
        strips = spans(self.n, self._height() if across is None else TILE)
        # One way, a row's sums are complete after its own tiles; two ways, only after all tiles.
        for group in [[strip] for strip in strips] if across is None else [strips]:
            places = list(self._places(group, across))
            kept: list[OddsTile | SoftmaxTile | None] = []
            room = KEPT if want_grad else 0
            for place in places:
                tile = self._tile(place)
                rows.add(tile, cut(place.rows), 1)
                if place.across is not None:
                    place.across.add(tile, cut(place.cols), 0)
                room -= tile.nbytes
                kept.append(tile if room >= 0 else None)
            for direction in (rows, cols):
                if direction is not None:
                    direction.close(slice(group[0].start, group[-1].stop))
            if want_grad:
                for i, place in enumerate(places):
                    tile, kept[i] = kept[i] or self._tile(place), None
                    sides = [rows.side.at(place.rows, 0)]
                    if place.across is not None:
                        sides.append(place.across.side.at(place.cols, 1))
                    self._tile_gradient(place, tile, sides)

    def _height(self) -> int:
        """Rows of a strip such that all its tiles are kept, within reason."""
        width = self.n * self.contrast.in_batch + (0 if self.queue is None else len(self.queue.x))
        copies = 1 if self.kind is OddsTile else 2
        return min(TILE, max(64, KEPT // (max(width, 1) * copies * self.dtype.itemsize)))

    def _places(self, group: list[range], across: Direction | None) -> Iterator[_Place]:
        for rows in group:
            if self.contrast.in_batch:
                for cols in spans(self.n, TILE):
                    if self.contrast.keys is not None:
                        yield _Place(rows, cols, self.v, across)
                    elif cols.start >= rows.start:  # the matrix is symmetric
                        yield _Place(rows, cols, self.v, across if cols.start > rows.start else None)
            if self.queue is not None:
                for cols in spans(len(self.queue.x), TILE):
                    yield _Place(rows, cols, self.queue, None)

    def _tile(self, place: _Place) -> OddsTile | SoftmaxTile:
        rows, cols = cut(place.rows), cut(place.cols)
        one = torch.ones(1, dtype=self.dtype, device=self.u.x.device)
        gap = torch.addmm(one, self.u.unit[rows], place.block.unit[cols].T, alpha=-1)
        left_out = same = rise = None
        if place.block is self.v:
            left_out = self.contrast.left_out(place.rows, place.cols)
            if self.contrast.labels is not None:
                same = self.contrast.same_label(place.rows, place.cols)
        if left_out is not None:
            gap.masked_fill_(left_out, 1)
        if self.dtype != self.wide:
            least, most = gap.aminmax()
            if bool((least < NEAR) | (most > 2 - NEAR)):
                cosine = self.u.exact(rows)[0] @ place.block.exact(cols)[0].T
                if left_out is not None:
                    cosine.masked_fill_(left_out, 0)
                gap, rise = (1 - cosine).to(self.dtype), (1 + cosine).to(self.dtype)
        return self.kind(self.link, gap, rise, left_out, same)  # type: ignore[arg-type]

    def _tile_gradient(self, place: _Place, tile: OddsTile | SoftmaxTile, sides: list[Side]) -> None:
        rows, cols = cut(place.rows), cut(place.cols)
        a, learned = tile.coefficients(sides, self.params)
        self._learn(learned)
        if not tile.near:
            if self.u.grad is not None:
                self.u.grad[rows].addmm_(a, place.block.unit[cols])
            if place.block.grad is not None:
                place.block.grad[cols].addmm_(a.T, self.u.unit[rows])
            return
        a = a.to(self.wide)
        u, v = self.u.exact(rows), place.block.exact(cols)
        if self.u.grad is not None:
            self.u.grad[rows] += (a @ v[0] - a.sum(1)[:, None] * full(*u)).to(self.dtype)
        if place.block.grad is not None:
            place.block.grad[cols] += (a.T @ u[0] - a.sum(0)[:, None] * full(*v)).to(self.dtype)

    # Pairs outside the matrix, exactly.

    def _positives(self) -> Iterator[tuple[Pairs, Tensor]]:
        """All anchors with their positives, and which rows of the keys these are."""
        for part in self.u.parts():
            row = torch.arange(part.start, part.stop, device=self.u.x.device)
            key = (row + self.contrast.shift) % self.n
            v, lack = self.v.exact(key)
            yield Pairs(part, *self.u.exact(part), v[:, None], lack[:, None]), key

    def _own_negatives(self) -> Iterator[Pairs]:
        if self.own is not None:
            for span in spans(self.n, CHUNK // max(1, self.own[0].numel())):
                yield Pairs(cut(span), *self.u.exact(cut(span)), *exact_unit(self.own[cut(span)]))

    def _pull(self, pairs: Pairs, outer: Tensor) -> Tensor:
        """Adds the gradient of sum(outer * logit) to anchors and parameters, and returns the keys'."""
        similarity = pairs.similarity()
        if self.params:
            self._learn(link_gradient(self.link, similarity, outer, self.params))
        du, dv = pairs.gradients(outer * self.link.slope(*similarity))
        if self.u.grad is not None:
            self.u.grad[pairs.part] += du.to(self.dtype)
        return dv

    def _learn(self, gradients: Sequence[Tensor | None] | None) -> None:
        for total, gradient in zip(self.param_grads, gradients or (), strict=False):
            if gradient is not None:
                total += gradient
