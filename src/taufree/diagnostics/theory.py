"""The loss and its gradient in the paper's scenario, as closed forms.

An anchor has one positive at cosine C and N - 1 negatives at cosine -C, with 0 <= C <= 1: at C = 0 it
cannot tell them apart, C = 1 is the optimum. A *gradient scale* is the size of the loss's derivative,
how hard gradient descent pulls at that C. Every function takes numbers or arrays and broadcasts them;
numbers alone give a numpy number back.

All exponents here are <= 0, so nothing overflows, and 1 - C is exact in floating point for C >= 1/2,
so every value keeps its digits as C approaches 1.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values: TypeAlias = NDArray[np.float64]


def temperature_loss(c: ArrayLike, tau: ArrayLike, n: int = 2) -> Values:
    """The loss with logit = C / tau: log(1 + (N-1) exp(-2C/tau)).

    >>> print(f"{temperature_loss(1.0, tau=1.0):.4f}")  # at the optimum, and still not zero
    0.1269
    """
    loss: Values = np.log1p(_negatives(c, tau, n))
    return loss


def temperature_scale(c: ArrayLike, tau: ArrayLike, n: int = 2) -> Values:
    """The size of d loss / dC with logit = C / tau: (N-1) (2/tau) / ((N-1) + exp(2C/tau)).

    >>> print(f"{temperature_scale(0.5, tau=0.1):.5f}")  # halfway, and all but gone
    0.00091
    >>> print(f"{temperature_scale(1.0, tau=1.0):.5f}")  # arrived, and still pulling
    0.23841
    """
    negatives = _negatives(c, tau, n)
    return 2 / _temperature(tau) * negatives / (1 + negatives)


def learnable_loss(c: ArrayLike, t: ArrayLike) -> Values:
    """The loss with the learned logit = C exp(t) and N = 2: log(1 + exp(-2C exp(t))).

    >>> print(f"{learnable_loss(1.0, t=0.0):.4f}")  # t = 0 is tau = 1
    0.1269
    """
    loss: Values = np.log1p(np.exp(-_gap(c, t)))
    return loss


def learnable_scale(c: ArrayLike, t: ArrayLike) -> Values:
    """The size of d loss / dt with logit = C exp(t) and N = 2: 2C exp(t) / (1 + exp(2C exp(t))).

    The loss falls as t grows, so descent only ever lowers this temperature; at C = 0 it cannot move it.

    >>> print(f"{learnable_scale(0.0, t=3.0):.4f}, {learnable_scale(0.5, t=0.0):.4f}")
    0.0000, 0.2689
    """
    gap = _gap(c, t)
    negative: Values = np.exp(-gap)
    return gap * negative / (1 + negative)


def free_loss(c: ArrayLike, n: int = 2) -> Values:
    """The loss with logit = 2 atanh(C): -log((1+C)^2 / ((1+C)^2 + (N-1)(1-C)^2)).

    >>> print(f"{free_loss(0.5):.4f}, {free_loss(1.0):.4f}")
    0.1054, 0.0000
    """
    x = _cosine(c)
    loss: Values = np.log1p((_candidates(n) - 1) * ((1 - x) / (1 + x)) ** 2)
    return loss


def free_scale(c: ArrayLike, n: int = 2) -> Values:
    """The size of d loss / dC with logit = 2 atanh(C): 4(N-1)(1-C) / ((1+C) (N(1-C)^2 + 4C)).

    It is zero at C = 1 and nowhere else. It falls all the way for N <= 10 + 6 sqrt(3), that is up to 20
    candidates; with more it first rises, to about sqrt(N)/2 near C = 1 - 2/sqrt(N), then falls to zero.

    >>> print(f"{free_scale(0.0):.4f}, {free_scale(0.5):.4f}, {free_scale(1.0):.4f}")
    2.0000, 0.5333, 0.0000
    """
    x, n = _cosine(c), _candidates(n)
    return 4 * (n - 1) * (1 - x) / ((1 + x) * (n * (1 - x) ** 2 + 4 * x))


def vanishing_interval(tau: float, n: int = 2, share: float = 0.01) -> tuple[float, float] | None:
    """The cosines in [0, 1] at which `temperature_scale` is below `share` of its maximum, or None.

    The maximum is at C = 0, so the interval is (C0, 1] with C0 = (tau/2) log(N/share - (N-1)).

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


def _negatives(c: ArrayLike, tau: ArrayLike, n: int) -> Values:
    """The softmax weight of all negatives, the positive's being 1: (N-1) exp(-2C/tau)."""
    weight: Values = (_candidates(n) - 1) * np.exp(-2 * _cosine(c) / _temperature(tau))
    return weight


def _gap(c: ArrayLike, t: ArrayLike) -> Values:
    """The learned logit of the positive minus that of the negative, 2C exp(t)."""
    exponent = np.asarray(t, dtype=np.float64)
    if not np.all(np.isfinite(exponent)):
        raise ValueError(f"t must be finite, but got {exponent}.")
    # exp overflows at 710; from 700 on the negative's weight is zero in float64 unless C itself is tiny.
    gap: Values = 2 * _cosine(c) * np.exp(np.minimum(exponent, 700.0))
    return gap


def _cosine(c: ArrayLike) -> Values:
    cosine = np.asarray(c, dtype=np.float64)
    if not np.all((cosine >= 0) & (cosine <= 1)):
        raise ValueError(f"c must lie between 0 and 1, but got {cosine}.")
    return cosine


def _temperature(tau: ArrayLike) -> Values:
    temperature = np.asarray(tau, dtype=np.float64)
    if not np.all((temperature > 0) & np.isfinite(temperature)):
        raise ValueError(f"tau must be positive and finite, but got {temperature}.")
    return temperature


def _candidates(n: int) -> int:
    if n != int(n) or n < 2:
        raise ValueError(f"n must be a whole number of at least 2 candidates, but got {n}.")
    return int(n)
