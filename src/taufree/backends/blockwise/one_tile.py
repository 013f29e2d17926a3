"""A matrix of one tile, as small batches have it: the same arithmetic in a third of the calls.

All rows are normalised together, and there are no strips, no parts and no second visit. The smallest matrices
are wholly in float64, where a call takes longer than its arithmetic: a plain product is then exact enough for
every pair, so that positives stay in the matrix, and labels are possible. What is rare goes to
:class:`.engine.BlockwiseEngine`: negatives of one anchor each, rows that are zero, very short or very long,
and negatives that nearly agree with their anchor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.backends.blockwise.tiles import NEAR_GAP, Direction, LeftOut, Side, link_gradient, near, tile_kind
from taufree.backends.numerics import shortest
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link

LENGTHS = (1e-150, 1e150)  # of rows whose squares are in float64's range
FLOAT64_PRODUCT = 2**18  # multiplications of a product that float64 does in the time of a few calls
FLOAT64_GAP = 1e-6  # the 1 - c that a plain product in float64 gives to more digits than float32 has


def fits(contrast: Contrast, pairs: int) -> bool:
    """Whether it is a matrix of at most so many pairs, of a kind that :func:`run` has.

    Some rows it still leaves to the engine.
    """
    if contrast.own_negatives is not None or contrast.positives is not None:
        return False
    if contrast.labels is not None and not _in_float64(contrast):
        return False
    may_be_alone = contrast.ids is not None or contrast.n <= 2  # without negatives
    if contrast.decoupled and contrast.labels is None and may_be_alone:
        return False
    if contrast.queue is not None and (contrast.symmetric or contrast.ids is not None):
        return False
    return 0 < contrast.n * contrast.candidate_count <= pairs


def _in_float64(contrast: Contrast) -> bool:
    """Whether the whole matrix is computed in float64 for results in float32."""
    device, size = contrast.anchors.device, contrast.anchors.numel() * contrast.candidate_count
    if not contrast.in_batch or device.type != "cpu" or size > FLOAT64_PRODUCT:
        return False
    return result_dtype(*contrast.inputs) != wide_dtype(device)


def run(
    contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], params: Sequence[Tensor],
    weights: Tensor | float | None,
) -> tuple[Tensor, list[Tensor | None]] | None:  # fmt: skip
    """Losses and gradients as :meth:`.engine.BlockwiseEngine.run` gives them; None where it must be asked."""
    n, views, in_float64 = contrast.n, contrast.keys is None, _in_float64(contrast)
    given = [x for x in inputs[:3] if x is not None]
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

    first = 0 if views else n if contrast.in_batch else 2 * n
    u, candidates, kind = unit[:n], unit[first:], tile_kind(link)
    offset = kind.offset(link)
    gap = torch.addmm(unit.new_full((1,), 1 + offset), u, candidates.T, alpha=-1)
    # The pairs of each row with its positive; of two views the second half has those of the first.
    pairs, positive = contrast.shift if views else n, None
    if contrast.labels is None:
        a, b = exact[:pairs], exact[pairs : 2 * pairs]
        positive = _in_matrix(gap, contrast.shift, offset) if in_float64 else _by_chords(a, b)
    left_out = LeftOut.of(contrast, range(n), range(n)) if contrast.in_batch else None
    if left_out is not None:
        left_out.fill(gap, 1)
    limit = _limit(link) if in_float64 else NEAR_GAP
    if limit > 0 and (near(gap, offset, limit) or (in_float64 and positive and near(positive[1], 0, limit))):
        return None
    same = None if positive else contrast.same_label(range(n), range(n))
    tile = kind(link, gap, None, left_out, same, bool(params))

    if weights is not None:
        weights = weights.to(wide) if isinstance(weights, Tensor) else exact.new_full((1,), weights)
    if positive is None:
        rows = Direction(kind, contrast.positive_count(), None, weights, wide, contrast.decoupled)
        rows.add(tile, slice(0, n), 1)
        rows.close(slice(0, n))
        losses, sides = rows.losses, [rows.side.at(range(n), 0)]
    else:
        logit = link.logit(*positive)
        if views:
            logit = logit.repeat(2)
        dims = (1, 0) if contrast.symmetric else (1,)
        sums = [tile.sum(dim) for dim in dims]
        log_s = kind.log((torch.stack(sums) if len(sums) > 1 else sums[0]).to(wide))
        excess = log_s - logit
        log_z = log_s if contrast.decoupled else torch.logaddexp(log_s, logit)
        # The threshold: softplus is exact below, and exp overflows at 709.
        losses = excess if contrast.decoupled else softplus(excess, threshold=700)
        losses = losses.mean(0) if len(sums) > 1 else losses
    if weights is None:
        return losses, []

    if positive is not None:
        grad = weights / len(sums) if len(sums) > 1 else weights
        parts = log_z.unbind() if len(sums) > 1 else (log_z,)
        sides = [
            Side(grad.unsqueeze(dim), z.unsqueeze(dim), grad, grad) for dim, z in zip(dims, parts, strict=True)
        ]
    slopes, learned = tile.coefficients(sides, params)
    found = [torch.zeros_like(p, dtype=wide) for p in params]
    if positive is not None:
        missed = -grad * (torch.ones_like(excess) if contrast.decoupled else excess.sigmoid_())
        if len(sums) > 1:
            missed = missed.sum(0)
        if views:  # dL/dlogit of the pairs
            missed = missed[:pairs] + missed[pairs:]
        pull = missed * link.slope(*positive)
        if params:
            _add(found, link_gradient(link, positive, missed, params))
        if in_float64:
            slopes.diagonal(contrast.shift).copy_(pull)
    _add(found, learned)

    back = slopes.T @ u
    out = back.addmm_(slopes, unit) if views else torch.cat([slopes @ candidates, back])
    if not views and not contrast.in_batch:  # the keys are positives alone
        out = torch.cat([out[:n], out.new_zeros(n, out.shape[1]), out[n:]])
    if positive is not None and not in_float64:
        pull = pull[:, None]
        sign = torch.ones_like(pull).copysign_(positive[0][:, None])  # never 0, also at right angles
        # b - a for b (b + a if they are opposite): the same but for the part along a, and exact where they
        # agree.
        apart = torch.addcmul(b, a, sign, value=-1)
        out[:pairs] += apart * pull
        out[pairs : 2 * pairs] -= apart.mul_(sign * pull)
    radial = torch.linalg.vecdot(out, unit).unsqueeze(-1)
    out = out.addcmul_(unit, radial, value=-1).mul_(inverse).to(dtype)
    split = iter(torch.split(out, [len(x) for x in given]))
    return losses, [*(None if x is None else next(split) for x in inputs[:4]), *found]


def _in_matrix(gap: Tensor, shift: int, offset: float) -> tuple[Tensor, Tensor, Tensor]:
    """c, 1 - c and 1 + c of the positives, from a matrix of 1 - c + offset in float64."""
    at = gap.diagonal(shift) - offset
    return 1 - at, at, 2 - at


def _by_chords(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of unit rows, exact at any distance."""
    minus, plus = a - b, a + b
    gap, rise = torch.linalg.vecdot(minus, minus).div_(2), torch.linalg.vecdot(plus, plus).div_(2)
    return (rise - gap).div_(2), gap, rise


def _limit(link: Link) -> float:
    """The 1 - c below which a plain product in float64 does not suffice; none of at most 0 does not."""
    formula = link.formula
    if formula is None:
        return FLOAT64_GAP
    return 0.0 if formula.kind == "linear" else FLOAT64_GAP - formula.resolution


def _add(totals: list[Tensor], parts: Sequence[Tensor | None]) -> None:
    for total, part in zip(totals, parts, strict=False):
        if part is not None:
            total += part
