"""The whole matrix of a small batch as one tile: the same arithmetic in a third of the calls.

That is up to 1,024 x 1,024 pairs with a short queue or none, 512 x 512 of two views unless a link measures
them. All rows are normalised together, and there are no strips, no parts and no second visit. The smallest
matrices are wholly in float64, where a call takes longer than its arithmetic: a plain product is then exact
enough for every pair, so that positives stay in the matrix, and labels are possible. What is rare goes to
:class:`.engine.BlockwiseEngine`: negatives of one anchor each, hardness, statistics, rows that are zero, very
short or very long, and negatives that nearly agree with their anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taufree.backends.autograd import transformed
from taufree.backends.blockwise.directions import close
from taufree.backends.blockwise.formulas import base_and_slope, offset_of
from taufree.backends.blockwise.learned import link_gradient
from taufree.backends.blockwise.left_out import LeftOut
from taufree.backends.blockwise.odds_tile import OddsTile
from taufree.backends.blockwise.plain_tile import PlainTile
from taufree.backends.blockwise.tiles import Tile, keep_freed_memory, near, tile_kind
from taufree.backends.numerics import full_precision, shortest
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Formula, Link

LENGTHS = (1e-150, 1e150)  # of rows whose squares are in float64's range
MAX_PAIRS = 2**20  # of a matrix that a link measures
MAX_QUEUE_PRODUCT = 2**23  # multiplications by a queue, all of which is copied in float64 and gets a gradient
FLOAT64_PRODUCT = 2**19  # multiplications of a product that float64 does in the time of a few calls
FLOAT64_GAP = 1e-6  # the 1 - c that a plain product in float64 gives to more digits than float32 has


def fits(contrast: Contrast, link: Link, pairs: int) -> bool:
    """Whether it is a matrix of at most so many pairs, of a kind that :class:`OneTile` has.

    Some rows it still leaves to the engine.
    """
    if (
        contrast.own_negatives is not None
        or contrast.positives is not None
        or contrast.key_labels is not None
    ):
        return False
    if contrast.hardness or contrast.tracker is not None:
        return False
    if contrast.labels is not None and not _in_float64(contrast, link):
        return False
    may_be_alone = contrast.ids is not None or contrast.n <= 2  # without negatives
    if contrast.decoupled and contrast.labels is None and may_be_alone:
        return False
    if contrast.queue is not None and (contrast.symmetric or contrast.ids is not None):
        return False
    if not _short_queue(contrast):
        return False
    return 0 < contrast.n * contrast.candidate_count <= pairs


def _short_queue(contrast: Contrast) -> bool:
    """Whether there is none, or one that a few anchors would not wait for either."""
    return contrast.queue is None or contrast.queue.numel() * max(contrast.n, 32) <= MAX_QUEUE_PRODUCT


def _in_float64(contrast: Contrast, link: Link) -> bool:
    """Whether the whole matrix is computed in float64 for results in float32.

    The link must be the same for all 1 - c below ``FLOAT64_GAP``, as far as float32 can tell.
    """
    anchors = contrast.anchors
    if not contrast.in_batch or not anchors.is_cpu:
        return False
    if anchors.numel() * contrast.candidate_count > FLOAT64_PRODUCT:
        return False
    formula = link.formula
    smooth = formula is not None and (formula.kind == "linear" or formula.resolution >= FLOAT64_GAP)
    return smooth and result_dtype(*contrast.inputs) == torch.float32


@dataclass
class Matrix:
    """All pairs of a contrast, anchors by candidates.

    A link that measures the batch makes it before the loss does, which overwrites it.

    Attributes:
        cosine: [N, M]; 0 where a pair is ``left_out``, unless ``positive`` is None.
        positive: c, 1 - c and 1 + c of each row with its positive, exactly; of two views those of the first
            alone. None where ``cosine`` has them to as many digits as float32.
        exact, unit: the unit rows of anchors, keys and queue, in the widest dtype and in that of ``cosine``.
        anchors, candidates: those of ``unit`` that the rows and the columns of ``cosine`` are.
        inverse: [rows, 1], what made them unit rows.
        formula: that of the link it was made for; it serves no other.
        known: :meth:`logits`, once they have been asked for.
    """

    cosine: Tensor
    positive: tuple[Tensor, Tensor, Tensor] | None
    left_out: LeftOut | None
    exact: Tensor
    unit: Tensor
    anchors: Tensor
    candidates: Tensor
    inverse: Tensor
    formula: Formula | None
    known: tuple[Tensor, Tensor | None] | None = None

    def cosines_of_negatives(self) -> Tensor:
        """[N, M], 0 where a pair is left out."""
        as_made = self.known is None or self.known[0] is not self.cosine
        if self.left_out is None or (self.positive is not None and as_made):
            return self.cosine
        return self.left_out.fill(self.cosine.clone(), 0)

    def logits(self, link: Link) -> tuple[Tensor, Tensor | None]:
        """Logits divided by the link's scale, and q of :class:`PlainTile` if they are log-odds, of all pairs
        [N, M]. ``link`` has ``formula``, which is not None."""
        if self.known is None:
            formula = link.formula
            assert formula is not None
            if formula.kind == "linear":
                self.known = self.cosine, None
            else:
                half = self.cosine.new_full((), 0.5)
                q = torch.add(half, self.cosine, alpha=0.5 / (1 + formula.resolution))
                self.known = torch.logit(q), q
        return self.known

    def measured_logits(self, contrast: Contrast, link: Link) -> tuple[Tensor, Tensor]:
        """The first of :meth:`logits`, and those of the positives [N], exactly, which the first has too."""
        n, shift, views = contrast.n, contrast.shift, contrast.keys is None
        fresh = self.known is None
        base, _ = self.logits(link)
        if fresh and self.positive is not None:
            _, gap, rise = self.positive
            exact, _ = base_and_slope(link, gap + offset_of(link), rise.clone())
            base.diagonal(shift).copy_(exact)
            if views:
                base.diagonal(shift - n).copy_(exact)
        positive = base.diagonal(shift)
        return base, positive.repeat(2) if views else positive


def measurable(contrast: Contrast) -> bool:
    """Whether all anchors have one positive and as many negatives each, and few enough for one matrix."""
    plain = contrast.in_batch and contrast.groups is None and contrast.own_negatives is None
    plain = plain and contrast.bias is None and contrast.anchors.is_cpu
    # torch.compile would compile again for larger batches.
    if not plain or torch.compiler.is_compiling() or transformed() or not _short_queue(contrast):
        return False
    return contrast.candidate_count > 2 and contrast.n * contrast.candidate_count <= MAX_PAIRS


def matrix_of(contrast: Contrast, link: Link) -> Matrix | None:
    """The matrix, as exact as a link of this formula needs it; None for rows that are left to the engine.

    To be called without a graph, as all that is here.
    """
    n, views, in_float64 = contrast.n, contrast.keys is None, _in_float64(contrast, link)
    given = [x for x in contrast.inputs[:3] if x is not None]
    dtype, wide = result_dtype(*given), wide_dtype(given[0].device)
    exact = (given[0] if len(given) == 1 else torch.cat(given)).to(wide, copy=True)
    length = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    low, high = length.aminmax()
    if not (max(LENGTHS[0], *(shortest(x.dtype) for x in given)) <= low.item() and high.item() <= LENGTHS[1]):
        return None
    inverse = length.reciprocal_()
    unit = exact.mul_(inverse)
    if not in_float64:
        unit, inverse = unit.to(dtype), inverse.to(dtype)
        keep_freed_memory()

    anchors = candidates = unit
    if not views:
        anchors, candidates = unit[:n], unit[n if contrast.in_batch else 2 * n :]
    cosine = torch.mm(anchors, candidates.T)
    left_out = LeftOut.of_all(contrast) if contrast.in_batch else None
    positive = None
    if not in_float64:
        if left_out is not None:
            left_out.fill(cosine, 0)
        if near(cosine, -1.0):  # whose bounds lie around 0 then
            return None
        if contrast.labels is None:
            pairs = contrast.shift if views else n
            positive = _chords(exact[:pairs], exact[pairs : 2 * pairs])
    return Matrix(cosine, positive, left_out, exact, unit, anchors, candidates, inverse, link.formula)


class OneTile:
    """The losses of a contrast that is one tile, and then its gradient.

    Attributes:
        losses: [N].
    """

    def __init__(self, contrast: Contrast, link: Link, params: Sequence[Tensor], matrix: Matrix) -> None:
        self.contrast, self.link, self.params, self.matrix = contrast, link, params, matrix
        n, labelled, learns = contrast.n, contrast.labels is not None, bool(params)
        self.wide = matrix.exact.dtype
        self.offsets = None if contrast.offsets is None else contrast.offsets.to(self.wide)
        self.kind = kind = tile_kind(link, learns)
        same = contrast.same_label(range(n), range(n)) if labelled else None
        inside = contrast.shift if matrix.positive is None and not labelled else None
        options = (None, matrix.left_out, same, learns, inside)
        self.tile: Tile
        if kind is PlainTile:
            known = matrix.logits(link)
            matrix.cosine = known[0]  # or the cosines would be one more matrix in memory
            self.tile = PlainTile(link, matrix.cosine, *options, known=known)
        else:
            one = matrix.cosine.new_full((), 1 + offset_of(link))
            self.tile = kind(link, torch.sub(one, matrix.cosine, out=matrix.cosine), *options)
        if labelled:
            self._add_labelled()
        else:
            self._add_single()

    def _add_labelled(self) -> None:
        tile, count = self.tile, self.contrast.positive_count().to(self.wide)
        assert tile.same is not None
        log_s = self.kind.log(tile.sum(1, ~tile.same))
        if self.offsets is not None:
            log_s = log_s - self.offsets[0]
        log_w = self.kind.log(tile.sum(1, tile.same))
        closed = close(count, log_s, log_w, tile.logits(tile.same).sum(1), self.contrast.decoupled)
        if self.offsets is not None:
            offset = self.offsets[0]
            closed = closed._replace(log_z=closed.log_z + offset, keep=closed.keep * offset.exp())
        self.closed = closed
        self.losses = self.closed.losses

    def _add_single(self) -> None:
        """Of two views the second half has the positives of the first."""
        tile, matrix, both = self.tile, self.matrix, self.contrast.symmetric
        if matrix.positive is not None:
            positive = self.kind.of_logit(self.link.logit(*matrix.positive))
        else:
            assert tile.positives is not None
            positive = tile.positives[0]
        if self.contrast.keys is None:
            positive = positive.repeat(2)
        total = torch.stack([tile.sum(1), tile.sum(0)]) if both else tile.sum(1)
        total, offset = total.to(self.wide), self.offsets
        if offset is not None:
            offset = offset if both else offset[0]
            total = self.kind.raised(total, -offset)
        single = self.kind.close(total, positive, self.contrast.decoupled)
        self.single = single if offset is None else single._replace(z=self.kind.raised(single.z, offset))
        losses = self.single.losses
        self.losses = losses.mean(0) if both else losses

    def gradients(self, weights: Tensor | float) -> list[Tensor | None]:
        """Those of sum(weights * losses) with respect to anchors, keys, queue, own negatives and what the
        link learns; only once, since it consumes the tile."""
        if isinstance(weights, Tensor):
            weights = weights.to(self.wide)
        with full_precision(self.contrast.anchors.device):
            slopes, found, pull = self._slopes(weights)
            out = self._by_row(slopes, pull).to(result_dtype(*self.contrast.inputs))
        rows, first = [], 0
        for x in self.contrast.inputs:
            last = first if x is None else first + x.shape[0]
            rows.append(None if x is None else out if len(x) == len(out) else out[first:last])
            first = last
        return [*rows, *found]

    def _slopes(self, weights: Tensor | float) -> tuple[Tensor, Sequence[Tensor | None], Tensor | None]:
        """dL/dc of all pairs, the derivatives by what the link learns, and dL/dc of the positives [pairs, 1]
        unless it is among the pairs."""
        contrast, matrix = self.contrast, self.matrix
        views, both = contrast.keys is None, contrast.symmetric
        if contrast.labels is not None:
            sides = [self.closed.side(weights).at(range(contrast.n), 0)]
            return *self.tile.coefficients(sides, self.params), None
        grad = weights / 2 if both else weights
        slopes, found = self.tile.of_negatives(grad, self.single.z, self.params)
        missed = self.single.missed
        missed = torch.ones_like(self.single.z) if missed is None else missed
        outer = missed.mul_(-grad)  # dL/dlogit of the pairs
        outer = outer.sum(0) if both else outer
        pairs = contrast.shift if views else contrast.n
        outer = outer[:pairs] + outer[pairs:] if views else outer
        pull: Tensor | None = None
        more: Sequence[Tensor | None] = ()
        if matrix.positive is None:
            assert self.tile.positives is not None
            base = None if isinstance(self.tile, OddsTile) else self.tile.base
            if self.params and base is not None:  # the scale alone
                more = [torch.dot(outer, base.diagonal(contrast.shift))]
            slopes.diagonal(contrast.shift).copy_(outer.mul_(self.tile.positives[1]))
        else:
            if self.params:
                more = link_gradient(self.link, matrix.positive, outer, self.params)
            pull = outer.mul_(self.link.slope(*matrix.positive))[:, None]
        return slopes, [_sum(parts) for parts in zip(found, more, strict=True)], pull

    def _by_row(self, slopes: Tensor, pull: Tensor | None) -> Tensor:
        """The gradient with respect to all rows, as they were given, from dL/dc."""
        contrast, matrix, n = self.contrast, self.matrix, self.contrast.n
        views, unit = contrast.keys is None, matrix.unit
        if views:
            out = torch.mm(slopes + slopes.T, unit)
        else:
            parts = [torch.mm(slopes, matrix.candidates), torch.mm(slopes.T, matrix.anchors)]
            if not contrast.in_batch:  # the keys are positives alone
                parts.insert(1, torch.zeros_like(matrix.anchors))
            out = torch.cat(parts)
        if pull is not None and matrix.positive is not None:
            pairs = contrast.shift if views else n
            a, b = matrix.exact[:pairs], matrix.exact[pairs : 2 * pairs]
            sign = torch.ones_like(pull).copysign_(matrix.positive[0][:, None])  # never 0
            # b - a for b (b + a if they are opposite): the same but for the part along a, and exact where
            # they agree.
            towards = torch.addcmul(b, a, sign, value=-1).mul_(pull).to(out.dtype)
            out[:pairs] += towards
            out[pairs : 2 * pairs].addcmul_(towards, sign.to(out.dtype), value=-1)
        radial = torch.linalg.vecdot(out, unit).unsqueeze(-1)
        return out.addcmul_(unit, radial, value=-1).mul_(matrix.inverse)


def one_tile(contrast: Contrast, link: Link, params: Sequence[Tensor]) -> OneTile | None:
    """None where the engine must be asked."""
    with full_precision(contrast.anchors.device):
        matrix: Matrix | None = contrast.matrix or None
        if matrix is None or matrix.formula != link.formula:  # prepare() may give any link
            matrix = matrix_of(contrast, link)
        return None if matrix is None else OneTile(contrast, link, params, matrix)


def _chords(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, 1 - c and 1 + c of unit rows, exact at any distance."""
    gap, rise = (torch.linalg.vector_norm(x, dim=1).square_().div_(2) for x in (a - b, a + b))
    return (rise - gap).div_(2), gap, rise


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return sum(there[1:], there[0]) if there else None
