"""Kernels that follow a fitted gain: what its Newton step needs to know of some anchors, and the step itself.

The formulas are those of backends/likelihood.py and links/fitted.py, where they are explained; here too the
anchors' mean is subtracted from all rows.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

from taufree.links import fitted

LN2 = tl.constexpr(0.6931471805599453)
ROUNDING, FAR_IN_A_ROW = tl.constexpr(fitted.ROUNDING), tl.constexpr(float(fitted.FAR_IN_A_ROW))
# What is known of an anchor's logits among some of its candidates, in the order of ``parts``: the largest,
# scaled; the sum of exp(scaled logit - largest); mean and variance of the logits under that weight; the
# positive's logit; the sum of the negatives' logits, and how many these are.
PARTS = 7


@triton.jit
def _lengths(x, row, here, D: tl.constexpr, least, ROWS: tl.constexpr, BK: tl.constexpr):
    """What makes some rows unit rows, and 1 - |u|^2 of those too short, in float64."""
    square = tl.zeros((ROWS,), tl.float64)
    for k in range(0, D, BK):
        value = _load(x, row, here, k, D, BK)
        square += tl.sum(value * value, 1)
    length = tl.sqrt(square)
    short = length < least
    inverse = tl.where(square == 0, 0.0, 1.0 / tl.where(short, least, length))
    return inverse, tl.where(short, 1.0 - (length / least) * (length / least), 0.0)


@triton.jit
def _load(x, row, here, k, D: tl.constexpr, BK: tl.constexpr):
    d = k + tl.arange(0, BK)
    found = tl.load(x + row[:, None] * D + d[None, :], here[:, None] & (d < D)[None, :], 0.0)
    return found.to(tl.float32).to(tl.float64)


@triton.jit(
    do_not_specialize=("N", "sample", "shift", "programs"),
    do_not_specialize_on_alignment=("ids", "scale", "parts"),
)
def sample_logits(x, y, ids, scale, parts, x_least, y_least, N, sample, shift, programs, delta,
                  D: tl.constexpr, LINEAR: tl.constexpr, ALONE: tl.constexpr, IDS: tl.constexpr,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Writes parts [PARTS, programs, BM] of ``sample`` anchors, at most BM, spread evenly over x [N, D].

    Each program has all anchors and every ``programs``-th block of BN candidates from y, or from x itself if
    ALONE. Logits are those at scale 1, of LINEAR links without a constant.
    """
    first, place = tl.program_id(0), tl.arange(0, BM)
    here = place < sample
    row = (place.to(tl.int64) * N) // sample
    target = (row + shift) % N
    inverse, deficit = _lengths(x, row, here, D, x_least, BM, BK)
    times = tl.load(scale).to(tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    z, mean, variance = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    own, others, count = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    for block in range(first, tl.cdiv(N, BN), programs):
        j = (block * BN + tl.arange(0, BN)).to(tl.int64)
        inside = j < N
        far_inverse, far_deficit = _lengths(y, j, inside, D, y_least, BN, BK)
        product = tl.zeros((BM, BN), tl.float32)
        square, far_square = tl.zeros((BM,), tl.float32), tl.zeros((BN,), tl.float32)
        for k in range(0, D, BK):
            u = _load(x, row, here, k, D, BK) * inverse[:, None]
            origin = tl.sum(u, 0) / sample
            u = (u - origin[None, :]).to(tl.float32)
            v = (_load(y, j, inside, k, D, BK) * far_inverse[:, None] - origin[None, :]).to(tl.float32)
            product = tl.dot(u, tl.trans(v), product, input_precision="tf32x3")
            square += tl.sum(u * u, 1)
            far_square += tl.sum(v * v, 1)
        square += deficit.to(tl.float32)
        far_square += far_deficit.to(tl.float32)
        gap = (square[:, None] + far_square[None, :]) / 2 - product
        # NaN stays.
        gap = tl.where(gap > 2.0, 2.0, tl.where(gap < 0.0, 0.0, gap))
        counted, positive = here[:, None] & inside[None, :], target[:, None] == j[None, :]
        if ALONE:
            counted &= row[:, None] != j[None, :]
        if IDS:
            apart = tl.load(ids + row, here, 0)[:, None] != tl.load(ids + j, inside, 0)[None, :]
            counted &= apart | positive
        logit = -gap if LINEAR else tl.log(((2.0 - gap) + delta) / (gap + delta))
        logit = tl.where(counted, logit, 0.0)
        scaled = tl.where(counted, times * logit, float("-inf"))
        now = tl.maximum(top, tl.max(scaled, 1))
        base = tl.where(now == float("-inf"), 0.0, now)
        weight = tl.exp(scaled - base[:, None])
        some = tl.sum(weight, 1)
        share = weight / tl.where(some == 0, 1.0, some)[:, None]
        block_mean = tl.sum(share * logit, 1)
        off = logit - block_mean[:, None]
        block_variance = tl.sum(share * off * off, 1)
        before = z * tl.exp(top - base)
        z = before + some
        part = some / tl.where(z == 0, 1.0, z)
        apart_by = block_mean - mean
        variance += part * (block_variance - variance) + part * (1.0 - part) * apart_by * apart_by
        mean += part * apart_by
        top = now
        negative = counted & (target[:, None] != j[None, :])
        own += tl.sum(tl.where(counted & positive, logit, 0.0), 1)
        others += tl.sum(tl.where(negative, logit, 0.0), 1)
        count += tl.sum(negative.to(tl.float32), 1)
    at, stride = parts + first * BM + place, programs * BM
    tl.store(at, top)
    tl.store(at + stride, z)
    tl.store(at + 2 * stride, mean)
    tl.store(at + 3 * stride, variance)
    tl.store(at + 4 * stride, own)
    tl.store(at + 5 * stride, others)
    tl.store(at + 6 * stride, count)


@triton.jit(
    do_not_specialize=("N", "sample", "programs"),
    do_not_specialize_on_alignment=("parts", "scale", "log_gain", "curvature", "far_in_a_row"),
)
def newton(parts, scale, log_gain, curvature, far_in_a_row, N, sample, programs, largest, most,
           MAX_PROGRAMS: tl.constexpr, BM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One step of ``links.fitted.Fitted``, in place, from the ``parts`` of ``sample`` of N anchors.

    ``largest`` is the logit of c = 1 at scale 1, ``most`` the largest log_gain.
    """
    old, times = tl.load(log_gain).to(tl.float64), tl.load(scale).to(tl.float64)
    anchors, gradient, spread = 0.0 * old, 0.0 * old, 0.0 * old
    smoothing = 1.0 / (N.to(tl.float64) + 2.0)
    program, stride = tl.arange(0, MAX_PROGRAMS), programs * BM
    for first in range(0, BM, BLOCK):
        place = first + tl.arange(0, BLOCK)
        at = parts + program[:, None] * BM + place[None, :]
        here = (program < programs)[:, None] & (place < sample)[None, :]
        tops = tl.load(at, here, float("-inf"))
        top = tl.max(tops, 0)
        top = tl.where(top == float("-inf"), 0.0, top)
        weight = (tl.load(at + stride, here, 0.0) * tl.exp(tops - top[None, :])).to(tl.float64)
        means = tl.load(at + 2 * stride, here, 0.0).to(tl.float64)
        variances = tl.load(at + 3 * stride, here, 0.0).to(tl.float64)
        own = tl.sum(tl.load(at + 4 * stride, here, 0.0).to(tl.float64), 0)
        others = tl.sum(tl.load(at + 5 * stride, here, 0.0).to(tl.float64), 0)
        count = tl.sum(tl.load(at + 6 * stride, here, 0.0).to(tl.float64), 0)
        share = weight / tl.sum(weight, 0)[None, :]
        mean = tl.sum(share * means, 0)
        off = means - mean[None, :]
        variance = tl.sum(share * (variances + off * off), 0)
        some = count > 0
        target = (1.0 - smoothing) * own + smoothing * others / tl.where(some, count, 1.0)
        gradient += tl.sum(tl.where(some, mean - target, 0.0), 0)
        spread += tl.sum(tl.where(some, variance, 0.0), 0)
        anchors += tl.sum(some.to(tl.float64), 0)
    gradient, variance = gradient * times / anchors, spread * times * times / anchors

    past, far = tl.load(curvature).to(tl.float64), tl.load(far_in_a_row).to(tl.float64)
    too_steep = tl.where(gradient < 0, 0.0, gradient)
    size = tl.abs(gradient)
    side = tl.where(gradient > 0, 1.0, -1.0) * tl.where(size > LN2 * (variance + too_steep), 1.0, 0.0)
    far_now = side + tl.where(far * side > 0, far, 0.0)
    now = tl.where(tl.abs(far_now) < FAR_IN_A_ROW, past, 0.0) + variance + 2.0 * too_steep
    step = gradient / now
    least = ROUNDING * times * largest
    ignored = (step != step) | (now == float("inf"))
    ignored |= (size <= least) & (variance <= least * times * largest)
    step = tl.where(step > LN2, LN2, tl.where(step < -LN2, -LN2, step))
    moved = tl.where(old - step < 0, 0.0, tl.where(old - step > most, most, old - step))
    if ignored == 0:
        tl.store(log_gain, moved)
        tl.store(curvature, now)
        tl.store(far_in_a_row, far_now)
