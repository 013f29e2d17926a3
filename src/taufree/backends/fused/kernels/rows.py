"""Kernels with one program a row (or a few anchors): unit rows, positives, losses, gradients."""

# ruff: noqa: SIM109
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

from taufree.backends.fused.kernels.arithmetic import EXP, ODDS, log1p, logit_of, slope_of

LN2, LOG2E64 = tl.constexpr(0.6931471805599453), tl.constexpr(1.4426950408889634)


@triton.jit
def _row(x, stats, i, d, D):
    """Row i of x as a unit row, in float64."""
    return tl.load(x + i * D + d, d < D, 0.0).to(tl.float32).to(tl.float64) * tl.load(stats + i)


@triton.jit
def _unit_row(x, unit, stats, i, d, N, D, least, PAD: tl.constexpr, SPLIT: tl.constexpr):
    """Writes row i of ``unit`` and ``stats``; the unit row in float64, and its deficit."""
    row = tl.load(x + i * D + d, d < D, 0.0).to(tl.float32).to(tl.float64)
    square = tl.sum(row * row, 0)
    length = tl.sqrt(square)
    short = length < least
    inverse = tl.where(square == 0, 0.0, 1.0 / tl.where(short, least, length))
    deficit = tl.where(short, 1.0 - (length / least) * (length / least), 0.0)
    out = unit + i * (PAD * (2 if SPLIT else 1)) + d
    tl.store(stats + i, inverse.to(tl.float32))
    tl.store(stats + N + i, tl.where(short, 0.0, 1.0))
    if SPLIT:
        row = row * inverse
        coarse = tl.floor(row * 2048.0 + 0.5) * (1.0 / 2048.0)
        rest = (row - coarse).to(tl.float32).to(unit.dtype.element_ty)
        fine = rest.to(tl.float32).to(tl.float64)
        tl.store(out, coarse.to(tl.float32).to(unit.dtype.element_ty), d < PAD)
        tl.store(out + PAD, rest, d < PAD)
        tl.store(stats + 2 * N + i, inverse.to(tl.float32))
        tl.store(stats + 3 * N + i, (tl.sum(coarse * coarse, 0) / 2).to(tl.float32))
        tl.store(stats + 4 * N + i, ((tl.sum(fine * (2 * coarse + fine), 0) + deficit) / 2).to(tl.float32))
    else:
        power = (inverse.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
        tl.store(out, (row * power).to(tl.float32).to(unit.dtype.element_ty), d < PAD)
        tl.store(stats + 2 * N + i, power.to(tl.float32))
        tl.store(stats + 3 * N + i, (inverse / tl.where(power == 0, 1.0, power)).to(tl.float32))
        row = row * inverse
    return row, deficit


@triton.jit
def _chord(positive, sums, i, N, u, v, deficit):
    tl.store(sums + i, 0.0)
    tl.store(sums + N + i, 0.0)
    tl.store(positive + i, (tl.sum((u - v) * (u - v), 0) + deficit) / 2)
    tl.store(positive + N + i, (tl.sum((u + v) * (u + v), 0) + deficit) / 2)


@triton.jit(do_not_specialize=("N",), do_not_specialize_on_alignment=("stats",))
def unit_rows(x, unit, stats, N, least, D: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """The rows of x [N, D] as tiles need them, to unit [N, PAD] or, in split mode, [N, 2 PAD].

    Half-precision rows are only scaled by a power of two, to a length in (1/2, 1]: nothing is rounded.
    In split mode a unit row is (coarse, rest): a multiple of 2^-11, whose products and sums are exact in
    float32, and what is missing, to 2^-24. stats [5, N] gets, by row:

    0. what makes x a unit row;
    1. 1 where that succeeds, 0 for rows too short, see precision.lengths;
    2. what takes a gradient of ``unit`` back to x: the power of two, or (split) the same as 0;
    3. what makes ``unit`` a unit row, or (split) |coarse|^2 / 2;
    4. (split) half the difference of |coarse|^2 to the squared length, which is 1 unless a row is too short.
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    _unit_row(x, unit, stats, i, d, N, D, least, PAD, SPLIT)


@triton.jit(
    do_not_specialize=("N",), do_not_specialize_on_alignment=("x_stats", "y_stats", "positive", "sums")
)
def unit_pairs(x, x_unit, x_stats, x_least, y, y_unit, y_stats, y_least, positive, sums, N,
               D: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """unit_rows of x and of y and the chords of row i with row i, in one launch."""
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    u, u_deficit = _unit_row(x, x_unit, x_stats, i, d, N, D, x_least, PAD, SPLIT)
    v, v_deficit = _unit_row(y, y_unit, y_stats, i, d, N, D, y_least, PAD, SPLIT)
    _chord(positive, sums, i, N, u, v, u_deficit + v_deficit)


@triton.jit(
    do_not_specialize=("N", "shift"),
    do_not_specialize_on_alignment=("x_stats", "y_stats", "positive", "sums"),
)
def chords(x, y, x_stats, y_stats, positive, sums, N, shift, D: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    """Exactly 1 - c and 1 + c of each row of x and its positive, row i + shift of y, to positive [3, N].

    And zeros to sums [2, N], which the tiles add to.
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    j = (i + shift) % N
    u, v = _row(x, x_stats, i, d, D), _row(y, y_stats, j, d, D)
    deficit = tl.where(tl.load(x_stats + N + i) == 0, 1.0 - tl.sum(u * u, 0), 0.0)
    deficit += tl.where(tl.load(y_stats + N + j) == 0, 1.0 - tl.sum(v * v, 0), 0.0)
    _chord(positive, sums, i, N, u, v, deficit)


@triton.jit
def _as_rounded(missed, normaliser):
    """The positive's part with the error that rounding the normaliser gives the negatives' shares.

    In a narrow cone the two parts cancel, and with them the error that they share.
    """
    error = normaliser - normaliser.to(tl.float32).to(tl.float64)
    return missed * (1.0 + tl.where(error == error, error, 0.0) * LN2)


@triton.jit(
    do_not_specialize=("N",),
    do_not_specialize_on_alignment=("positive", "rows", "cols", "scale", "loss", "z"),
)
def close(positive, rows, cols, scale, loss, z, N, delta, factor, LINK: tl.constexpr, EACH: tl.constexpr,
          COLS: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """``factor`` times each loss log(1 + S/w), with S the sum over the negatives and w the positive's weight.

    positive [3, N] holds gap, rise, and room for dL/dc of the positive, which comes from
    1 - p = S/(S+w), in which nothing cancels. For the backward, of either direction and with the 1/2 of two
    directions in it, z [2, N]: 2(1+delta)/(S+w) for ODDS, scale/(S+w) for EXP, else log2(S+w). DECOUPLED has
    log(S/w), 1 for 1 - p, and S for S+w; without negatives all of it is 0. With EACH scale is [N].
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    below, above = tl.load(positive + i, i < N, 1.0), tl.load(positive + N + i, i < N, 1.0)
    share = 0.5 if COLS else 1.0
    total, missed = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    if LINK == ODDS:
        weight = (above + delta) / (below + delta)
        slope = 1.0 / (above + delta) + 1.0 / (below + delta)
        steep = 2.0 * (1.0 + delta)
    elif LINK == EXP:
        slope = tl.load(scale).to(tl.float64)
        weight = tl.exp(-slope * below)
        steep = slope
    else:
        s = tl.load(scale + i * EACH, i < N, 1.0).to(tl.float64)
        logit = logit_of((above - below) / 2, below + delta, above + delta, s, LINK)
        slope = slope_of(below + delta, above + delta, s, LINK)
    for side in tl.static_range(2 if COLS else 1):
        negatives = tl.load((cols if side else rows) + i, i < N, 0.0).to(tl.float64)
        if LINK == ODDS or LINK == EXP:
            negatives = tl.where(negatives < 0, 0.0, negatives)  # rounding of pairs with c = -1
            if DECOUPLED:
                some = negatives != 0
                filled = tl.where(some, negatives, weight)
                total += share * tl.log(filled / weight)
                missed += tl.where(some, share, 0.0)
                normaliser = tl.where(some, share * steep / filled, 0.0)
            else:
                total += share * log1p(negatives / weight)
                missed += share * negatives / (negatives + weight)
                normaliser = share * steep / (negatives + weight)
        elif DECOUPLED:
            some, negatives = negatives != 0, tl.log(negatives)
            total += tl.where(some, share * (negatives - logit), 0.0)
            of_positive = tl.where(some, share, 0.0)
            normaliser = tl.where(some, negatives * LOG2E64 + (1.0 if COLS else 0.0), float("inf"))
            missed += _as_rounded(of_positive, normaliser)
        else:
            excess = tl.log(negatives) - logit
            small = tl.exp(-tl.abs(excess))
            more = tl.where(excess > 0, excess, 0.0) + log1p(small)
            total += share * tl.where(excess == excess, more, excess)
            of_positive = share * tl.where(excess > 0, 1.0, small) / (1.0 + small)
            normaliser = (logit + more) * LOG2E64 + (1.0 if COLS else 0.0)
            missed += _as_rounded(of_positive, normaliser)
        tl.store(z + side * N + i, normaliser.to(tl.float32), i < N)
    tl.store(loss + i, (total * factor).to(tl.float32), i < N)
    tl.store(positive + 2 * N + i, -missed * slope, i < N)


@triton.jit
def _to_input(grad, x_stats, out, i, d, u, positives, N, D, PAD: tl.constexpr):
    """The gradient of row i of x: the tiles' and the positives' part, without the radial part."""
    tiles = tl.load(grad + i * PAD + d, d < PAD, 0.0).to(tl.float64)
    g = tiles * tl.load(x_stats + 2 * N + i) + positives * tl.load(x_stats + i)
    g -= u * (tl.sum(g * u, 0) * tl.load(x_stats + N + i))
    tl.store(out + i * D + d, g.to(tl.float32).to(out.dtype.element_ty), d < D)


@triton.jit
def _positive_gradient(positive, upstream, step, weight, i, u, v, stats, row, N):
    """What the positive pair of anchor i adds for the row u of it, whose other row is v.

    As v -+ u, the same but for the radial part, which is exact where u and v nearly agree (or are
    nearly opposite); a row too short, by ``stats`` of ``row``, keeps the radial part.
    """
    full = tl.load(stats + N + row).to(tl.float64)
    sign = tl.where(tl.load(positive + i) < tl.load(positive + N + i), full, -full)
    outer = tl.load(upstream + i * step) * weight
    return tl.load(positive + 2 * N + i) * outer * (v - sign * u)


@triton.jit(
    do_not_specialize=("step", "N", "shift"),
    do_not_specialize_on_alignment=("stats", "other_stats", "upstream", "positive"),
)
def finish(x, stats, other, other_stats, grad, upstream, step, weight, positive, out, N, shift,
           D: tl.constexpr, PAD: tl.constexpr, IS_ANCHOR: tl.constexpr, IS_POSITIVE: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    """The gradient of x, from that of the tiles, grad [N, PAD], and the positives.

    IS_ANCHOR: row i is an anchor, its positive row i + shift of ``other``. IS_POSITIVE: it is the positive of
    row i - shift.
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    u = _row(x, stats, i, d, D)
    positives = tl.zeros((BLOCK,), tl.float64)
    if IS_ANCHOR:
        j = (i + shift) % N
        positives += _positive_gradient(
            positive, upstream, step, weight, i, u, _row(other, other_stats, j, d, D), stats, i, N
        )
    if IS_POSITIVE:
        j = (i + N - shift) % N
        positives += _positive_gradient(
            positive, upstream, step, weight, j, u, _row(other, other_stats, j, d, D), stats, i, N
        )
    _to_input(grad, stats, out, i, d, u, positives, N, D, PAD)


@triton.jit(
    do_not_specialize=("step", "N"),
    do_not_specialize_on_alignment=("x_stats", "y_stats", "upstream", "positive"),
)
def finish_pairs(x, x_stats, x_grad, x_out, y, y_stats, y_grad, y_out, upstream, step, weight, positive,
                 N, D: tl.constexpr,
                 PAD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """finish of x and of y, whose rows i are each other's positives, in one launch."""
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    u, v = _row(x, x_stats, i, d, D), _row(y, y_stats, i, d, D)
    for_x = _positive_gradient(positive, upstream, step, weight, i, u, v, x_stats, i, N)
    for_y = _positive_gradient(positive, upstream, step, weight, i, v, u, y_stats, i, N)
    _to_input(x_grad, x_stats, x_out, i, d, u, for_x, N, D, PAD)
    _to_input(y_grad, y_stats, y_out, i, d, v, for_y, N, D, PAD)
