"""A matrix of one tile, as small batches have it: the same arithmetic in a third of the calls.

All rows are normalised together, and there are no strips, no parts and no second visit. The smallest matrices
are wholly in float64, where a call takes longer than its arithmetic: a plain product is then exact enough for
every pair, so that positives stay in the matrix, and labels are possible. What is rare goes to
:class:`.engine.BlockwiseEngine`: negatives of one anchor each, hardness, statistics, rows that are zero, very
short or very long, and negatives that nearly agree with their anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.backends.autograd import transformed
from taufree.backends.blockwise.directions import Direction, Side
from taufree.backends.blockwise.formulas import offset_of
from taufree.backends.blockwise.learned import link_gradient
from taufree.backends.blockwise.left_out import LeftOut
from taufree.backends.blockwise.tiles import near, tile_kind
from taufree.backends.numerics import shortest
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link

LENGTHS = (1e-150, 1e150)  # of rows whose squares are in float64's range
MAX_PAIRS = 2**18  # of a matrix that a link measures
FLOAT64_PRODUCT = 2**19  # multiplications of a product that float64 does in the time of a few calls
FLOAT64_GAP = 1e-6  # the 1 - c that a plain product in float64 gives to more digits than float32 has


def fits(contrast: Contrast, link: Link, pairs: int) -> bool:
    """Whether it is a matrix of at most so many pairs, of a kind that :func:`run` has.

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
    return 0 < contrast.n * contrast.candidate_count <= pairs


def _in_float64(contrast: Contrast, link: Link) -> bool:
    """Whether the whole matrix is computed in float64 for results in float32.

    The link must be the same for all 1 - c below ``FLOAT64_GAP``, as far as float32 can tell.
    """
    device, size = contrast.anchors.device, contrast.anchors.numel() * contrast.candidate_count
    if not contrast.in_batch or device.type != "cpu" or size > FLOAT64_PRODUCT:
        return False
    formula = link.formula
    smooth = formula is not None and (formula.kind == "linear" or formula.resolution >= FLOAT64_GAP)
    return smooth and result_dtype(*contrast.inputs) != wide_dtype(device)


@dataclass
class Matrix:
    """All pairs of a contrast, anchors by candidates.

    A link that measures the batch makes it before the loss does; the loss overwrites ``gap``.

    Attributes:
        gap: [N, M], 1 - c + :func:`.tiles.offset_of`; 1 where a pair is ``left_out``, unless ``positive`` is
            None.
        positive: c, 1 - c and 1 + c of each row with its positive, exactly; of two views those of the first
            alone. None where ``gap`` has them to as many digits as float32.
        exact, unit: the unit rows of anchors, keys and queue, in the widest dtype and in that of ``gap``.
        inverse: [rows, 1], what made them unit rows.
    """

    gap: Tensor
    positive: tuple[Tensor, Tensor, Tensor] | None
    left_out: LeftOut | None
    exact: Tensor
    unit: Tensor
    inverse: Tensor

    def gaps(self, contrast: Contrast, offset: float) -> tuple[Tensor, Tensor]:
        """1 - c [N, M], whatever it is of the pairs left out, and 1 - c of the positives [N]."""
        gap = (self.gap - offset).clamp_(0, 2)
        found = gap.diagonal(contrast.shift) if self.positive is None else self.positive[1].to(gap.dtype)
        return gap, found.repeat(2) if contrast.keys is None else found


def measurable(contrast: Contrast) -> bool:
    """Whether all anchors have one positive and as many negatives each, and few enough for one matrix."""
    plain = contrast.in_batch and contrast.groups is None and contrast.own_negatives is None
    plain = plain and contrast.bias is None and contrast.anchors.is_cpu
    # torch.compile would compile again for larger batches.
    if not plain or torch.compiler.is_compiling() or transformed():
        return False
    return contrast.candidate_count > 2 and contrast.n * contrast.candidate_count <= MAX_PAIRS


def matrix_of(contrast: Contrast, link: Link) -> Matrix | None:
    """The matrix, as exact as a link of this formula needs it; None for rows that are left to the engine."""
    n, views, in_float64 = contrast.n, contrast.keys is None, _in_float64(contrast, link)
    given = [x.detach() for x in contrast.inputs[:3] if x is not None]
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

    first, offset = 0 if views else n if contrast.in_batch else 2 * n, offset_of(link)
    gap = torch.addmm(unit.new_full((1,), 1 + offset), unit[:n], unit[first:].T, alpha=-1)
    left_out = LeftOut.of(contrast, range(n), range(n)) if contrast.in_batch else None
    positive = None
    if not in_float64:
        if left_out is not None:
            left_out.fill(gap, 1)
        if near(gap, offset):
            return None
        if contrast.labels is None:
            pairs = contrast.shift if views else n
            positive = _chords(exact[:pairs], exact[pairs : 2 * pairs])
    return Matrix(gap, positive, left_out, exact, unit, inverse)


@torch.no_grad()
def run(
    contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], params: Sequence[Tensor],
    weights: Tensor | float | None,
) -> tuple[Tensor, list[Tensor | None]] | None:  # fmt: skip
    """Losses and gradients as :meth:`.engine.BlockwiseEngine.run` gives them; None where it must be asked."""
    matrix: Matrix | None = contrast.matrix or matrix_of(contrast, link)
    if matrix is None:
        return None
    n, views, labelled, both = (
        contrast.n,
        contrast.keys is None,
        contrast.labels is not None,
        contrast.symmetric,
    )
    exact, unit, positive = matrix.exact, matrix.unit, matrix.positive
    given = [x for x in inputs[:3] if x is not None]
    dtype, wide = result_dtype(*given), exact.dtype
    kind = tile_kind(link, bool(params))
    same = contrast.same_label(range(n), range(n)) if labelled else None
    inside = contrast.shift if positive is None and not labelled else None  # the diagonal of the positives
    tile = kind(link, matrix.gap, None, matrix.left_out, same, bool(params), inside)

    if weights is not None:
        weights = weights.to(wide) if isinstance(weights, Tensor) else exact.new_full((1,), weights)
    if labelled:
        rows = Direction(kind, contrast.positive_count(), None, weights, wide, contrast.decoupled)
        rows.add(tile, slice(0, n), 1)
        rows.close(slice(0, n))
        if weights is None:
            return rows.losses, []
        slopes, found = tile.coefficients([rows.side.at(range(n), 0)], params)
        losses = rows.losses
    else:
        # The pairs of each row with its positive; of two views the second half has those of the first.
        pairs = contrast.shift if views else n
        if positive is not None:
            logit = link.logit(*positive)
        else:
            assert tile.positives is not None
            logit, slope = tile.positives
        every = logit.repeat(2) if views else logit
        log_s = kind.log((torch.stack([tile.sum(1), tile.sum(0)]) if both else tile.sum(1)).to(wide))
        log_z, losses = log_s, log_s - every
        if not contrast.decoupled:
            log_z = torch.logaddexp(log_s, every)
            missed = losses.sigmoid()
            losses = softplus(losses, threshold=700)  # exact below, and exp overflows at 709
        losses = losses.mean(0) if both else losses
        if weights is None:
            return losses, []

        grad = weights / 2 if both else weights
        sides = [
            Side(grad.unsqueeze(dim), z.unsqueeze(dim), grad, grad)
            for dim, z in zip((1, 0), log_z if both else (log_z,), strict=False)
        ]
        slopes, found = tile.coefficients(sides, params)
        missed = grad.expand_as(log_z) if contrast.decoupled else missed.mul_(grad)
        missed = missed.sum(0) if both else missed
        missed = missed[:pairs] + missed[pairs:] if views else missed  # minus dL/dlogit of the pairs
        if positive is None:
            slopes.diagonal(contrast.shift).copy_(missed * slope).neg_()
            more: Sequence[Tensor | None] = [-(missed * logit).sum() / p for p in params]  # the scale alone
        else:
            more = link_gradient(link, positive, -missed, params) if params else ()
            pull = (missed * link.slope(*positive)).neg_()[:, None]
        found = [_sum(parts) for parts in zip(found, more, strict=True)]

    back = slopes.T @ unit[:n]
    out = back.addmm_(slopes, unit) if views else torch.cat([slopes @ unit[-slopes.shape[1] :], back])
    if not views and not contrast.in_batch:  # the keys are positives alone
        out = torch.cat([out[:n], out.new_zeros(n, out.shape[1]), out[n:]])
    if positive is not None:
        a, b = exact[:pairs], exact[pairs : 2 * pairs]
        sign = torch.ones_like(pull).copysign_(positive[0][:, None])  # never 0, also at right angles
        # b - a for b (b + a if they are opposite): the same but for the part along a, and exact where they
        # agree.
        apart = torch.addcmul(b, a, sign, value=-1)
        out[:pairs] += apart * pull
        out[pairs : 2 * pairs] -= apart.mul_(sign * pull)
    radial = torch.linalg.vecdot(out, unit).unsqueeze(-1)
    out = out.addcmul_(unit, radial, value=-1).mul_(matrix.inverse).to(dtype)
    split = iter(torch.split(out, [len(x) for x in given]))
    return losses, [*(None if x is None else next(split) for x in inputs[:4]), *found]


def _chords(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, 1 - c and 1 + c of unit rows, exact at any distance."""
    minus, plus = a - b, a + b
    gap, rise = torch.linalg.vecdot(minus, minus).div_(2), torch.linalg.vecdot(plus, plus).div_(2)
    return (rise - gap).div_(2), gap, rise


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return sum(there[1:], there[0]) if there else None
