"""The Triton kernels: unit rows, exact positives, tile sums, tile coefficients, and the way back.

A tile is a block of the similarity matrix that exists in registers only. Its cosines come from rows
u', v' rounded to half precision, and what the link sees is the half squared chord of exactly these:

    gap  = (|u'|^2 + |v'|^2)/2 - u'.v'  =  1 - c        rise = (|u'|^2 + |v'|^2)/2 + u'.v'  =  1 + c

``half`` holds |u'|^2/2 of each row in float32. In split mode a row is the pair (high, low) and
u'.v' = high.high + low.high + high.low, three runs over the columns instead of one.

Links: ODDS is LogOdds at gain 1, with r = 1/(gap + delta), weight 2(1+delta)r - 1 and slope
2(1+delta)r^2, without exponential and maximum. POWER is LogOdds at any gain and SCALE a temperature;
their sums are logarithms, each tile relative to its own maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl

ODDS, POWER, SCALE = (tl.constexpr(k) for k in range(3))
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _reciprocal(x):
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _reciprocals(x, ROWS: tl.constexpr, COLS: tl.constexpr):
    """1/x of a tile at one hardware reciprocal for two neighbours: 1/a = b * 1/(a*b)."""
    a, b = tl.split(tl.reshape(x, (ROWS, COLS // 2, 2)))
    both = _reciprocal(a * b)
    return tl.reshape(tl.join(b * both, a * both), (ROWS, COLS))


@triton.jit
def _log1p(x):
    """log(1 + x) in float64 to full accuracy: the rounding of 1 + x cancels."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, x * (tl.log(y) / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def _logit(cosine, gap, rise, scale, delta, LINK: tl.constexpr):
    if LINK == SCALE:
        return cosine * scale
    return scale * tl.log((rise + delta) / (gap + delta))


@triton.jit
def _slope(gap, rise, scale, delta, LINK: tl.constexpr):
    if LINK == SCALE:
        return scale + 0.0 * gap
    return scale * (1.0 / (rise + delta) + 1.0 / (gap + delta))


@triton.jit
def _row(x, inverse, i, d, D):
    """Row i of x as a unit row, in float64."""
    return tl.load(x + i * D + d, d < D, 0.0).to(tl.float64) * tl.load(inverse + i)


@triton.jit
def _tf32(x):
    """float32 rounded to the 11 digits that TF32 keeps, half away from zero."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def unit_rows(x, inverse, full, half, unit, factor, D, least, PAD: tl.constexpr, SPLIT: tl.constexpr,
              FACTOR: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Unit rows of x [N, D], rounded, with their squared norms; see precision.lengths for short rows.

    ``unit`` [N, PAD], or [N, 2 PAD] in split mode, is multiplied in the tiles; ``factor`` (the same
    shape, float32, unless FACTOR is 0) is what the coefficients multiply in TF32.
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    row = tl.load(x + i * D + d, d < D, 0.0).to(tl.float64)
    square = tl.sum(row * row, 0)
    length = tl.sqrt(square)
    short = length < least
    inv = tl.where(square == 0, 0.0, 1.0 / tl.where(short, least.to(tl.float64), length))
    lack = tl.where(short, 1.0 - (length / least) * (length / least), 0.0)
    row = row * inv
    high = row.to(tl.float32).to(unit.dtype.element_ty)
    norm = tl.sum(high.to(tl.float64) * high.to(tl.float64), 0)
    out = unit + i * (PAD * (2 if SPLIT else 1)) + d
    tl.store(out, high, d < PAD)
    if SPLIT:
        low = (row - high.to(tl.float64)).to(tl.float32).to(unit.dtype.element_ty)
        norm += 2 * tl.sum(high.to(tl.float64) * low.to(tl.float64), 0)
        tl.store(out + PAD, low, d < PAD)
    if FACTOR:
        coarse = _tf32(row.to(tl.float32))
        out = factor + i * (PAD * (2 if SPLIT else 1)) + d
        tl.store(out, coarse, d < PAD)
        if SPLIT:
            tl.store(out + PAD, _tf32((row - coarse.to(tl.float64)).to(tl.float32)), d < PAD)
    tl.store(inverse + i, inv)
    tl.store(full + i, tl.where(short, 0.0, 1.0).to(tl.float32))
    tl.store(half + i, ((norm + lack) / 2).to(tl.float32))


@triton.jit
def chords(x, y, x_inverse, y_inverse, x_full, y_full, x_least, y_least, gap, rise, N, shift, D,
           BLOCK: tl.constexpr):  # fmt: skip
    """Exactly 1 - c and 1 + c, [N] in float64, of each row of x and its positive, row i + shift of y."""
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    j = (i + shift) % N
    u, v = _row(x, x_inverse, i, d, D), _row(y, y_inverse, j, d, D)
    lack = 0.0
    if tl.load(x_full + i) == 0:
        lack += 1.0 - tl.sum(u * u, 0)
    if tl.load(y_full + j) == 0:
        lack += 1.0 - tl.sum(v * v, 0)
    tl.store(gap + i, (tl.sum((u - v) * (u - v), 0) + lack) / 2)
    tl.store(rise + i, (tl.sum((u + v) * (u + v), 0) + lack) / 2)


@triton.jit
def _products(u, v, row, col, PAD: tl.constexpr, SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
              BK: tl.constexpr):  # fmt: skip
    """u'.v' of BM rows from ``row`` and BN from ``col``; rows past the end read as zeros."""
    dot = tl.zeros((BM, BN), tl.float32)
    for k in range(0, PAD * (3 if SPLIT else 1), BK):
        if SPLIT:
            run = k // PAD
            at = k - run * PAD
            a = u.load([row, at + tl.where(run == 1, PAD, 0)])
            b = v.load([col, at + tl.where(run == 2, PAD, 0)])
        else:
            a = u.load([row, k])
            b = v.load([col, k])
        dot = tl.dot(a, b.T, dot)
    return dot


@triton.jit
def _counted(i, j, groups, N, M, shift, SELF: tl.constexpr, POSITIVES: tl.constexpr, IDS: tl.constexpr):
    """Which pairs of a tile count as negatives; each pair of anchors among themselves once (i < j)."""
    counted = (i < N)[:, None] & (j < M)[None, :]
    if SELF:
        counted &= i[:, None] < j[None, :]
        counted &= (i[:, None] + shift != j[None, :]) & (i[:, None] + N - shift != j[None, :])
    elif POSITIVES:
        counted &= ((i + shift) % N)[:, None] != j[None, :]
    if IDS:
        counted &= tl.load(groups + i, i < N, 0)[:, None] != tl.load(groups + j, j < M, 0)[None, :]
    return counted


@triton.jit
def _whole(row, col, N, M, shift, SELF: tl.constexpr, POSITIVES: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr):  # fmt: skip
    """Whether every pair of the tile counts, as far as positions tell."""
    whole = (row + BM <= N) & (col + BN <= M)
    if SELF:
        whole &= row + BM <= col
        whole &= (row + shift + BM <= col) | (col + BN <= row + shift)
        whole &= (row + N - shift + BM <= col) | (col + BN <= row + N - shift)
    elif POSITIVES:
        whole &= (row + BM <= col) | (col + BN <= row)
    return whole


@triton.jit
def _place(row_tiles, col_tiles, GROUP: tl.constexpr):
    """Tile row and column of this program: GROUP tile rows at a time, so that the rows stay in L2."""
    pid = tl.program_id(0)
    span = GROUP * col_tiles
    first = (pid // span) * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    return first + (pid % span) % size, (pid % span) // size


@triton.jit
def tile_sums(u, v, u_half, v_half, groups, scale, rows_out, cols_out, N, M, first_col, row_tiles, col_tiles,
              shift, delta, LINK: tl.constexpr, COLS: tl.constexpr, SELF: tl.constexpr,
              POSITIVES: tl.constexpr, IDS: tl.constexpr, ATOMIC: tl.constexpr, PAD: tl.constexpr,
              SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              GROUP: tl.constexpr):  # fmt: skip
    """Adds the weights of a tile along its rows, and with COLS along its columns.

    ATOMIC adds to rows_out [N] and cols_out [M]; otherwise each tile writes its own sums (their
    logarithms unless ODDS) to rows_out [col_tiles, N] and cols_out [row_tiles, M].
    """
    ti, tj = _place(row_tiles, col_tiles, GROUP)
    row, col = ti * BM, first_col + tj * BN
    if SELF:
        if col + BN <= row + 1:
            return
    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    left = tl.load(u_half + i, i < N, 1.0)
    right = tl.load(v_half + j, j < M, 1.0)
    dot = _products(u, v, row, col, PAD, SPLIT, BM, BN, BK)
    square = left[:, None] + right[None, :]
    if LINK == ODDS:
        r = _reciprocals((square + delta) - dot, BM, BN)
        twice = 2.0 * (1.0 + delta)
        whole = _whole(row, col, N, M, shift, SELF, POSITIVES, BM, BN)
        if (not IDS) and whole:
            along = twice * tl.sum(r, 1) - BN
            if COLS:
                across = twice * tl.sum(r, 0) - BM
            else:
                across = tl.zeros((BN,), tl.float32)
        else:
            counted = _counted(i, j, groups, N, M, shift, SELF, POSITIVES, IDS)
            weight = tl.where(counted, twice * r - 1.0, 0.0)
            along = tl.sum(weight, 1)
            across = tl.sum(weight, 0)
    else:
        logit = _logit(dot, square - dot, square + dot, tl.load(scale), delta, LINK)
        counted = _counted(i, j, groups, N, M, shift, SELF, POSITIVES, IDS)
        logit = tl.where(counted, logit, float("-inf"))
        top = tl.max(logit, 1)
        top = tl.where(top == float("-inf"), 0.0, top)
        along = top + tl.log(tl.sum(tl.exp(logit - top[:, None]), 1))
        if COLS:
            top = tl.max(logit, 0)
            top = tl.where(top == float("-inf"), 0.0, top)
            across = top + tl.log(tl.sum(tl.exp(logit - top[None, :]), 0))
        else:
            across = tl.zeros((BN,), tl.float32)
    if ATOMIC:
        tl.atomic_add(rows_out + i, along, i < N, sem="relaxed")
        if COLS:
            tl.atomic_add(cols_out + j, across, j < M, sem="relaxed")
    else:
        tl.store(rows_out + tj.to(tl.int64) * N + i, along, i < N)
        if COLS:
            tl.store(cols_out + ti.to(tl.int64) * M + j, across, j < M)


@triton.jit
def close(gap, rise, rows, cols, scale, loss, rows_z, cols_z, pull, N, delta, LINK: tl.constexpr,
          COLS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Each anchor's loss log(1 + S/w), with S the sum over the negatives and w the positive's weight.

    For the backward: ``z`` is 2(1+delta)/(S+w), or log(S+w) unless ODDS, with the 1/2 of two directions
    in it; ``pull`` is dL/dc of the positive, from 1 - p = S/(S+w), in which nothing cancels.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    below, above = tl.load(gap + i, i < N, 1.0), tl.load(rise + i, i < N, 1.0)
    share = 0.5 if COLS else 1.0
    total, missed = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    if LINK == ODDS:
        weight = (above + delta) / (below + delta)
        slope = 1.0 / (above + delta) + 1.0 / (below + delta)
    else:
        s = tl.load(scale).to(tl.float64)
        logit = _logit((above - below) / 2, below, above, s, delta, LINK)
        slope = _slope(below, above, s, delta, LINK)
    for side in tl.static_range(2 if COLS else 1):
        negatives = tl.load((cols if side else rows) + i, i < N, 0.0).to(tl.float64)
        if LINK == ODDS:
            negatives = tl.where(negatives < 0, 0.0, negatives)  # rounding of pairs with c = -1
            total += share * _log1p(negatives / weight)
            missed += share * negatives / (negatives + weight)
            z = share * 2.0 * (1.0 + delta) / (negatives + weight)
        else:
            excess = negatives - logit
            small = tl.exp(-tl.abs(excess))
            more = tl.where(excess > 0, excess, 0.0) + _log1p(small)
            total += share * tl.where(excess == excess, more, excess)
            missed += share * tl.where(excess > 0, 1.0, small) / (1.0 + small)
            z = logit + more - (-0.6931471805599453 if COLS else 0.0)
        tl.store((cols_z if side else rows_z) + i, z.to(tl.float32), i < N)
    tl.store(loss + i, total.to(tl.float32), i < N)
    tl.store(pull + i, -missed * slope, i < N)


@triton.jit
def tile_coefficients(u, v, u_half, v_half, groups, scale, rows_grad, rows_z, cols_grad, cols_z, out, learned,
                      N, M, first_row, first_col, row_tiles, col_tiles, width, shift, delta,
                      LINK: tl.constexpr, COLS: tl.constexpr, SELF: tl.constexpr, POSITIVES: tl.constexpr,
                      IDS: tl.constexpr, LEARN: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
                      BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      GROUP: tl.constexpr):  # fmt: skip
    """dL/dc of the negatives of a chunk, both directions together, to out [row_tiles BM, width].

    out is bfloat16, or float32 rounded to TF32; in split mode the rest follows after all columns.
    LEARN also writes the tile's part of dL/dscale to learned [tiles].
    """
    ti, tj = _place(row_tiles, col_tiles, GROUP)
    row, col = first_row + ti * BM, first_col + tj * BN
    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    rest = col_tiles * BN
    at = out + (ti * BM + tl.arange(0, BM)).to(tl.int64)[:, None] * width + (tj * BN + tl.arange(0, BN))
    if SELF:
        if col + BN <= row + 1:
            tl.store(at, tl.zeros((BM, BN), out.dtype.element_ty))
            if SPLIT:
                tl.store(at + rest, tl.zeros((BM, BN), out.dtype.element_ty))
            if LEARN:
                tl.store(learned + tl.program_id(0), 0.0)
            return
    left, right = tl.load(u_half + i, i < N, 1.0), tl.load(v_half + j, j < M, 1.0)
    near, near_z = tl.load(rows_grad + i, i < N, 0.0), tl.load(rows_z + i, i < N, 0.0)
    if COLS:
        far, far_z = tl.load(cols_grad + j, j < M, 0.0), tl.load(cols_z + j, j < M, 0.0)
    dot = _products(u, v, row, col, PAD, SPLIT, BM, BN, BK)
    square = left[:, None] + right[None, :]
    if LINK == ODDS:
        r = _reciprocals((square + delta) - dot, BM, BN)
        pulls = (near * near_z)[:, None]
        if COLS:
            pulls = pulls + (far * far_z)[None, :]
        a = (r * r) * pulls
    else:
        s = tl.load(scale)
        logit = _logit(dot, square - dot, square + dot, s, delta, LINK)
        counted = _counted(i, j, groups, N, M, shift, SELF, POSITIVES, IDS)
        logit = tl.where(counted, logit, float("-inf"))
        a = near[:, None] * tl.exp(logit - near_z[:, None])
        if COLS:
            a += far[None, :] * tl.exp(logit - far_z[None, :])
        if LEARN:
            if LINK == SCALE:
                tl.store(learned + tl.program_id(0), tl.sum(a * dot))
        a *= _slope(square - dot, square + dot, s, delta, LINK)
    whole = _whole(row, col, N, M, shift, SELF, POSITIVES, BM, BN)
    if IDS or not whole:
        a = tl.where(_counted(i, j, groups, N, M, shift, SELF, POSITIVES, IDS), a, 0.0)
    if out.dtype.element_ty == tl.float32:
        coarse = _tf32(a)
        tl.store(at, coarse)
        if SPLIT:
            tl.store(at + rest, _tf32(a - coarse))
    else:
        tl.store(at, a.to(out.dtype.element_ty))


@triton.jit
def finish(x, inverse, full, other, other_inverse, grad, upstream, pull, gap, rise, out, N, shift, D,
           PAD: tl.constexpr, AHEAD: tl.constexpr, BEHIND: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The gradient of a row: tiles plus positives, without the radial part, over the row's length.

    AHEAD: the row is an anchor and its positive is row i + shift of ``other``; BEHIND: it is the
    positive of row i - shift. The positive enters as v -+ u, the same but for the radial part, which
    is exact where u and v nearly agree (or are nearly opposite).
    """
    i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    u, unit = _row(x, inverse, i, d, D), tl.load(full + i).to(tl.float64)
    g = tl.load(grad + i * PAD + d, d < PAD, 0.0).to(tl.float64)
    if AHEAD:
        j = (i + shift) % N
        a = tl.load(pull + i) * tl.load(upstream + i).to(tl.float64)
        sign = tl.where(tl.load(gap + i) < tl.load(rise + i), unit, -unit)
        g += a * (_row(other, other_inverse, j, d, D) - sign * u)
    if BEHIND:
        j = (i + N - shift) % N
        a = tl.load(pull + j) * tl.load(upstream + j).to(tl.float64)
        sign = tl.where(tl.load(gap + j) < tl.load(rise + j), unit, -unit)
        g += a * (_row(other, other_inverse, j, d, D) - sign * u)
    g -= u * (tl.sum(g * u, 0) * unit)
    tl.store(out + i * D + d, (g * tl.load(inverse + i)).to(tl.float32).to(out.dtype.element_ty), d < D)
