"""Link arithmetic that the kernels share: on scalars, rows and tiles alike.

ODDS is LogOdds at gain 1, with r = 1/(1 - c + delta), weight 2(1+delta)r - 1 and slope 2(1+delta)r^2,
without exponential and maximum. POWER is LogOdds at any gain, SCALE a temperature. EXP is a temperature of
at least 0.025, whose weights, relative to that of c = 1, stay in float32's range: exp((c - 1)/tau).
The sums of ODDS and EXP are float32 numbers, those of the others float64, whose range their weights need.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

from taufree.backends.fused import arguments

ODDS, POWER = tl.constexpr(arguments.ODDS), tl.constexpr(arguments.POWER)
SCALE, EXP = tl.constexpr(arguments.SCALE), tl.constexpr(arguments.EXP)
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def reciprocal(x):
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def reciprocals(x, ROWS: tl.constexpr, COLS: tl.constexpr):
    """1/x of a tile at one hardware reciprocal for two neighbours: 1/a = b * 1/(a*b)."""
    a, b = tl.split(tl.reshape(x, (ROWS, COLS // 2, 2)))
    both = reciprocal(a * b)
    return tl.reshape(tl.join(b * both, a * both), (ROWS, COLS))


@triton.jit
def log2(x):
    """To 2^-22, absolutely where x is near 1, else relatively."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def log1p(x):
    """log(1 + x) in float64 to full accuracy: the rounding of 1 + x cancels."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, x * (tl.log(y) / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def logit_of(cosine, gap, rise, scale, LINK: tl.constexpr):
    """From c, 1 - c + delta and 1 + c + delta."""
    if LINK == SCALE:
        return cosine * scale
    return scale * tl.log(rise / gap)


@triton.jit
def slope_of(gap, rise, scale, LINK: tl.constexpr):
    if LINK == SCALE:
        return scale + 0.0 * gap
    return scale * (1.0 / rise + 1.0 / gap)


@triton.jit
def tf32(x):
    """float32 rounded to the 11 digits that TF32 keeps, half away from zero.

    NaN stays: a GPU's has all bits set, and would be carried over to a zero.
    """
    rounded = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)
