"""Kernels of the sigmoid loss: a tile's losses and coefficients at once, and the positives'."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

from taufree.backends.fused.kernels.arithmetic import ODDS, log1p, logit_of, reciprocal, reciprocals, slope_of
from taufree.backends.fused.kernels.tiles import SIDES, _cosines, _counted, _place, _put, _store, _whole


@triton.jit
def _log1p(x, per_two):
    """log(1 + x) of x in [0, 1] in float32, given 1/(2 + x): 2 atanh(s) with s = x/(2 + x), to seven terms.

    The hardware's logarithm has no digits left of a small x, of which a loss has many.
    """
    s = x * per_two
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13))))))
    return 2.0 * s * series


@triton.jit(
    do_not_specialize=("step", "N", "M", "first_row", "first_col", "row_tiles", "col_tiles"),
    do_not_specialize_on_alignment=(*SIDES, "bias", "upstream", "losses", "learned"),
)
def tile_questions(u, v, u_sides, v_sides, u_groups, v_groups, scale, bias, times, upstream, step, weight,
                   losses, out, learned, N, M, first_row, first_col, row_tiles, col_tiles, delta,
                   LINK: tl.constexpr, POSITIVES: tl.constexpr, IDS: tl.constexpr, GRAD: tl.constexpr,
                   LEARN: tl.constexpr, ATOMIC: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
                   BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Adds the losses of a tile's negatives, log(1 + exp(logit + bias)), along its rows to losses [N].

    Without ATOMIC they are written to losses [col_tiles, N]. GRAD also writes dL/d(u'.v') of each pair to out
    [rows, columns], as tiles.tile_coefficients does, and LEARN the tile's parts of the derivatives with
    respect to scale and bias to learned [2, tiles].

    ODDS has its bias as ``times`` = exp(bias): with w the weight the loss is log(1 + times w), the derivative
    times 2(1+delta) r^2 / (1 + times w).
    """
    ti, tj = _place(row_tiles, col_tiles, GROUP)
    row, col = first_row + ti * BM, first_col + tj * BN
    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    c, gap, rise, left, right = _cosines(
        u, v, u_sides, v_sides, row, col, N, M, delta, PAD, SPLIT, BM, BN, BK
    )
    if LINK == ODDS:
        r = reciprocals(gap, BM, BN)
        x = times * rise * r
        both = reciprocal((1.0 + x) * (2.0 + x))  # one for 1/(1 + x) and 1/(2 + x)
        loss = tl.where(x > 1.0, tl.log(1.0 + x), _log1p(x, both * (1.0 + x)))
        a = (times * 2.0 * (1.0 + delta)) * r * r * (both * (2.0 + x))
    else:
        s = tl.load(scale)
        z = logit_of(c, gap, rise, s, LINK) + tl.load(bias)
        e = tl.exp(-tl.abs(z))
        both = reciprocal((1.0 + e) * (2.0 + e))
        loss = tl.where(z > 0, z, 0.0 * z) + _log1p(e, both * (1.0 + e))
        a = tl.where(z > 0, 1.0, e) * (both * (2.0 + e))
    whole = _whole(row, col, N, M, 0, False, POSITIVES, IDS, BM, BN)
    if not whole:
        counted = _counted(i, j, u_groups, v_groups, N, M, 0, False, POSITIVES, IDS)
        loss, a = tl.where(counted, loss, 0.0), tl.where(counted, a, 0.0)
    _put(losses, tj, col_tiles, N, 0, i, tl.sum(loss, 1), ATOMIC)
    if GRAD:
        a *= (tl.load(upstream + i * step, i < N, 0.0) * weight)[:, None]
        if LEARN:
            tl.store(learned + tl.program_id(0), tl.sum(a * c))
            tl.store(learned + row_tiles * col_tiles + tl.program_id(0), tl.sum(a))
        if LINK != ODDS:
            a *= slope_of(gap, rise, s, LINK)
        if not SPLIT:
            a = a * left[:, None] * right[None, :]
        _store(out, a, ti * BM, tj * BN, col_tiles * BN, SPLIT)


@triton.jit(
    do_not_specialize=("N",),
    do_not_specialize_on_alignment=("positive", "losses", "missed", "scale", "bias"),
)
def close_questions(positive, losses, missed, scale, bias, number, N, delta, LINK: tl.constexpr,
                    BLOCK: tl.constexpr):  # fmt: skip
    """Adds the positives' log(1 + exp(-logit - bias)) to losses [N] in float64.

    positive [3, N] holds gap, rise, and room for dL/dc of the positive; missed [N] gets -dL/dlogit. ODDS has
    its bias as ``number``.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    below, above = tl.load(positive + i, i < N, 1.0) + delta, tl.load(positive + N + i, i < N, 1.0) + delta
    if LINK == ODDS:
        z = tl.log(above / below) + number
        slope = 1.0 / above + 1.0 / below
    else:
        s = tl.load(scale).to(tl.float64)
        z = logit_of((above - below) / 2, below, above, s, LINK) + tl.load(bias)
        slope = slope_of(below, above, s, LINK)
    small = tl.exp(-tl.abs(z))
    share = tl.where(z > 0, small, 1.0 + 0.0 * z) / (1.0 + small)
    loss = tl.where(z > 0, 0.0 * z, -z) + log1p(small)
    tl.store(losses + i, tl.load(losses + i, i < N, 0.0) + loss, i < N)
    tl.store(missed + i, share, i < N)
    tl.store(positive + 2 * N + i, -share * slope, i < N)
