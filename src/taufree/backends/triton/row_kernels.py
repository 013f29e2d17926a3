"""Kernels with one program a row (or a few anchors): unit rows, exact positives, losses, the way back."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

from taufree.backends.triton.arithmetic import ODDS, log1p, logit_of, slope_of


@triton.jit
def _row(x, stats, i, d, D):
    """Row i of x as a unit row, in float64."""
    return tl.load(x + i * D + d, d < D, 0.0).to(tl.float32).to(tl.float64) * tl.load(stats + i)


@triton.jit
def _unit_row(x, unit, stats, i, d, N, D, least, PAD: tl.constexpr, SPLIT: tl.constexpr):
    """Writes row i of ``unit`` and ``stats``; the unit row in float64, and what its square lacks to 1."""
    row = tl.load(x + i * D + d, d < D, 0.0).to(tl.float32).to(tl.float64)
    square = tl.sum(row * row, 0)
    length = tl.sqrt(square)
    short = length < least
    inverse = tl.where(square == 0, 0.0, 1.0 / tl.where(short, least, length))
    lack = tl.where(short, 1.0 - (length / least) * (length / least), 0.0)
    row = row * inverse
    narrow = row.to(tl.float32)
    high = narrow.to(unit.dtype.element_ty)
    wide = high.to(tl.float32)
    norm = tl.sum(wide.to(tl.float64) * wide, 0)
    out = unit + i * (PAD * (2 if SPLIT else 1)) + d
    tl.store(out, high, d < PAD)
    if SPLIT:
        low = (narrow - wide).to(unit.dtype.element_ty)
        norm += 2 * tl.sum(wide.to(tl.float64) * low.to(tl.float32), 0)
        tl.store(out + PAD, low, d < PAD)
    tl.store(stats + i, inverse.to(tl.float32))
    tl.store(stats + N + i, tl.where(short, 0.0, 1.0))
    tl.store(stats + 2 * N + i, ((norm + lack) / 2).to(tl.float32))
    return row, lack


@triton.jit
def _chord(positive, i, N, u, v, lack):
    tl.store(positive + i, (tl.sum((u - v) * (u - v), 0) + lack) / 2)
    tl.store(positive + N + i, (tl.sum((u + v) * (u + v), 0) + lack) / 2)


@triton.jit
def unit_rows(x, unit, stats, N, D, least, PAD: tl.constexpr, SPLIT: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """Unit rows of x [N, D], rounded, to unit [N, PAD] or, in split mode, [N, 2 PAD].

    stats [3, N] gets what a row is multiplied by to make it a unit row, 1 where that succeeds (0 for
    rows too short, see precision.lengths), and half the squared norm of the rounded row.
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    _unit_row(x, unit, stats, i, d, N, D, least, PAD, SPLIT)


@triton.jit
def unit_pairs(x, x_unit, x_stats, x_least, y, y_unit, y_stats, y_least, positive, N, D,
               PAD: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """unit_rows of x and of y and the chords of row i with row i, in one launch."""
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    u, u_lack = _unit_row(x, x_unit, x_stats, i, d, N, D, x_least, PAD, SPLIT)
    v, v_lack = _unit_row(y, y_unit, y_stats, i, d, N, D, y_least, PAD, SPLIT)
    _chord(positive, i, N, u, v, u_lack + v_lack)


@triton.jit
def chords(x, y, x_stats, y_stats, positive, N, shift, D, BLOCK: tl.constexpr):
    """Exactly 1 - c and 1 + c of each row of x and its positive, row i + shift of y, to positive [3, N]."""
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    j = (i + shift) % N
    u, v = _row(x, x_stats, i, d, D), _row(y, y_stats, j, d, D)
    lack = tl.where(tl.load(x_stats + N + i) == 0, 1.0 - tl.sum(u * u, 0), 0.0)
    lack += tl.where(tl.load(y_stats + N + j) == 0, 1.0 - tl.sum(v * v, 0), 0.0)
    _chord(positive, i, N, u, v, lack)


@triton.jit
def close(positive, rows, cols, scale, loss, z, N, delta, LINK: tl.constexpr, COLS: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """Each anchor's loss log(1 + S/w), with S the sum over the negatives and w the positive's weight.

    positive [3, N] holds gap, rise, and room for dL/dc of the positive, which comes from
    1 - p = S/(S+w), in which nothing cancels. For the backward: z [2, N] is 2(1+delta)/(S+w), or
    log(S+w) unless ODDS, of either direction, with the 1/2 of two directions in it.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    below, above = tl.load(positive + i, i < N, 1.0), tl.load(positive + N + i, i < N, 1.0)
    share = 0.5 if COLS else 1.0
    total, missed = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    if LINK == ODDS:
        weight = (above + delta) / (below + delta)
        slope = 1.0 / (above + delta) + 1.0 / (below + delta)
    else:
        s = tl.load(scale).to(tl.float64)
        logit = logit_of((above - below) / 2, below, above, s, delta, LINK)
        slope = slope_of(below, above, s, delta, LINK)
    for side in tl.static_range(2 if COLS else 1):
        negatives = tl.load((cols if side else rows) + i, i < N, 0.0).to(tl.float64)
        if LINK == ODDS:
            negatives = tl.where(negatives < 0, 0.0, negatives)  # rounding of pairs with c = -1
            total += share * log1p(negatives / weight)
            missed += share * negatives / (negatives + weight)
            normaliser = share * 2.0 * (1.0 + delta) / (negatives + weight)
        else:
            excess = negatives - logit
            small = tl.exp(-tl.abs(excess))
            more = tl.where(excess > 0, excess, 0.0) + log1p(small)
            total += share * tl.where(excess == excess, more, excess)
            missed += share * tl.where(excess > 0, 1.0, small) / (1.0 + small)
            normaliser = logit + more + (0.6931471805599453 if COLS else 0.0)  # log 2
        tl.store(z + side * N + i, normaliser.to(tl.float32), i < N)
    tl.store(loss + i, total.to(tl.float32), i < N)
    tl.store(positive + 2 * N + i, -missed * slope, i < N)


@triton.jit
def finish(x, stats, other, other_stats, grad, upstream, positive, out, N, shift, D,
           PAD: tl.constexpr, AHEAD: tl.constexpr, BEHIND: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The gradient of a row: tiles plus positives, without the radial part, over the row's length.

    AHEAD: the row is an anchor and its positive is row i + shift of ``other``; BEHIND: it is the
    positive of row i - shift. The positive enters as v -+ u, the same but for the radial part, which
    is exact where u and v nearly agree (or are nearly opposite).
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    u, unit = _row(x, stats, i, d, D), tl.load(stats + N + i).to(tl.float64)
    g = tl.load(grad + i * PAD + d, d < PAD, 0.0).to(tl.float64)
    if AHEAD:
        j = (i + shift) % N
        a = tl.load(positive + 2 * N + i) * tl.load(upstream + i)
        sign = tl.where(tl.load(positive + i) < tl.load(positive + N + i), unit, -unit)
        g += a * (_row(other, other_stats, j, d, D) - sign * u)
    if BEHIND:
        j = (i + N - shift) % N
        a = tl.load(positive + 2 * N + j) * tl.load(upstream + j)
        sign = tl.where(tl.load(positive + j) < tl.load(positive + N + j), unit, -unit)
        g += a * (_row(other, other_stats, j, d, D) - sign * u)
    g -= u * (tl.sum(g * u, 0) * unit)
    tl.store(out + i * D + d, (g * tl.load(stats + i)).to(tl.float32).to(out.dtype.element_ty), d < D)
