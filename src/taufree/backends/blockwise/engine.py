"""Linear memory on any device: the loss and its analytic gradient, tile by tile.

The similarity matrix is visited in tiles that fit the cache, at most two times: once for the sums,
once for the gradient; what still fits a fixed budget is kept from the first visit. A scalar loss
computes its gradient in the forward pass, while the tiles are in the cache. Rows and columns of a tile are
used together: both directions of a symmetric loss come from one pass, and when anchors are
compared with each other only the tiles on and above the diagonal are computed.

Exactness: plain products are good enough while |c| < 0.95. A tile with a closer pair is computed
again in float64 and from chords, and its gradient without the radial part, whose rounding would exceed
the rest. Positives and each anchor's own negatives are few, and always computed exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from taufree.backends import numerics
from taufree.backends.blockwise.directions import Direction, Side
from taufree.backends.blockwise.formulas import offset_of
from taufree.backends.blockwise.learned import link_gradient
from taufree.backends.blockwise.left_out import LeftOut, omitted
from taufree.backends.blockwise.odds_tile import OddsTile
from taufree.backends.blockwise.rows import UnitRows, cut, spans
from taufree.backends.blockwise.softmax_tile import SoftmaxTile
from taufree.backends.blockwise.tiles import Tile, keep_freed_memory, near, tile_kind
from taufree.backends.numerics import chords, full_precision
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link, from_formula
from taufree.stats import Tally, add_tile

Similarity: TypeAlias = tuple[Tensor, Tensor, Tensor]  # c, 1 - c and 1 + c

TILE_SIZE = 512  # rows and columns of a tile: 1 MiB in float32
KEPT_BYTES = 24 * 2**20  # of tiles kept between the two visits


def tracked(rows: Direction, cols: Direction | None) -> Tensor:
    """What :class:`taufree.stats.Tracker` holds, of both directions."""
    found = [x.tally.sums(x.count) for x in (rows, cols) if x is not None and x.tally is not None]
    return torch.stack(found).sum(0)


class Place(NamedTuple):
    """A tile of the matrix: anchors ``rows`` against candidates ``cols`` of ``block``.

    ``across`` is the direction in which the candidates are anchors, if they are. ``groups`` are the block's
    ids or labels, if it is the queue or another rank holds it.
    """

    rows: range
    cols: range
    block: UnitRows
    across: Direction | None
    groups: Tensor | None = None


class BlockwiseEngine:
    """One evaluation of the loss and, if wanted, of its gradient."""

    def __init__(
        self, contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], params: Sequence[Tensor],
        wanted: Sequence[bool],
    ) -> None:  # fmt: skip
        anchors, keys, queue, own = inputs[:4]
        assert anchors is not None
        self.contrast, self.link = contrast, link
        self.n, self.wide = anchors.shape[0], wide_dtype(anchors.device)
        self.dtype = result_dtype(*inputs[:4])
        self.u = UnitRows(anchors, self.dtype, wanted[0])
        self.v = self.u if keys is None else UnitRows(keys, self.dtype, wanted[1], tiled=contrast.in_batch)
        self.queue = None if queue is None else UnitRows(queue, self.dtype, wanted[2])
        self.own = None if own is None else UnitRows(own, self.dtype, wanted[3], tiled=False)
        self.params = params
        self.param_grads = self._no_param_grads()
        # Those of each anchor, where they differ: of the rows and of the columns.
        self.scales: tuple[Tensor | None, Tensor | None] = (None, None)
        if link.per_anchor and link.formula is not None:
            scale = torch.as_tensor(link.formula_scale()).detach().to(self.wide)
            self.scales = scale[: self.n], scale[-self.n :]
            self.link = from_formula(link.formula, scale.new_ones(()))
        self.kind = SoftmaxTile if contrast.hardness or link.per_anchor else tile_kind(link, bool(params))

    @torch.no_grad()
    def run(self, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """The losses [N], and the inputs' gradients of sum(weights * losses) unless weights is None."""
        with full_precision(self.u.x.device):
            positive, rows, cols = self._begin(weights)
            self._visit(rows, cols, weights is not None)
            losses = rows.losses if cols is None else (rows.losses + cols.losses) / 2
            if self.contrast.tracker is not None:
                self.contrast.tracker.sums = tracked(rows, cols)
            return losses, [] if weights is None else self._gradients(positive, rows, cols)

    def _begin(self, weights: Tensor | None) -> tuple[Similarity | None, Direction, Direction | None]:
        """The positives, and both directions with the pairs outside the matrix in their sums."""
        positive = None if self.contrast.labels is not None else self._positive()
        logit = None if positive is None else self.link.logit(*positive)
        count, cols = self.contrast.positive_count(), None
        if self.contrast.symmetric:
            weights = None if weights is None else weights / 2
            cols = Direction(
                self.kind, count, logit, weights, self.wide, self.contrast.decoupled, self.scales[1]
            )
        rows = Direction(self.kind, count, logit, weights, self.wide, self.contrast.decoupled, self.scales[0])
        if self.contrast.offsets is not None:
            for direction, offset in zip((rows, cols), self.contrast.offsets, strict=False):
                if direction is not None:
                    direction.offset = offset.to(self.wide)
        if self.contrast.tracker is not None:
            for direction in (rows, cols):
                if direction is not None:
                    direction.tally = Tally.empty(count, self.wide)
                    if positive is not None:
                        direction.tally.add_positives(positive[0])
        for part, similarity, *_ in self._own_negatives():
            logits = self._negative_logits(similarity, part)
            rows.negatives[part] = self.kind.merge(rows.negatives[part], logits)
            if rows.tally is not None:
                add_tile(similarity[1], 1.0, None, None, [(rows.tally, part, 1)])
        return positive, rows, cols

    def _gradients(
        self, positive: Similarity | None, rows: Direction, cols: Direction | None
    ) -> list[Tensor | None]:
        """Adds the pairs outside the matrix, then takes everything back through the normalisation."""
        if positive is not None:
            outers = [-x.side.target for x in (rows, cols) if x is not None]
            a = self._coefficients(positive, slice(0, self.n), *outers)[:, None]
            sign = torch.ones_like(a).copysign(positive[0][:, None])  # never 0, also at right angles
            for part, key, u, v in self._positives():
                # v - u for v (v + u if they are opposite): the same but for the part along u, and exact
                # where u and v nearly agree.
                apart = v.addcmul_(u, sign[part], value=-1).to(self.dtype)
                self.u.add_gradient(part, apart, a[part], sign[part] * a[part])
                self.v.add_gradient(key, apart, -sign[part] * a[part], sign[part] * a[part])
        for part, similarity, u, v in self._own_negatives():
            share = (self._negative_logits(similarity, part) - rows.side.log_z[part, None]).exp()
            a = self._coefficients(similarity, part, rows.side.grad[part, None] * share)[..., None]
            sign = similarity[0].sign()[..., None]
            if self.u.grad is not None:
                self.u.grad[part] += (v - sign * self.u.full[part][:, None] * u).mul_(a).sum(1)
            if self.own is not None and self.own.grad is not None:
                self.own.grad[part] = (u - sign * self.own.full[part] * v).mul_(a)
        inputs = (self.u, None if self.contrast.keys is None else self.v, self.queue, self.own)
        return [None if x is None else x.finish() for x in inputs] + self.param_grads

    def _negative_logits(self, similarity: Similarity, part: slice) -> Tensor:
        """Logits [B, K] of some anchors, which are rows, with their own negatives."""
        logits, hardness = self.link.logit(*similarity), self.contrast.hardness
        if self.scales[0] is not None:
            return logits * self.scales[0][part, None]
        return logits + hardness * similarity[0] if hardness else logits

    def _coefficients(self, similarity: Similarity, part: slice, *outers: Tensor) -> Tensor:
        """dL/dc of some anchors' pairs, from dL/dlogit in each direction; adds to the gradients of the link's
        parameters."""
        slope, outer = self.link.slope(*similarity), sum(outers[1:], outers[0])
        if self.scales[0] is None:
            if self.params:
                self._learn(link_gradient(self.link, similarity, outer, self.params))
            return outer * slope
        total = torch.zeros_like(outer)
        for column, (of_logit, scale) in enumerate(zip(outers, self.scales, strict=False)):
            assert scale is not None
            total += of_logit * scale[part].reshape(-1, *[1] * (outer.dim() - 1))
            if self.params:
                each = of_logit * self.link.logit(*similarity)
                self._learn_anchors(each if each.dim() == 1 else each.sum(1), part, bool(column))
        return total * slope

    def _learn_anchors(self, gradient: Tensor, part: slice, column: bool) -> None:
        """Adds to the gradient of the scales of some anchors, which are rows or columns."""
        of_scale = self.param_grads[0]
        (of_scale[-self.n :] if column else of_scale[: self.n])[part] += gradient

    def _no_param_grads(self) -> list[Tensor]:
        return [torch.zeros_like(p, dtype=self.wide) for p in self.params]  # parts of many tiles add up in it

    def _learn(self, gradients: Sequence[Tensor | None], share: float = 1.0) -> None:
        for total, gradient in zip(self.param_grads, gradients, strict=True):
            if gradient is not None:
                total += share * gradient

    # Pairs outside the matrix, exactly.

    def _positives(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """The anchors, which rows of the keys are their positives, and both as exact unit rows."""
        last = self.n - self.contrast.shift  # the positives of the rows from here on are the first keys
        for part in self.u.parts:
            for start, stop in ((part.start, min(part.stop, last)), (max(part.start, last), part.stop)):
                if start < stop:
                    first = (start + self.contrast.shift) % self.n
                    row, key = slice(start, stop), slice(first, first + stop - start)
                    yield row, key, self.u.exact(row), self.v.exact(key)

    def _positive(self) -> Similarity:
        """Cosine, 1 - cosine and 1 + cosine of each anchor and its positive, [N].

        As :func:`chords`, in fewer passes, and into tensors that are made first: a small tensor that stays,
        allocated between large ones that are freed, would fragment the heap.
        """
        gap, rise = torch.empty(2, self.n, dtype=self.wide, device=self.u.x.device)
        for part, key, u, v in self._positives():
            deficit = (self.u.deficit[part] + self.v.deficit[key]).squeeze(-1) / 2
            rise[part] = torch.linalg.vector_norm(u + v, dim=-1).square_().div_(2).add_(deficit)
            gap[part] = torch.linalg.vector_norm(u.sub_(v), dim=-1).square_().div_(2).add_(deficit)
        return (rise - gap) / 2, gap, rise

    def _own_negatives(self) -> Iterator[tuple[slice, Similarity, Tensor, Tensor]]:
        """Some anchors, their similarity [B, K] to negatives of their own, and both as exact unit rows."""
        if self.own is not None and self.own.x.numel():
            for part in self.own.parts:
                u, v = self.u.exact(part)[:, None], self.own.exact(part)
                yield part, chords(u, self.u.deficit[part][:, None], v, self.own.deficit[part]), u, v

    # The matrix, tile by tile.

    def _visit(self, rows: Direction, cols: Direction | None, want_grad: bool) -> None:
        """The sums of all tiles, and their part of the gradient."""
        keep_freed_memory()
        across = rows if self.contrast.keys is None else cols
        strips = spans(self.n, TILE_SIZE if across else self._height())
        # One way, a row's sums are complete after its own tiles; two ways, only after all tiles.
        for group in [strips] if across else [[strip] for strip in strips]:
            places = [place for strip in group for place in self._places(strip, across)]
            kept = self._add_tile_sums(places, rows, KEPT_BYTES if want_grad else 0)
            for direction in (rows, cols):
                if direction is not None:
                    direction.close(slice(group[0].start, group[-1].stop))
            if want_grad:
                self._add_tile_gradients(places, rows, kept)

    def _add_tile_sums(self, places: Sequence[Place], rows: Direction, room: int) -> list[Tile | None]:
        """Adds the tiles to the sums; returns those that fit ``room`` bytes."""
        kept: list[Tile | None] = []
        for place in places:
            tile = self._tile(place, rows)
            rows.add(tile, cut(place.rows), 1)
            if place.across is not None:
                place.across.add(tile, cut(place.cols), 0)
            room -= tile.nbytes
            kept.append(tile if room >= 0 else None)
        return kept

    def _add_tile_gradients(self, places: Sequence[Place], rows: Direction, kept: list[Tile | None]) -> None:
        """Adds the tiles' part of the gradient, once the sums are complete; frees those ``kept``."""
        for i, place in enumerate(places):
            tile, kept[i] = kept[i] or self._tile(place), None
            sides = [rows.side.at(place.rows, 0)]
            if place.across is not None:
                sides.append(place.across.side.at(place.cols, 1))
            self._tile_gradient(place, tile, sides)

    def _height(self) -> int:
        """Rows of a strip such that all its tiles are kept, between 64 and four tiles; tall ones need fewer
        calls."""
        width = (self.contrast.m if self.contrast.in_batch else 0) + (
            0 if self.queue is None else len(self.queue.x)
        )
        copies = 1 if self.kind is OddsTile else 2
        return min(
            4 * TILE_SIZE // copies, max(64, KEPT_BYTES // max(1, width * copies * self.dtype.itemsize))
        )

    def _places(self, rows: range, across: Direction | None) -> Iterator[Place]:
        """The tiles of a strip; of anchors among themselves only those on and above the diagonal."""
        if self.contrast.in_batch:
            for cols in spans(self.contrast.m, TILE_SIZE):
                if self.v is not self.u:
                    yield Place(rows, cols, self.v, across)
                elif cols.start >= rows.start:
                    yield Place(rows, cols, self.v, across if cols.start > rows.start else None)
        if self.queue is not None:
            for cols in spans(len(self.queue.x), TILE_SIZE):
                yield Place(rows, cols, self.queue, None, self.contrast.queue_ids)

    def _tile(self, place: Place, tallied: Direction | None = None) -> Tile:
        """``tallied`` is the direction of the rows, on the first visit."""
        rows, cols, u, v = cut(place.rows), cut(place.cols), self.u, place.block
        assert u.unit is not None
        assert v.unit is not None
        offset = offset_of(self.link)
        gap = torch.addmm(u.unit.new_full((1,), 1 + offset), u.unit[rows], v.unit[cols].T, alpha=-1)
        left_out = same = rise = None
        if v is self.v:
            left_out = LeftOut.of(self.contrast, place.rows, place.cols)
            if self.contrast.labels is not None:
                same = self.contrast.same_label(place.rows, place.cols)
        elif place.groups is not None:
            labels, groups = self.contrast.labels, place.groups[cols]
            if labels is not None:
                same = labels[rows, None] == groups
            elif self.contrast.ids is not None:
                left_out = LeftOut([], self.contrast.ids[rows, None] == groups)
        if left_out is not None:
            left_out.fill(gap, 1)
        if near(gap, offset):
            gap, rise = numerics.similarity(u.exact(rows), u.deficit[rows], v.exact(cols), v.deficit[cols])
            gap.add_(offset)
            if same is None:  # else a coefficient may be the small difference of two numbers that are alike
                gap, rise = gap.to(self.dtype), rise.to(self.dtype)
            if left_out is not None:
                gap, rise = left_out.fill(gap, 1), left_out.fill(rise, 1)
        harder = None
        if self.contrast.hardness:
            harder = (1 + offset - gap if rise is None else (rise + offset - gap) / 2).mul_(
                self.contrast.hardness
            )
            harder = harder if same is None else harder.masked_fill_(same, 0)
        if tallied is not None and tallied.tally is not None:
            tallies = [(tallied.tally, rows, 1)]
            if place.across is not None and place.across.tally is not None:
                tallies.append((place.across.tally, cols, 0))
            add_tile(gap, 1 + offset, omitted(left_out, gap), same, tallies)
        tile = self.kind(self.link, gap, rise, left_out, same, bool(self.params))
        if harder is not None and isinstance(tile, SoftmaxTile):
            tile.logit += harder
        return tile

    def _tile_gradient(self, place: Place, tile: Tile, sides: list[Side]) -> None:
        rows, cols, u, v = cut(place.rows), cut(place.cols), self.u, place.block
        a, learned = tile.coefficients(sides, self.params)
        if self.scales[0] is not None:
            for column, gradient in enumerate(learned):
                assert gradient is not None
                if column and v is not self.v and place.across is not None:
                    if place.across.scale_gradient is not None:
                        place.across.scale_gradient[cols] += gradient
                else:
                    self._learn_anchors(gradient, cols if column else rows, bool(column))
        else:  # two ranks compute a pair of anchors of both, each with both directions: half of it each
            self._learn(learned, 0.5 if self.contrast.keys is None and v is not u else 1.0)
        if tile.near:
            a = a.to(self.wide)
            if u.grad is not None:
                u.grad[rows] += u.tangent(rows, a @ v.exact(cols)).to(self.dtype)
            if v.grad is not None:
                v.grad[cols] += v.tangent(cols, a.T @ u.exact(rows)).to(self.dtype)
            return
        if u.grad is not None and v.unit is not None:
            u.grad[rows].addmm_(a, v.unit[cols])
        if v.grad is not None and u.unit is not None:
            v.grad[cols].addmm_(a.T, u.unit[rows])
