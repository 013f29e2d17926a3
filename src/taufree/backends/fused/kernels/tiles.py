"""Kernels with one program a tile: a block of the similarity matrix that exists in registers only.

Half-precision rows are multiplied as they are, but for a power of two: products are exact, and the cosine
u'.v' times both rows' factors is good to the rounding of float32 sums, about 1e-6. In split mode a
unit row is a pair (coarse, rest) of float16, see rows.unit_rows, and 1 - c a half squared chord

    (|h|^2 + |k|^2)/2 - h.k   +   the same of the rests:   1 - c     with + for -:   1 + c

whose first part is exact and whose second is small: nothing is lost as c approaches 1, at four products
instead of one.

The weights of POWER and SCALE are 2^bits. Where float32 holds the sums of a tile, or the factors of its
coefficients, rows and columns share one exponential a pair; any other tile takes one for each of them,
relative to their own sums.
"""

# ruff: noqa: SIM102, SIM108, SIM109, RET505
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

from taufree.backends import fused
from taufree.backends.fused.kernels.arithmetic import (
    EXP,
    INTERPRETED,
    LOG2E,
    ODDS,
    SCALE,
    log2,
    reciprocals,
    tf32,
)

LN2 = tl.constexpr(0.6931471805599453)
MAX_BITS = tl.constexpr(float(fused.MAX_BITS))
MAX_FLOAT32_BITS = tl.constexpr(119.0)  # of weights, for sums over a tile to stay in float32's range
# Where some weights may have more: the bits that all are lowered by, and what raises their sums again.
LOWERED, RAISE = tl.constexpr(64.0), tl.constexpr(2.0**64)
MIN_SUM = tl.constexpr(2.0**-90)  # a weight too small for float32 changes no digit of such a sum
# A coefficient is 2^(bits - base) times the sum of both directions' dL/dL_i 2^(base - z_i). The base is
# RAISED above the smallest z of the tile, and no bits are more than MAX_EXCESS above that: then what float32
# cannot hold is a share below 2^-60.
RAISED, MAX_EXCESS = tl.constexpr(40.0), tl.constexpr(88.0)
# What holds one number a row is read behind a mask, so that its alignment is of no use; to compile for it
# would be to compile again for other numbers of rows.
SIDES = ("u_sides", "v_sides", "u_groups", "v_groups", "scale")


@triton.jit
def _dot(a, b, total):
    if INTERPRETED:  # which multiplies the bits of bfloat16
        return tl.dot(a.to(tl.float32), b.to(tl.float32).T, total, input_precision="ieee")
    return tl.dot(a, b.T, total)


@triton.jit
def _cosines(u, v, u_sides, v_sides, row, col, N, M, delta, PAD: tl.constexpr, SPLIT: tl.constexpr,
             BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """c, 1 - c + delta, 1 + c + delta and the factors on either side, of the tile at ``row`` and ``col``.

    The factors take dL/dc to dL/d(u'.v'). Rows past the end read as zeros.
    """
    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    left, right = tl.load(u_sides + i, i < N, 1.0), tl.load(v_sides + j, j < M, 1.0)
    dot = tl.zeros((BM, BN), tl.float32)
    if SPLIT:
        more_left, more_right = tl.load(u_sides + N + i, i < N, 0.0), tl.load(v_sides + M + j, j < M, 0.0)
        rest = tl.zeros((BM, BN), tl.float32)
        for k in range(0, PAD, BK):
            h, e = u.load([row, k]), u.load([row, PAD + k])
            other_h, other_e = v.load([col, k]), v.load([col, PAD + k])
            dot = _dot(h, other_h, dot)
            rest = _dot(e, other_h, rest)
            rest = _dot(h, other_e, rest)
            rest = _dot(e, other_e, rest)
        square = left[:, None] + right[None, :]
        more = more_left[:, None] + (more_right + delta)[None, :]
        return dot + rest, (square - dot) + (more - rest), (square + dot) + (more + rest), left, right
    else:
        for k in range(0, PAD, BK):
            dot = _dot(u.load([row, k]), v.load([col, k]), dot)
        c = dot * left[:, None] * right[None, :]
        return c, (1.0 + delta) - c, (1.0 + delta) + c, left, right


@triton.jit
def _counted(i, j, u_groups, v_groups, N, M, shift, SELF: tl.constexpr, POSITIVES: tl.constexpr,
             IDS: tl.constexpr):  # fmt: skip
    """Which pairs of a tile count as negatives; each pair of anchors among themselves once (i < j)."""
    counted = (i < N)[:, None] & (j < M)[None, :]
    if SELF:
        counted &= i[:, None] < j[None, :]
        counted &= (i[:, None] + shift != j[None, :]) & (i[:, None] + N - shift != j[None, :])
    elif POSITIVES:
        counted &= ((i + shift) % N)[:, None] != j[None, :]
    if IDS:
        counted &= tl.load(u_groups + i, i < N, 0)[:, None] != tl.load(v_groups + j, j < M, 0)[None, :]
    return counted


@triton.jit
def _same(i, j, u_groups, v_groups, N, M):
    return tl.load(u_groups + i, i < N, 0)[:, None] == tl.load(v_groups + j, j < M, 0)[None, :]


@triton.jit
def _whole(row, col, N, M, shift, SELF: tl.constexpr, POSITIVES: tl.constexpr, IDS: tl.constexpr,
           BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Whether every pair of the tile counts, judged by positions alone."""
    whole = (row + BM <= N) & (col + BN <= M)
    if SELF:
        whole &= row + BM <= col
    if SELF or POSITIVES:
        whole &= _apart(row + shift, col, BM, BN) & _apart(row + shift - N, col, BM, BN)
    if SELF:
        whole &= _apart(row + N - shift, col, BM, BN)
    if IDS:
        whole &= False
    return whole


@triton.jit
def _apart(row, col, BM: tl.constexpr, BN: tl.constexpr):
    return (row + BM <= col) | (col + BN <= row)


@triton.jit
def _place(row_tiles, col_tiles, GROUP: tl.constexpr):
    """Which row and column of a grid this program is: GROUP rows at a time, so that both sides stay in L2."""
    pid = tl.program_id(0)
    span = GROUP * col_tiles
    first = (pid // span) * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    return first + (pid % span) % size, (pid % span) // size


@triton.jit
def _bits(c, gap, rise, scale, hardness, LINK: tl.constexpr, HARD: tl.constexpr, BM: tl.constexpr,
          BN: tl.constexpr):  # fmt: skip
    """The logarithms of a tile's weights to base 2."""
    if LINK == SCALE:
        bits = c * (scale * LOG2E)
    else:
        bits = scale * log2(rise * reciprocals(gap, BM, BN))
    if HARD:
        bits += (hardness * LOG2E) * c
    return bits


@triton.jit
def _most_bits(c, scale, delta, hardness, LINK: tl.constexpr, HARD: tl.constexpr):
    """The most that a pair has whose cosine is between -c and c."""
    if LINK == SCALE:
        bits = c * (tl.abs(scale) * LOG2E)
    else:
        bits = tl.abs(scale) * tl.log2((1.0 + delta + c) / (1.0 + delta - c))
    if HARD:
        bits += (hardness * LOG2E) * c
    return bits


@triton.jit
def _wide_sum(bits, AXIS: tl.constexpr):
    """The sum over 2^bits in float64, relative to the largest."""
    top = tl.ceil(tl.max(bits, AXIS))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(bits - tl.expand_dims(top, AXIS)), AXIS)
    exponent = tl.minimum(tl.maximum(top, -MAX_BITS), MAX_BITS).to(tl.int64) + 1023
    return total.to(tl.float64) * (exponent << 52).to(tl.float64, bitcast=True)


@triton.jit
def _sum(amount, AXIS: tl.constexpr, LINK: tl.constexpr):
    if LINK == ODDS:
        total = tl.sum(amount, AXIS)
    else:
        total = _wide_sum(amount, AXIS)
    return total


@triton.jit
def _in_range(sums):
    """Whether float32 held every weight of these sums, but for some that vanish in them."""
    return tl.min(tl.where((sums > MIN_SUM) & (sums < float("inf")), 1, 0), 0) == 1


@triton.jit
def _put(out, tile, tiles, length, part, at, value, ATOMIC: tl.constexpr):
    """Adds ``value`` to out [parts, length], or writes it to out [parts, tiles, length]."""
    if ATOMIC:
        tl.atomic_add(out + part * length + at, value, at < length, sem="relaxed")
    else:
        tl.store(out + (part * tiles + tile).to(tl.int64) * length + at, value, at < length)


@triton.jit
def _tally(out, at, length, slot, c, negatives, positives, AXIS: tl.constexpr, LABELS: tl.constexpr):
    """Adds a tile to out [6, length] along an axis; sums over all its negatives to one ``slot``.

    Always atomically: the last digits of a mean cosine may differ from run to run, those of a loss do not.
    """
    here, none = at < length, float("-inf")
    tl.atomic_max(out + at, tl.max(tl.where(negatives, c, none), AXIS), here, sem="relaxed")
    if LABELS:
        largest = tl.max(tl.where(positives, c, none), AXIS)
        tl.atomic_max(out + length + at, largest, here, sem="relaxed")
        found = tl.sum(tl.where(positives, c, 0.0), AXIS)
        tl.atomic_add(out + 2 * length + at, found, here, sem="relaxed")
    c = tl.where(negatives, c, 0.0)
    tl.atomic_add(out + 3 * length + slot, tl.sum(negatives.to(tl.float32)), sem="relaxed")
    tl.atomic_add(out + 4 * length + slot, tl.sum(c), sem="relaxed")
    tl.atomic_add(out + 5 * length + slot, tl.sum(c * c), sem="relaxed")


@triton.jit(
    do_not_specialize=("N", "M", "first_col", "row_tiles", "col_tiles", "shift"),
    do_not_specialize_on_alignment=(*SIDES, "rows_out", "cols_out", "rows_tally", "cols_tally"),
)
def tile_sums(u, v, u_sides, v_sides, u_groups, v_groups, scale, rows_out, cols_out, rows_tally, cols_tally,
              N, M, first_col, row_tiles, col_tiles, shift, delta, hardness, LINK: tl.constexpr,
              EACH: tl.constexpr, COLS: tl.constexpr, SELF: tl.constexpr, POSITIVES: tl.constexpr,
              IDS: tl.constexpr, ATOMIC: tl.constexpr, TRACK: tl.constexpr, PAD: tl.constexpr,
              SPLIT: tl.constexpr, LABELS: tl.constexpr, HARD: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Adds the weights of a tile along its rows and, with COLS, along its columns.

    ATOMIC adds to rows_out [1, N] and cols_out [1, M]; otherwise each tile writes its own sums to rows_out
    [1, col_tiles, N] and cols_out [1, row_tiles, width], of the ``width`` columns from first_col on. With
    EACH scale [N] is that of each anchor, and with COLS the candidates are the anchors themselves. With
    LABELS the first dimension is 3: the negatives' weights, the positives', and the positives' logits. With
    HARD the negatives' logits have hardness * c added. TRACK adds to rows_tally [6, N] and cols_tally [6, M],
    see taufree.stats.Tally.
    """
    ti, tj = _place(row_tiles, col_tiles, GROUP)
    row, col = ti * BM, first_col + tj * BN
    if SELF:
        if col + BN <= row + 1:
            return
    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    k, width = j - first_col, tl.minimum(M - first_col, col_tiles * BN)
    c, gap, rise, _, _ = _cosines(u, v, u_sides, v_sides, row, col, N, M, delta, PAD, SPLIT, BM, BN, BK)
    if TRACK:
        negatives = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
        positives = negatives
        if LABELS:
            positives = negatives & _same(i, j, u_groups, v_groups, N, M)
            negatives = negatives & ~positives
        _tally(rows_tally, i, N, ti, c, negatives, positives, 1, LABELS)
        if COLS:
            _tally(cols_tally, j, M, tj, c, negatives, positives, 0, LABELS)
    if LABELS:
        counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
        same = counted & _same(i, j, u_groups, v_groups, N, M)
        if LINK == ODDS:
            amount = tl.where(counted, rise * reciprocals(gap, BM, BN), 0.0)
            logit = tl.log(tl.where(same, amount, 1.0))
            none = 0.0
        else:
            bits = _bits(c, gap, rise, tl.load(scale), hardness, LINK, False, BM, BN)
            logit = bits * LN2
            amount = tl.where(counted, bits, float("-inf"))
            none = float("-inf")
        negatives, positives = tl.where(same, none, amount), tl.where(same, amount, none)
        if HARD:
            negatives += (hardness * LOG2E) * c
        logit = tl.where(same, logit, 0.0)
        _put(rows_out, tj, col_tiles, N, 0, i, _sum(negatives, 1, LINK), ATOMIC)
        _put(rows_out, tj, col_tiles, N, 1, i, _sum(positives, 1, LINK), ATOMIC)
        _put(rows_out, tj, col_tiles, N, 2, i, tl.sum(logit, 1), ATOMIC)
        if COLS:
            _put(cols_out, ti, row_tiles, width, 0, k, _sum(negatives, 0, LINK), ATOMIC)
            _put(cols_out, ti, row_tiles, width, 1, k, _sum(positives, 0, LINK), ATOMIC)
            _put(cols_out, ti, row_tiles, width, 2, k, tl.sum(logit, 0), ATOMIC)
    elif LINK == ODDS or LINK == EXP:
        if LINK == ODDS:  # weight = times * r - less
            r, times, less = reciprocals(gap, BM, BN), 2.0 * (1.0 + delta), 1.0
        else:
            r, times, less = tl.exp2(gap * (-LOG2E * tl.load(scale))), 1.0, 0.0
        if _whole(row, col, N, M, shift, SELF, POSITIVES, IDS, BM, BN):
            along = times * tl.sum(r, 1) - less * BN
            if COLS:
                across = times * tl.sum(r, 0) - less * BM
            else:
                across = tl.zeros((BN,), tl.float32)
        else:
            counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
            weight = tl.where(counted, times * r - less, 0.0)
            along = tl.sum(weight, 1)
            across = tl.sum(weight, 0)
        _put(rows_out, tj, col_tiles, N, 0, i, along, ATOMIC)
        if COLS:
            _put(cols_out, ti, row_tiles, width, 0, k, across, ATOMIC)
    elif EACH:
        counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
        bits = c * ((tl.load(scale + i, i < N, 1.0) + hardness) * LOG2E)[:, None]
        bits = tl.where(counted, bits, float("-inf"))
        _put(rows_out, tj, col_tiles, N, 0, i, _wide_sum(bits, 1), ATOMIC)
        if COLS:
            bits = c * ((tl.load(scale + j, j < M, 1.0) + hardness) * LOG2E)[None, :]
            bits = tl.where(counted, bits, float("-inf"))
            _put(cols_out, ti, row_tiles, width, 0, k, _wide_sum(bits, 0), ATOMIC)
    else:
        s = tl.load(scale)
        large = _most_bits(1.0, s, delta, hardness, LINK, HARD) > MAX_FLOAT32_BITS
        bits = _bits(c, gap, rise, s, hardness, LINK, HARD, BM, BN)
        whole = _whole(row, col, N, M, shift, SELF, POSITIVES, IDS, BM, BN)
        if not whole:
            counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
            bits = tl.where(counted, bits, float("-inf"))
        weight = tl.exp2(bits - tl.where(large, LOWERED, 0.0))
        along, across = tl.sum(weight, 1), tl.sum(weight, 0)
        plain = _in_range(along)
        if COLS:
            plain &= _in_range(across)
        if plain:
            raised = tl.where(large, RAISE, 1.0)
            _put(rows_out, tj, col_tiles, N, 0, i, along.to(tl.float64) * raised, ATOMIC)
            if COLS:
                _put(cols_out, ti, row_tiles, width, 0, k, across.to(tl.float64) * raised, ATOMIC)
        else:
            _put(rows_out, tj, col_tiles, N, 0, i, _wide_sum(bits, 1), ATOMIC)
            if COLS:
                _put(cols_out, ti, row_tiles, width, 0, k, _wide_sum(bits, 0), ATOMIC)


@triton.jit
def _normaliser(upstream, step, weight, z, at, length, LINK: tl.constexpr):
    """dL/dL_i and the normalisers of some anchors; past the end no pair has a share."""
    here, none = at < length, 0.0 if LINK == ODDS or LINK == EXP else float("inf")
    return tl.load(upstream + at * step, here, 0.0) * weight, tl.load(z + at, here, none)


@triton.jit(
    do_not_specialize=("step", "N", "M", "first_row", "first_col", "row_tiles", "col_tiles", "shift"),
    do_not_specialize_on_alignment=(
        *SIDES,
        "upstream",
        "far_upstream",
        "rows_z",
        "cols_z",
        "labelled",
        "far_labelled",
        "learned",
    ),
)
def tile_coefficients(u, v, u_sides, v_sides, u_groups, v_groups, scale, upstream, step, weight, far_upstream,
                      rows_z, cols_z, labelled, far_labelled, out, learned, N, M, first_row, first_col,
                      row_tiles, col_tiles, shift, delta, hardness, LINK: tl.constexpr, EACH: tl.constexpr,
                      COLS: tl.constexpr, SELF: tl.constexpr, POSITIVES: tl.constexpr, IDS: tl.constexpr,
                      LEARN: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr, LABELS: tl.constexpr,
                      HARD: tl.constexpr,
                      BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """dL/d(u'.v') of the negatives of a chunk, both directions together, to out [rows, columns].

    dL/dL_i is upstream[i * step] * weight, that of the column j far_upstream[j * step] * weight.
    out is bfloat16, or float32 rounded to TF32; in split mode the rest follows after all columns.
    LEARN also writes the tile's part of dL/dscale to learned [tiles]; with EACH, as in tile_sums, that of its
    rows to learned [col_tiles, rows] and that of its columns behind, to [row_tiles, columns], which are zeros
    at first. With LABELS dL/dlogit of a pair of one
    label is keep times its share of the sum, minus its target; labelled [2, N] holds keep and target.
    """
    ti, tj = _place(row_tiles, col_tiles, GROUP)
    row, col = first_row + ti * BM, first_col + tj * BN
    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    if SELF:
        if col + BN <= row + 1:
            _store(out, tl.zeros((BM, BN), tl.float32), ti * BM, tj * BN, col_tiles * BN, SPLIT)
            if LEARN and not EACH:
                tl.store(learned + tl.program_id(0), 0.0)
            return
    near, near_z = _normaliser(upstream, step, weight, rows_z, i, N, LINK)
    if COLS:
        far, far_z = _normaliser(far_upstream, step, weight, cols_z, j, M, LINK)
    if LINK != ODDS and LINK != EXP and not EACH and not LABELS:
        least = tl.min(near_z, 0)
        if COLS:
            least = tl.minimum(least, tl.min(far_z, 0))
        base = tl.minimum(least, 1e30) + RAISED  # the minimum is inf where nothing has a normaliser
        near_share = near * (tl.exp2((base - RAISED) - near_z) * 2.0**RAISED)
        if COLS:
            far_share = far * (tl.exp2((base - RAISED) - far_z) * 2.0**RAISED)
    if LABELS:
        same = _same(i, j, u_groups, v_groups, N, M)
        near_keep = tl.load(labelled + i, i < N, 0.0).to(tl.float32)[:, None]
        target = (near * tl.load(labelled + N + i, i < N, 0.0).to(tl.float32))[:, None]
        if COLS:
            far_keep = tl.load(far_labelled + j, j < M, 0.0).to(tl.float32)[None, :]
            target = target + (far * tl.load(far_labelled + M + j, j < M, 0.0).to(tl.float32))[None, :]
    c, gap, rise, left, right = _cosines(
        u, v, u_sides, v_sides, row, col, N, M, delta, PAD, SPLIT, BM, BN, BK
    )
    whole, times = _whole(row, col, N, M, shift, SELF, POSITIVES, IDS, BM, BN), 1.0
    if LINK == ODDS or LINK == EXP:
        if LINK == ODDS:
            r = reciprocals(gap, BM, BN)
            steep = r * r
        else:
            steep = tl.exp2(gap * (-LOG2E * tl.load(scale)))
        shares = (near * near_z)[:, None]
        if COLS:
            shares = shares + (far * far_z)[None, :]
        if LABELS:
            kept = near_keep * (near * near_z)[:, None]
            if COLS:
                kept = kept + far_keep * (far * far_z)[None, :]
            shares = tl.where(same, kept - 2.0 * (1.0 + delta) * target / (rise * r), shares)
        a = steep * shares
    elif EACH:
        counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
        near_s = tl.load(scale + i, i < N, 1.0)[:, None]
        bits = tl.where(counted, c * ((near_s + hardness) * LOG2E), float("-inf"))
        a = near[:, None] * _share(bits, near_z[:, None], LABELS)
        if LEARN:
            at = tj * (row_tiles * BM) + ti * BM + tl.arange(0, BM)
            tl.store(learned + at, tl.sum(a * c, 1))
        a *= near_s
        if COLS:
            far_s = tl.load(scale + j, j < M, 1.0)[None, :]
            bits = tl.where(counted, c * ((far_s + hardness) * LOG2E), float("-inf"))
            more = far[None, :] * _share(bits, far_z[None, :], LABELS)
            if LEARN:
                at = row_tiles * col_tiles * BM + ti * (col_tiles * BN) + tj * BN + tl.arange(0, BN)
                tl.store(learned + at, tl.sum(more * c, 0))
            a += more * far_s
    elif LABELS:
        s = tl.load(scale)
        times = s if LINK == SCALE else 2.0 * (1.0 + delta) * s
        bits = _bits(c, gap, rise, s, hardness, LINK, False, BM, BN)
        if HARD:
            bits += tl.where(same, 0.0, (hardness * LOG2E) * c)
        a = near[:, None] * _share(bits, near_z[:, None], LABELS)
        a = tl.where(same, near_keep * a, a)
        if COLS:
            more = far[None, :] * _share(bits, far_z[None, :], LABELS)
            a += tl.where(same, far_keep * more, more)
        a = tl.where(same, a - target, a)
        if LEARN:
            counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
            tl.store(learned + tl.program_id(0), tl.sum(tl.where(counted, a * c, 0.0)))
        if LINK != SCALE:
            a *= reciprocals(gap * rise, BM, BN)
    else:
        s = tl.load(scale)
        times = s if LINK == SCALE else 2.0 * (1.0 + delta) * s
        most = _most_bits(tl.minimum(tl.max(tl.abs(c)), 1.0), s, delta, hardness, LINK, HARD)
        plain = most - base < MAX_EXCESS - RAISED
        if LEARN and not IDS:
            plain &= whole
        part = 0.0
        if plain:
            if LINK == SCALE:
                bits = c * (s * LOG2E) - base
            else:  # with the slope, 1/(gap * rise)
                bits = (s - 1.0) * log2(rise) - ((s + 1.0) * log2(gap) + base)
            if HARD:
                bits += (hardness * LOG2E) * c
            shares = near_share[:, None]
            if COLS:
                shares = shares + far_share[None, :]
            a = tl.exp2(bits) * shares
            if LEARN:
                if IDS:
                    a = tl.where(
                        _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS), a, 0.0
                    )
                part = tl.sum(a * c)
        else:  # what is computed again would, if kept for this rare case, take half of the registers
            c, gap, rise, _, _ = _cosines(
                u, v, u_sides, v_sides, row, col, N, M, delta, PAD, SPLIT, BM, BN, BK
            )
            counted = _counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS)
            bits = _bits(c, gap, rise, s, hardness, LINK, HARD, BM, BN)
            bits = tl.where(counted, bits, float("-inf"))
            near, near_z = _normaliser(upstream, step, weight, rows_z, i, N, LINK)
            a = near[:, None] * _share(bits, near_z[:, None], LABELS)
            if COLS:
                far, far_z = _normaliser(far_upstream, step, weight, cols_z, j, M, LINK)
                a += far[None, :] * _share(bits, far_z[None, :], LABELS)
            if LEARN:
                part = tl.sum(a * c)
            if LINK != SCALE:
                a *= reciprocals(gap * rise, BM, BN)
        if LEARN:
            tl.store(learned + tl.program_id(0), part)
    if not whole:
        a = tl.where(_counted(i, j, u_groups, v_groups, N, M, shift, SELF, POSITIVES, IDS), a, 0.0)
    if SPLIT:
        a *= times
    else:
        a = a * (left * times)[:, None] * right[None, :]
    _store(out, a, ti * BM, tj * BN, col_tiles * BN, SPLIT)


@triton.jit
def _share(bits, z, LABELS: tl.constexpr):
    """2^(bits - z). It is at most 1, also where float64 could not hold the sum; with LABELS that of a
    positive may be larger, and ``keep`` lowers it."""
    above, most = bits - z, MAX_EXCESS if LABELS else 0.0
    return tl.exp2(tl.where(above > most, most, above))


@triton.jit
def _store(out, a, row, col, rest, SPLIT: tl.constexpr):
    if out.dtype == tl.float32:
        coarse = tf32(a)
        out.store([row, col], coarse)
        if SPLIT:
            out.store([row, rest + col], tf32(a - coarse))
    else:
        out.store([row, col], a.to(out.dtype))
