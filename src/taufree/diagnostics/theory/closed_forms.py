"""The loss and its gradient in the paper's scenario, and the cosine of random directions, as closed forms.

The scenario: an anchor has one positive at cosine C and N - 1 negatives at cosine -C, with 0 <= C <= 1: at
C = 0 it cannot tell them apart, C = 1 is the optimum. A *gradient scale* is the size of a loss's derivative
with respect to C. Every function takes numbers or arrays and broadcasts them;
numbers alone give a numpy number back.

All exponents here are <= 0, so nothing overflows, and 1 - C is exact in floating point for C >= 1/2,
so every value keeps its digits as C approaches 1.

Random directions: in nu dimensions the cosine c of two of them has a density proportional to
(1 - c^2)^((nu-3)/2). With a = (nu-1)/2, and I the regularised incomplete beta function, a random pair is
closer to orthogonal than c with probability y = I(c^2; 1/2, a), so P(cosine < c) = (1 + y)/2 for c >= 0, with
log-odds 2 atanh(y). For nu = 3 (the ordinary sphere) y = c: the free link. Any real nu >= 2 will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from scipy.special import betainc, betaincc, betaln, digamma, xlog1py, xlogy

Values: TypeAlias = NDArray[np.float64]


def temperature_loss(c: ArrayLike, tau: ArrayLike, n: int = 2) -> Values:
    """The loss with logit = C / tau: log(1 + (N-1) exp(-2C/tau)).

    Examples:
        >>> print(f"{temperature_loss(1.0, tau=1.0):.4f}")  # at the optimum, and still not zero
        0.1269
    """
    loss: Values = np.log1p(_negatives(c, tau, n))
    return loss


def temperature_scale(c: ArrayLike, tau: ArrayLike, n: int = 2) -> Values:
    """The size of d loss / dC with logit = C / tau: (N-1) (2/tau) / ((N-1) + exp(2C/tau)).

    Examples:
        >>> print(f"{temperature_scale(0.5, tau=0.1):.5f}")  # halfway, and all but gone
        0.00091
        >>> print(f"{temperature_scale(1.0, tau=1.0):.5f}")  # at the optimum, and still not zero
        0.23841
    """
    negatives = _negatives(c, tau, n)
    return 2 / _temperature(tau) * negatives / (1 + negatives)


def learnable_loss(c: ArrayLike, t: ArrayLike) -> Values:
    """The loss with the learned logit = C exp(t) and N = 2: log(1 + exp(-2C exp(t))).

    Examples:
        >>> print(f"{learnable_loss(1.0, t=0.0):.4f}")  # t = 0 is tau = 1
        0.1269
    """
    loss: Values = np.log1p(np.exp(-_logit_difference(c, t)))
    return loss


def learnable_scale(c: ArrayLike, t: ArrayLike) -> Values:
    """The size of d loss / dt with logit = C exp(t) and N = 2: 2C exp(t) / (1 + exp(2C exp(t))).

    The loss falls as t grows, so descent only ever lowers this temperature; at C = 0 it cannot move it.

    Examples:
        >>> print(f"{learnable_scale(0.0, t=3.0):.4f}, {learnable_scale(0.5, t=0.0):.4f}")
        0.0000, 0.2689
    """
    difference = _logit_difference(c, t)
    negative: Values = np.exp(-difference)
    return difference * negative / (1 + negative)


def free_loss(c: ArrayLike, n: int = 2, gain: float = 1.0) -> Values:
    """The loss with logit = 2 g atanh(C), g the gain: log(1 + (N-1) ((1-C)/(1+C))^(2g)).

    Examples:
        >>> print(f"{free_loss(0.5):.4f}, {free_loss(1.0):.4f}, {free_loss(0.5, gain=2):.4f}")
        0.1054, 0.0000, 0.0123
    """
    x = _cosine(c)
    loss: Values = np.log1p((_candidates(n) - 1) * ((1 - x) / (1 + x)) ** (2 * _gain(gain)))
    return loss


def free_scale(c: ArrayLike, n: int = 2, gain: float = 1.0) -> Values:
    """The size of d loss / dC with logit = 2 g atanh(C): 4g(N-1)q^(2g-1) / ((1+C)^2 (1 + (N-1)q^(2g))),
    with q = (1-C)/(1+C). For the gain 1 that is 4(N-1)(1-C) / ((1+C) (N(1-C)^2 + 4C)).

    Above a gain of 1/2 it is zero at C = 1 and nowhere else. At gain 1 it falls all the way for N <= 10 + 6
    sqrt(3), that is up to 20 candidates; with more it first rises, to about sqrt(N)/2 near C = 1 - 2/sqrt(N),
    then falls to zero.

    Examples:
        >>> print(f"{free_scale(0.0):.4f}, {free_scale(0.5):.4f}, {free_scale(1.0):.4f}")
        2.0000, 0.5333, 0.0000
    """
    x, others, gain = _cosine(c), _candidates(n) - 1, _gain(gain)
    odds = (1 - x) / (1 + x)
    power = odds ** (2 * gain - 1)
    return 4 * gain * others * power / ((1 + x) ** 2 * (1 + others * power * odds))


def vanishing_interval(tau: float, n: int = 2, share: float = 0.01) -> tuple[float, float] | None:
    """The cosines in [0, 1] at which `temperature_scale` is below `share` of its maximum, or None.

    The maximum is at C = 0, so the interval is (C0, 1] with C0 = (tau/2) log(N/share - (N-1)).

    Examples:
        >>> low, high = vanishing_interval(0.1)
        >>> print(f"{low:.4f} to {high:.0f}")
        0.2647 to 1
        >>> print(vanishing_interval(0.5))
        None
    """
    _temperature(tau)
    n = _candidates(n)
    if not 0 < share < 1:
        raise ValueError(f"share must lie strictly between 0 and 1, but got {share}.")
    low = tau / 2 * math.log(n / share - (n - 1))
    return (low, 1.0) if low < 1 else None


def null_density(c: ArrayLike, nu: ArrayLike) -> Values:
    """The density of the cosine of two random directions, (1-c^2)^((nu-3)/2) / B(1/2, (nu-1)/2).

    For nu < 3 it is infinite at c = -1 and 1.

    Examples:
        >>> print(f"{null_density(0.3, nu=3):.3f}, {null_density(0.0, nu=128):.3f}")
        0.500, 4.487
    """
    x, a = _any_cosine(c), _half(nu)
    density: Values = np.exp(_power(x, a - 1) - _log_beta(a))
    return density


def null_cdf(c: ArrayLike, nu: ArrayLike) -> Values:
    """The probability that the cosine of two random directions is below c; small ones keep their digits.

    Examples:
        >>> print(f"{null_cdf(0.5, nu=3):.3f}, {null_cdf(-0.5, nu=128):.1e}")
        0.750, 8.1e-10
    """
    x, a = _any_cosine(c), _half(nu)
    below: Values = betainc(a, a, (1 + x) / 2)
    return below


def null_log_odds(c: ArrayLike, nu: ArrayLike) -> Values:
    """log(P(cosine < c) / P(cosine > c)) of two random directions; infinite at c = -1 and 1.

    It is 2 atanh(y) near c = 0 and log((1 + y) / (1 - y)) in the tails, with 1 - y = I(1-c^2; a, 1/2).

    Examples:
        >>> print(f"{null_log_odds(0.5, nu=3):.6f}, {2 * math.atanh(0.5):.6f}")
        1.098612, 1.098612
        >>> print(f"{null_log_odds(0.9, nu=1000):.3f}")
        833.803
    """
    x, a = np.broadcast_arrays(_any_cosine(c), _half(nu))
    y = betainc(0.5, a, x * x)
    with np.errstate(divide="ignore"):
        odds = np.where(y < 0.5, 2 * np.arctanh(np.minimum(y, 0.5)), np.log1p(y) - _log_tail(np.abs(x), a))
    signed: Values = np.sign(x) * odds
    return signed


def null_slope(nu: ArrayLike) -> Values:
    """The slope of `null_log_odds` at c = 0, 4 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)).

    Examples:
        >>> print(f"{null_slope(3):.4f}, {null_slope(128):.4f}")
        2.0000, 17.9480
    """
    slope: Values = 4 * np.exp(-_log_beta(_half(nu)))
    return slope


def dimension_temperature(nu: ArrayLike) -> Values:
    """The temperature whose link c/tau has the slope of `null_log_odds` at c = 0: 1 / `null_slope`.

    Examples:
        >>> print(f"{dimension_temperature(3):.2f}, {dimension_temperature(39):.2f}")
        0.50, 0.10
    """
    return 1 / null_slope(nu)


def temperature_dimension(tau: ArrayLike) -> Values:
    """The nu >= 2 that a temperature of at most pi/4 stands for; the inverse of `dimension_temperature`.

    By Newton's method on log(slope), from the slope of a large nu, sqrt(8 (nu - 1.5) / pi).

    Examples:
        >>> print(f"{temperature_dimension(0.5):.2f}, {temperature_dimension(0.1):.2f}")
        3.00, 40.77
    """
    temperature = _temperature(tau)
    if not np.all(temperature <= math.pi / 4 * (1 + 1e-12)):
        raise ValueError(f"tau must be at most pi/4, that of two dimensions, but got {temperature}.")
    nu: Values = np.maximum(2.0, 1.5 + math.pi / (8 * temperature**2))
    for _ in range(6):
        # The difference has no digits left for a large nu, where the square root is exact.
        rate = np.where(nu < 1e6, (digamma(nu / 2) - digamma((nu - 1) / 2)) / 2, 0.5 / (nu - 1.5))
        nu = np.maximum(2.0, nu - np.log(null_slope(nu) * temperature) / rate)
    return nu


def _log_tail(x: Values, a: Values) -> Values:
    """log I(1-x^2; a, 1/2) for x > 0, also where I itself is too small for a number.

    There I = z^a / (a B(a, 1/2) x) (1 - w (1/2)/(a+1) (1 - w (3/2)/(a+2) (1 - ...))), with z = 1-x^2 and
    w = z/x^2. The series is asymptotic, its error less than the first term left out, and z^a < 1e-280 means
    that w < a/640: ten terms suffice, for every a.
    """
    z = (1 - x) * (1 + x)
    # A z next to 1 is rounded, and a large a makes much of it.
    tail: Values = np.where(x < 0.5, betaincc(0.5, a, x * x), betainc(a, 0.5, z))
    far = (tail < 1e-280) & (z > 0)
    logarithm: Values = np.asarray(np.log(tail))
    if far.any():
        x, w, a = x[far], z[far] / x[far] ** 2, a[far]
        term, total, k = np.ones_like(w), np.ones_like(w), 0
        while (np.abs(term) > 1e-17).any():
            term *= -w * (k + 0.5) / (a + k + 1)
            total += term
            k += 1
        logarithm[far] = _power(x, a) + np.log(total / (a * x)) - _log_beta(a)
    return logarithm


def _power(x: Values, exponent: Values) -> Values:
    """log((1-x^2)^exponent), which is 0 for the exponent 0."""
    power: Values = np.where(np.abs(x) < 0.5, xlog1py(exponent, -x * x), xlogy(exponent, (1 - x) * (1 + x)))
    return power


def _log_beta(a: Values) -> Values:
    """log B(1/2, a). From a = 50 on by Stirling's series in a - 1/4, for the difference of two log-gammas
    loses the more digits the larger they are."""
    x = np.maximum(a, 50.0) - 0.25
    y = (1 / x) ** 2
    large = np.log(np.pi / x) / 2 - y * (1 / 64 - y * (5 / 2048 - y * 61 / 49152))
    value: Values = np.where(a < 50, betaln(0.5, a), large)
    return value


def _negatives(c: ArrayLike, tau: ArrayLike, n: int) -> Values:
    """The softmax weight of all negatives, the positive's being 1: (N-1) exp(-2C/tau)."""
    weight: Values = (_candidates(n) - 1) * np.exp(-2 * _cosine(c) / _temperature(tau))
    return weight


def _logit_difference(c: ArrayLike, t: ArrayLike) -> Values:
    """The learned logit of the positive minus that of the negative, 2C exp(t)."""
    exponent = _checked("t", t, "be finite", np.isfinite)
    # exp overflows at 710; from 700 on the negative's weight is zero in float64 unless C itself is tiny.
    difference: Values = 2 * _cosine(c) * np.exp(np.minimum(exponent, 700.0))
    return difference


def _checked(
    name: str, given: ArrayLike, needed: str, is_right: Callable[[Values], NDArray[np.bool_]]
) -> Values:
    values = np.asarray(given, dtype=np.float64)
    if not np.all(is_right(values)):
        raise ValueError(f"{name} must {needed}, but got {values}.")
    return values


def _cosine(c: ArrayLike) -> Values:
    return _checked("c", c, "lie between 0 and 1", lambda x: (x >= 0) & (x <= 1))


def _any_cosine(c: ArrayLike) -> Values:
    return _checked("c", c, "lie between -1 and 1", lambda x: np.abs(x) <= 1)


def _temperature(tau: ArrayLike) -> Values:
    return _checked("tau", tau, "be positive and finite", lambda x: (x > 0) & np.isfinite(x))


def _half(nu: ArrayLike) -> Values:
    """(nu - 1) / 2, for a valid nu."""
    return (_checked("nu", nu, "be finite and at least 2", lambda x: (x >= 2) & np.isfinite(x)) - 1) / 2


def _gain(gain: float) -> float:
    if not (0.5 <= gain < math.inf):  # below, the gradient scale is infinite at C = 1
        raise ValueError(f"gain must be finite and at least 1/2, but got {gain}.")
    return gain


def _candidates(n: int) -> int:
    if not (n >= 2 and n % 1 == 0):  # nor infinity, nor NaN
        raise ValueError(f"n must be a whole number of at least 2 candidates, but got {n}.")
    return int(n)
