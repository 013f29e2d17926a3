"""What a tile of the similarity matrix adds to the sums and to the gradient, link by link.

Three kinds: :class:`OddsTile` for the log-odds at gain 1, whose weights (1+c)/(1-c) are plain numbers that
need no exponential and no maximum; :class:`PlainTile` for other gains and for temperatures, whose weights
need no maximum while they stay in range; and :class:`SoftmaxTile` for every other link.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from taufree.contrast import Contrast
from taufree.links import Link, from_formula
from taufree.stats import Omitted, Tally

NEAR_GAP = 0.05  # a tile with a pair |c| > 1 - NEAR_GAP is computed exactly
LN2 = math.log(2)
# Of the weights of a PlainTile, logarithms to base 2: in float32 where no pair is near, in float64 elsewhere.
FLOAT32_BITS, FLOAT64_BITS = 110, 900
MAX_LOG_Z = 80.0  # whose exp(-log_z) is in float32's range; beyond, coefficients are products in float64


def near(gap: Tensor, offset: float, limit: float = NEAR_GAP) -> bool:
    """Whether plain products are not good enough for a tile, given its 1 - c + offset."""
    least, most = gap.aminmax()
    low, high = limit + offset, 2 - limit + offset
    if gap.is_cpu:
        return least.item() < low or most.item() > high
    return bool((least < low) | (most > high))  # waits for the device once


@dataclass
class Side:
    """One direction of the contrast: the matrix's rows are the anchors, or its columns; fields [anchors].

    The derivative of the loss with respect to a negative's logit is ``grad * exp(logit - log_z)``,
    and to a labelled positive's ``keep * grad * exp(logit - log_z) - target``: an anchor with a single
    positive has keep 0 and target = grad * (1 - p), so that nothing cancels. With a ``scale`` for each anchor
    these logits are it times those of the tile.
    """

    grad: Tensor
    log_z: Tensor
    keep: Tensor
    target: Tensor
    scale: Tensor | None = None

    def at(self, span: range, dim: int) -> Side:
        """The anchors of a span, laid along dimension ``dim`` of a tile."""
        fields = (self.grad, self.log_z, self.keep, self.target, self.scale)
        cut = (None if x is None else x[span.start : span.stop].unsqueeze(1 - dim) for x in fields)
        return Side(*cut)  # type: ignore[arg-type]


@dataclass
class LeftOut:
    """The pairs of a tile that do not count: whole diagonals, quick to fill, or any pairs by a mask."""

    diagonals: list[int]
    mask: Tensor | None
    in_each: int | None = None  # how many a row or a column has, if all have as many

    @classmethod
    def of(cls, contrast: Contrast, rows: range, cols: range) -> LeftOut | None:
        """The same pairs as :meth:`Contrast.left_out`."""
        if contrast.ids is not None:
            return cls([], contrast.left_out(rows, cols))
        shifts = [0] if contrast.keys is None else []
        if contrast.labels is None:
            shifts += [contrast.shift, contrast.shift - contrast.n]
        offsets = [rows.start - cols.start + shift for shift in shifts]
        diagonals = [k for k in offsets if -len(rows) < k < len(cols)]
        # Of the whole matrix, a diagonal that leaves at one edge comes back at the other.
        whole = len(rows) == len(cols) == contrast.n
        in_each = len({k % contrast.n for k in diagonals}) if whole else None
        return cls(diagonals, None, in_each) if diagonals else None

    def fill(self, tile: Tensor, value: float) -> Tensor:
        for k in self.diagonals:
            tile.diagonal(k).fill_(value)
        return tile if self.mask is None else tile.masked_fill_(self.mask, value)

    def count(self, tile: Tensor, dim: int) -> Tensor | int:
        """How many there are along ``dim``."""
        if self.in_each is not None and tile.shape[0] == tile.shape[1]:
            return self.in_each
        if self.mask is not None:
            return self.mask.sum(dim)
        count = tile.new_zeros(tile.shape[1 - dim])
        for k in self.diagonals:
            first = max(0, -k if dim else k)
            count[first : first + len(tile.diagonal(k))] += 1
        return count


def omitted(left_out: LeftOut | None, tile: Tensor) -> Omitted | None:
    """The same for the statistics of the tile."""
    if left_out is None:
        return None
    if left_out.mask is not None:
        return left_out.fill, left_out.mask.sum()
    return left_out.fill, sum(tile.diagonal(k).numel() for k in left_out.diagonals)


class _PlainSums:
    """Sums of weights exp(logit) as they are."""

    empty_sum = 0.0  # the sum over no pair

    @staticmethod
    def merge(total: Tensor, logits: Tensor) -> Tensor:
        """``total`` with the weights of ``logits`` [..., K] added."""
        return total + logits.exp().sum(-1)

    @staticmethod
    def join(total: Tensor, more: Tensor) -> Tensor:
        """Two sums as one."""
        return total + more

    @staticmethod
    def log(total: Tensor) -> Tensor:
        return total.clamp(min=0).log()  # rounding of pairs with c = -1


class OddsTile(_PlainSums):
    """LogOdds at gain 1, with r = 1/(1 + delta - c): weight = 2(1+delta)r - 1, its slope 2(1+delta)r^2."""

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None,
    ) -> None:  # fmt: skip
        resolution = offset_of(link)
        self.twice = 2 * (1 + resolution)
        self.same = same
        self.near = rise is not None
        self.r = gap.reciprocal_()
        self.left_out = left_out
        self.positives: tuple[Tensor, Tensor] | None = (
            None  # logits and slopes of a diagonal that is left out
        )
        if positives_at is not None:
            r = self.r.diagonal(positives_at)
            weight = (r * self.twice).sub_(1)
            self.positives = weight.log(), (r * r).mul_(self.twice).div_(weight)
        self.weight: Tensor | None = None  # formed only where the sum of r does not give it
        if rise is not None:
            self.weight = rise.add_(resolution).mul_(self.r)
        elif same is not None:
            self.weight = (self.r * self.twice).sub_(1)
        if left_out is not None:
            left_out.fill(self.r, 0)
            if self.weight is not None:
                left_out.fill(self.weight, 0)

    @property
    def nbytes(self) -> int:
        return self.r.nbytes * (1 if self.weight is None else 2)

    def add(
        self, total: Tensor, dim: int, among: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        """``total`` with :meth:`sum` added."""
        return self.join(total, self.sum(dim, among, scale))

    def sum(self, dim: int, among: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        """The weights along ``dim`` as one sum, of all pairs or of those ``among``.

        ``scale`` is that of each anchor, which only :class:`SoftmaxTile` has.
        """
        if self.weight is None:
            count = self.r.shape[dim] - (0 if self.left_out is None else self.left_out.count(self.r, dim))
            return self.r.sum(dim).mul_(self.twice).sub_(count)
        return (self.weight if among is None else self.weight * among).sum(dim)

    def logits(self, among: Tensor) -> Tensor:
        """The logits of the pairs ``among``, 0 elsewhere."""
        assert self.weight is not None
        return self.weight.where(among, 1).log_()

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """dL/dc of each pair, summed over the directions; consumes the tile."""
        shares = [self.twice * side.grad * torch.exp(-side.log_z) for side in sides]
        if self.same is None:
            return self.r.square_().mul_(_sum([share.to(self.r.dtype) for share in shares])), ()
        assert self.weight is not None
        scale = _sum(shares).to(self.r.dtype)
        kept = _sum([side.keep * share for side, share in zip(sides, shares, strict=True)]).to(self.r.dtype)
        target = _sum([self.twice * side.target for side in sides]).to(self.r.dtype)
        scale = torch.where(self.same, kept - target / self.weight, scale)
        return self.r.square_().mul_(scale), ()


class PlainTile(_PlainSums):
    """A link with a formula, by its weights exp(logit), which are in range, see :func:`tile_kind`; those of
    pairs that are near in float64."""

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None,
    ) -> None:  # fmt: skip
        self.near, self.same = rise is not None, same
        if rise is not None:
            gap, rise = gap.double(), rise.double()
        scale = float(link.formula_scale())
        base, self.slope = base_and_slope(link, gap, rise)
        self.steep = self.slope * scale if isinstance(self.slope, float) else scale
        bits = (base * (scale / LN2)) if learns else base.mul_(scale / LN2)
        self.base = base if learns else None  # logit / scale, for the derivative with respect to the scale
        self.positives: tuple[Tensor, Tensor | float] | None = None
        if positives_at is not None:
            slope = self.slope if isinstance(self.slope, float) else self.slope.diagonal(positives_at)
            self.positives = bits.diagonal(positives_at) * LN2, slope * scale
        self.weight = bits.exp2_()
        if left_out is not None:
            left_out.fill(self.weight, 0)

    @property
    def nbytes(self) -> int:
        slope = 0 if isinstance(self.slope, float) else self.slope.nbytes
        return self.weight.nbytes + slope + (0 if self.base is None else self.base.nbytes)

    def add(
        self, total: Tensor, dim: int, among: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        return self.join(total, self.sum(dim, among))

    def sum(self, dim: int, among: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        return (self.weight if among is None else self.weight * among).sum(dim)

    def logits(self, among: Tensor) -> Tensor:
        return self.weight.where(among, 1).log_()

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """dL/dc of each pair, and dL/dscale if it is learned; consumes the tile."""
        outer = self._outer(sides)
        learned: Sequence[Tensor | None] = ()
        if params and self.base is not None:
            learned = [torch.linalg.vecdot(outer, self.base).sum() / self.steep]
        return outer if isinstance(self.slope, float) else outer.mul_(self.slope), learned

    def _outer(self, sides: Sequence[Side]) -> Tensor:
        """dL/dlogit times ``steep``."""
        weight, dtype = self.weight, self.weight.dtype
        in_range = dtype == torch.float64 or all(side.log_z.max().item() <= MAX_LOG_Z for side in sides)
        if self.same is None and in_range:
            # In float32 log_z is lower only where no pair counts, and an infinite share times 0 would be NaN.
            low = -MAX_LOG_Z if dtype == torch.float32 else -torch.inf
            inverse = [torch.exp(-side.log_z.clamp(min=low)) for side in sides]
            shares = [(self.steep * x.grad * z).to(dtype) for x, z in zip(sides, inverse, strict=True)]
            return weight.mul_(_sum(shares))
        weight = weight.double()
        shares = [self.steep * side.grad * torch.exp(-side.log_z) * weight for side in sides]
        if self.same is None:
            return _sum(shares).to(dtype)
        kept = [
            side.keep * share - self.steep * side.target for side, share in zip(sides, shares, strict=True)
        ]
        return torch.where(self.same, _sum(kept), _sum(shares)).to(dtype)


def offset_of(link: Link) -> float:
    """What is added to 1 - c by the matrix product that makes it: the resolution of a formula."""
    return 0.0 if link.formula is None else link.formula.resolution


def base_and_slope(link: Link, gap: Tensor, rise: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """logit / scale of a link with a formula, and its derivative by c.

    ``gap`` comes with :func:`offset_of` added to it and is overwritten; ``rise`` is 1 + c where c is near.
    """
    formula = link.formula
    assert formula is not None
    if formula.kind == "linear":
        return (gap.neg_().add_(1) if rise is None else rise.sub_(gap).div_(2)), 1.0
    twice = 2 * (1 + formula.resolution)
    r = gap.reciprocal_()
    ratio = r.mul(twice).sub_(1) if rise is None else rise.add_(formula.resolution).mul_(r)
    slope = r.square_().div_(ratio).mul_(twice)
    return ratio.log_(), slope


class SoftmaxTile:
    """Any link, by its logits and slopes; sums are kept as logarithms, relative to their maximum."""

    empty_sum = -torch.inf

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool, positives_at: int | None = None,
    ) -> None:  # fmt: skip
        self.link, self.same, self.near, self.left_out = link, same, rise is not None, left_out
        self.similarity: tuple[Tensor, Tensor, Tensor] | None = None
        self.base: Tensor | None = None  # logit / scale, for the derivative with respect to the scale
        self.top: Tensor | None = None  # the rows' largest logits, once these have been summed,
        self.weight: Tensor | None = None  # and exp(logit - top)
        if link.formula is not None:
            scale = link.formula_scale()
            self.base, slope = base_and_slope(link, gap, rise)
            self.slope = (gap.new_ones(()) if isinstance(slope, float) else slope).mul_(scale)
            self.logit = self.base * scale if learns else self.base.mul_(scale)
        else:
            cosine, rise = (1 - gap, 2 - gap) if rise is None else ((rise - gap) / 2, rise)
            # In the tile's dtype: a link with float64 parameters gives another.
            self.slope = link.slope(cosine, gap, rise).to(gap.dtype)
            self.logit = link.logit(cosine, gap, rise).to(gap.dtype, copy=True)
            if learns:
                self.similarity = (cosine, gap, rise)
        self.positives: tuple[Tensor, Tensor] | None = None
        if positives_at is not None:
            slope = self.slope.diagonal(positives_at) if self.slope.dim() else self.slope
            self.positives = self.logit.diagonal(positives_at).clone(), slope
        if left_out is not None:
            left_out.fill(self.logit, -torch.inf)
        if not learns:
            self.base = None

    @property
    def nbytes(self) -> int:
        held = (self.logit, self.weight, self.slope, self.base, *(self.similarity or ()))
        return sum(x.untyped_storage().nbytes() for x in held if x is not None)

    def add(
        self, total: Tensor, dim: int, among: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        return self.join(total, self.sum(dim, among, scale))

    def sum(self, dim: int, among: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        logit = self.logit if among is None else self.logit.where(among, -torch.inf)
        if scale is not None:
            logit = logit * scale.to(logit.dtype).unsqueeze(dim)
        top = logit.amax(dim, keepdim=True).nan_to_num_(torch.nan)  # finite, or inf - inf would be NaN
        weight = _exp(logit - top)
        if dim == 1 and among is None:
            self.top, self.weight = top, weight
        return weight.sum(dim).log_().add_(top.squeeze(dim))

    @staticmethod
    def merge(total: Tensor, logits: Tensor) -> Tensor:
        return torch.logaddexp(total, logits.logsumexp(-1))

    @staticmethod
    def join(total: Tensor, more: Tensor) -> Tensor:
        return torch.logaddexp(total, more.to(total.dtype))

    @staticmethod
    def log(total: Tensor) -> Tensor:
        return total

    def logits(self, among: Tensor) -> Tensor:
        return self.logit.where(among, 0)

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """dL/dc of each pair, and the derivatives of the link's ``params`` if there are any; of a scale for
        each anchor those of either side."""
        shares = [self._share(side) for side in sides]
        learned: Sequence[Tensor | None] = ()
        if sides[0].scale is not None:
            if params and self.base is not None:
                learned = [(share * self.base).sum(1 - i) for i, share in enumerate(shares)]
            scaled = zip(shares, sides, strict=True)
            shares = [share * side.scale.to(share.dtype) for share, side in scaled if side.scale is not None]
            return _sum(shares).mul_(self.slope), learned
        outer = _sum(shares)
        if params and self.similarity is not None:
            learned = link_gradient(self.link, self.similarity, outer, params)
        elif params and self.base is not None:
            learned = [(outer * self.base).sum()]
        return outer.mul_(self.slope), learned

    def _share(self, side: Side) -> Tensor:
        """dL/dlogit in one direction."""
        dtype = self.logit.dtype
        if self.weight is not None and self.top is not None and self.top.shape == side.log_z.shape:
            share = self.weight * (side.grad * (self.top - side.log_z).exp()).to(dtype)
        else:
            logit = self.logit if side.scale is None else self.logit * side.scale.to(dtype)
            share = _exp(logit - side.log_z.to(dtype)).mul_(side.grad.to(dtype))
        if self.same is None:
            return share
        kept = (side.keep * share).where(side.keep != 0, 0)  # not 0 times a decoupled share, perhaps infinite
        return torch.where(self.same, (kept - side.target).to(share.dtype), share)


class Direction:
    """One direction's sums while they grow, then its losses and its side; all in ``dtype``, [N].

    ``positive`` holds the positives' logits, or None when they are found by label in the tiles. ``offset`` is
    what the negatives' logits are lowered by, see :class:`Contrast`: once the sums are complete, and in the
    side by a larger ``log_z``, which ``keep`` takes back for the labelled positives. ``scale`` is what each
    anchor's logits are multiplied by, or None.
    """

    offset: Tensor | None = None
    tally: Tally | None = None  # of the statistics, if they are wanted

    def __init__(
        self,
        kind: type[OddsTile] | type[PlainTile] | type[SoftmaxTile],
        count: Tensor,
        positive: Tensor | None,
        weights: Tensor | None,
        dtype: torch.dtype,
        decoupled: bool = False,
        scale: Tensor | None = None,
    ) -> None:
        self.decoupled, self.scale = decoupled, scale
        self.scale_gradient: Tensor | None = None  # of anchors that another rank holds
        self.kind, self.count = kind, count.to(dtype)
        self.positive = positive if positive is None or scale is None else positive * scale
        zeros = torch.zeros(count.shape, dtype=dtype, device=count.device)
        self.negatives = torch.full_like(zeros, kind.empty_sum)
        self.labelled = torch.full_like(zeros, kind.empty_sum)
        self.logits, self.losses = zeros.clone(), zeros.clone()
        grad = zeros.clone() if weights is None else weights.to(dtype) * (count > 0)
        self.side = Side(grad, zeros.clone(), zeros.clone(), zeros.clone(), scale)

    def add(self, tile: OddsTile | PlainTile | SoftmaxTile, part: slice, dim: int) -> None:
        among = None if tile.same is None else ~tile.same
        scale = None if self.scale is None else self.scale[part]
        self.negatives[part] = tile.add(self.negatives[part], dim, among, scale)
        if tile.same is not None:
            self.labelled[part] = tile.add(self.labelled[part], dim, tile.same, scale)
            logits = tile.logits(tile.same).sum(dim)
            self.logits[part] += logits if scale is None else logits * scale

    def close(self, part: slice) -> None:
        """Losses and side of the anchors whose sums are complete.

        With S and W the summed weights of negatives and positives, the loss is
        log(1 + S/W) + log W - (mean logit of the positives): exact when S/W is tiny. Decoupled it is
        log S - (mean logit of the positives).
        """
        count, log_s = self.count[part], self.kind.log(self.negatives[part])
        offset = None if self.offset is None else self.offset[part]
        log_s = log_s if offset is None else log_s - offset
        self._close(part, count, log_s)
        if offset is not None:
            self.side.log_z[part] += offset
            self.side.keep[part] *= offset.exp()

    def _close(self, part: slice, count: Tensor, log_s: Tensor) -> None:
        if self.decoupled:
            target = self.logits[part] / count if self.positive is None else self.positive[part]
            some = (count > 0) & (log_s != -torch.inf)
            self.losses[part] = (log_s - target).where(some, 0)
            self.side.log_z[part] = log_s.where(some, torch.inf)
            self.side.target[part] = self.side.grad[part] * (1 / count).where(some, 0)
            return
        log_w = self.kind.log(self.labelled[part]) if self.positive is None else self.positive[part]
        log_z = torch.logaddexp(log_s, log_w)
        loss = torch.logaddexp(torch.zeros_like(log_s), log_s - log_w)
        if self.positive is None:  # one positive: log W is its logit, but for rounding
            loss += torch.where(count == 1, 0, log_w - self.logits[part] / count)
        share = torch.where(count == 1, (log_s - log_z).exp(), 1 / count)
        some = count > 0
        self.losses[part] = loss.where(some, 0)
        self.side.log_z[part] = log_z.where(some, torch.inf)  # or exp(logit) times its grad, 0, is NaN
        self.side.keep[part] = (count != 1).to(log_z.dtype)
        self.side.target[part] = self.side.grad[part] * share.where(some, 0)


def tile_kind(link: Link, learns: bool = False) -> type[OddsTile] | type[PlainTile] | type[SoftmaxTile]:
    """OddsTile for the log-odds at gain 1, with nothing to learn; PlainTile for a formula with weights in
    range; SoftmaxTile for the rest, and for a scale on another device than the CPU.

    The log-odds of pairs that are not near are within 5.3 bits, those of all pairs within log2(2/delta + 1).
    """
    formula = link.formula
    if formula is None:
        return SoftmaxTile
    scale = link.formula_scale()
    if isinstance(scale, Tensor):
        if not scale.is_cpu or scale.dim():  # to read another device's scalar is to wait for the device
            return SoftmaxTile
        scale = scale.item()
    if formula.kind == "linear":
        return PlainTile if abs(scale) <= FLOAT32_BITS * LN2 else SoftmaxTile
    if scale == 1 and not learns:
        return OddsTile
    delta, gain = formula.resolution, abs(scale)
    plain = gain * math.log2(2 / NEAR_GAP) <= FLOAT32_BITS and delta > 0
    return PlainTile if plain and gain * math.log2(2 / delta + 1) <= FLOAT64_BITS else SoftmaxTile


def at_gain_one(link: Link) -> bool:
    """Whether it is the log-odds at a gain that is known to be 1, without a look at a tensor."""
    scale = None if link.formula is None or link.formula.kind != "log-odds" else link.formula_scale()
    return not isinstance(scale, Tensor) and scale == 1


def parameters(link: Link) -> list[Tensor]:
    """A link's parameters; a copy by nn.DataParallel has plain tensors in their place."""
    copies = [x for part in link.modules() for x in getattr(part, "_former_parameters", {}).values()]
    return [*link.parameters(), *copies]


class Learned(NamedTuple):
    """The link that tiles are computed with, what it is differentiated with respect to, and the tensors of
    torch's graph that get these derivatives.

    A link with a formula learns by its scale alone, of which the tiles have a copy.
    """

    link: Link
    params: list[Tensor]
    connected: list[Tensor]


def learned(link: Link, like: Tensor) -> Learned:
    """For embeddings on the device of ``like``. Raises if a link without a formula has no parameter and yet
    its logit requires a gradient, which a plain tensor would silently not get."""
    formula = link.formula
    if formula is not None:
        scale = link.formula_scale()
        if not isinstance(scale, Tensor):
            return Learned(link, [], [])
        copied = scale.detach().clone()
        if not (scale.requires_grad and torch.is_grad_enabled()):
            return Learned(from_formula(formula, copied), [], [])
        return Learned(from_formula(formula, copied.requires_grad_()), [copied], [scale])
    found = [p for p in parameters(link) if p.requires_grad]
    if not found and torch.is_grad_enabled():
        zero, one = torch.arange(2.0, dtype=torch.float32, device=like.device)
        if link.logit(zero, one, one).requires_grad:
            raise ValueError(
                f"link must have all that it learns as its parameters, got a {type(link).__name__} with "
                'another tensor that requires a gradient; make that a parameter, or use backend="reference".'
            )
    return Learned(link, found, found)


def link_gradient(
    link: Link, similarity: tuple[Tensor, Tensor, Tensor], outer: Tensor, params: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The derivatives of sum(outer * logit) with respect to the link's parameters or its formula's scale."""
    if link.formula is not None:  # also within an operator, where torch records no graph
        base = from_formula(link.formula, outer.new_ones(())).logit(*similarity)
        return [(outer * base).sum()]
    with torch.enable_grad():
        logit = link.logit(*similarity)
        if not logit.requires_grad:  # no parameter has a part in it
            return [None] * len(params)
        return torch.autograd.grad(logit, list(params), outer.to(logit.dtype), allow_unused=True)


@functools.cache
def keep_freed_memory() -> None:
    """Allocates and frees 32 MiB, the most by which glibc raises its threshold: from then on it keeps freed
    tiles for the next ones. Getting them from the operating system each time took a third of the time."""
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


def _exp(x: Tensor) -> Tensor:
    """In place, by exp2, which takes half the time of exp on a CPU."""
    return x.mul_(1 / math.log(2)).exp2_()


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]
