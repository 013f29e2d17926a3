"""The closed forms against autograd on the softmax itself, and the facts the paper reads off them."""

import math
import re
import warnings

import mpmath
import numpy as np
import pytest
import torch

from taufree.diagnostics import theory

CANDIDATES = [2, 4, 8, 16]
COSINES = np.linspace(0.001, 0.999, 401)
FINE = np.linspace(0, 1, 100_001)


def softmax_truth(logit, c, n):
    """Loss and size of d loss / dC of one positive at C and n-1 negatives at -C, by float64 autograd."""
    cosine = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    cosines = torch.stack([cosine] + [-cosine] * (n - 1), dim=-1)
    target = torch.zeros(len(c), dtype=torch.long)
    losses = torch.nn.functional.cross_entropy(logit(cosines), target, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), cosine)
    return losses.detach().numpy(), gradient.abs().numpy()


@pytest.mark.parametrize("n", CANDIDATES)
@pytest.mark.parametrize("tau", [0.05, 0.1, 0.25, 0.5, 1.0, 5.0])
def test_temperature_forms_are_the_softmax(tau, n):
    loss, scale = softmax_truth(lambda c: c / tau, COSINES, n)
    np.testing.assert_allclose(theory.temperature_loss(COSINES, tau, n), loss, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(theory.temperature_scale(COSINES, tau, n), scale, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", CANDIDATES)
def test_free_forms_are_the_softmax(n):
    loss, scale = softmax_truth(lambda c: 2 * torch.atanh(c), COSINES, n)
    np.testing.assert_allclose(theory.free_loss(COSINES, n), loss, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(theory.free_scale(COSINES, n), scale, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("t", [-1.0, 0.0, 0.7, math.log(1 / 0.07), 4.6])
def test_learnable_forms_are_the_softmax(t):
    exponent = torch.full((len(COSINES),), t, dtype=torch.float64, requires_grad=True)
    cosine = torch.tensor(COSINES)
    logits = torch.stack([cosine, -cosine], dim=-1) * exponent.exp()[:, None]
    losses = -logits.log_softmax(dim=-1)[:, 0]
    (gradient,) = torch.autograd.grad(losses.sum(), exponent)
    np.testing.assert_allclose(theory.learnable_loss(COSINES, t), losses.detach().numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(theory.learnable_scale(COSINES, t), -gradient.numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", CANDIDATES)
def test_free_forms_keep_every_digit_near_the_optimum(n):
    with mpmath.workdps(60):
        for distance in (1e-3, 1e-8, 2.0**-52):
            c = 1 - distance
            x = mpmath.mpf(c)
            loss = mpmath.log1p((n - 1) * ((1 - x) / (1 + x)) ** 2)
            scale = -mpmath.diff(lambda y: mpmath.log1p((n - 1) * ((1 - y) / (1 + y)) ** 2), x)
            assert theory.free_loss(c, n) == pytest.approx(float(loss), rel=1e-14, abs=0)
            assert theory.free_scale(c, n) == pytest.approx(float(scale), rel=1e-14, abs=0)


def test_a_temperature_bounds_the_probability_of_the_positive():
    sigmoid_2, sigmoid_20 = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-20))
    assert math.exp(-theory.temperature_loss(1.0, 1.0)) == pytest.approx(sigmoid_2, abs=1e-14)
    assert round(sigmoid_2, 2) == 0.88
    assert math.exp(-theory.temperature_loss(1.0, 0.1)) == pytest.approx(sigmoid_20, abs=1e-14)
    assert math.exp(-theory.free_loss(1.0)) == 1


def test_a_low_temperature_vanishes_long_before_the_optimum():
    low, high = theory.vanishing_interval(0.1)
    assert (low, high) == (pytest.approx(0.05 * math.log(199), rel=1e-14), 1)
    assert low == pytest.approx(0.26467, abs=1e-5)  # so (0.4, 0.7) lies well inside
    scale = theory.temperature_scale(FINE, 0.1)
    np.testing.assert_array_equal(scale < 0.01 * scale.max(), low < FINE)


@pytest.mark.parametrize("tau", [0.02, 0.1, 0.25, 0.3])
@pytest.mark.parametrize("n", CANDIDATES)
@pytest.mark.parametrize("share", [0.001, 0.01, 0.5])
def test_vanishing_interval_is_where_the_scale_is_small(tau, n, share):
    scale = theory.temperature_scale(FINE, tau, n)
    small = FINE[scale < share * scale.max()]
    interval = theory.vanishing_interval(tau, n, share)
    if interval is None:
        assert small.size == 0
    else:
        assert small[0] == pytest.approx(interval[0], abs=1.1e-5)
        assert (small[-1], interval[1]) == (1, 1)


def test_a_high_temperature_still_pulls_at_the_optimum():
    assert theory.temperature_scale(1.0, 1.0) > 0.2 * theory.temperature_scale(0.0, 1.0)
    assert theory.vanishing_interval(1.0) is None


@pytest.mark.parametrize("n", [*CANDIDATES, 20])
def test_free_scale_falls_all_the_way_up_to_twenty_candidates(n):
    assert (np.diff(theory.free_scale(FINE, n)) < 0).all()


@pytest.mark.parametrize("n", [21, 256, 4096])
def test_free_scale_first_rises_with_more_candidates(n):
    """It rises where N C (1-C)^2 > 2(1 + 2C - C^2), which no C satisfies up to N = 10 + 6 sqrt(3) = 20.39."""
    scale = theory.free_scale(FINE, n)
    predicted = n * FINE * (1 - FINE) ** 2 > 2 * (1 + 2 * FINE - FINE**2)
    assert predicted[FINE.searchsorted(2 - math.sqrt(3))]
    settled = predicted[1:] == predicted[:-1]  # grid steps that do not straddle a turning point
    np.testing.assert_array_equal((np.diff(scale) > 0)[settled], predicted[1:][settled])


@pytest.mark.parametrize("n", [256, 4096, 65536])
def test_free_scale_peaks_at_half_the_root_of_many_candidates(n):
    scale = theory.free_scale(FINE, n)
    assert 1 - FINE[scale.argmax()] == pytest.approx(2 / math.sqrt(n), rel=0.1)
    assert scale.max() == pytest.approx(math.sqrt(n) / 2, rel=0.15)


@pytest.mark.parametrize("n", [*CANDIDATES, 256, 65536])
def test_free_scale_is_zero_only_at_the_optimum(n):
    scale = theory.free_scale(FINE, n)
    assert (scale[:-1] > 0).all()
    assert scale[-1] == 0


def test_learnable_scale_is_zero_without_contrast():
    t = np.linspace(-20, 1000, 103)
    np.testing.assert_array_equal(theory.learnable_scale(0.0, t), np.zeros(103))
    assert (theory.learnable_scale(0.01, t[t < 5]) > 0).all()


def test_extremes_neither_warn_nor_turn_into_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tau in (1e-6, 0.01, 1e6):
            assert np.isfinite(theory.temperature_loss(FINE, tau, 65536)).all()
            assert np.isfinite(theory.temperature_scale(FINE, tau, 65536)).all()
        for t in (-1000.0, 0.0, 1000.0):
            assert np.isfinite(theory.learnable_loss(FINE, t)).all()
            assert np.isfinite(theory.learnable_scale(FINE, t)).all()


def test_arguments_broadcast():
    table = theory.temperature_scale(COSINES[:, None], np.array([0.1, 0.5]))
    assert table.shape == (401, 2)
    assert table[7, 1] == theory.temperature_scale(COSINES[7], 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.free_loss(1.5), "c must lie between 0 and 1, but got 1.5."),
        (lambda: theory.free_scale(math.nan), "c must lie between 0 and 1, but got nan."),
        (lambda: theory.temperature_loss(0.5, 0.0), "tau must be positive and finite, but got 0.0."),
        (lambda: theory.vanishing_interval(-1.0), "tau must be positive and finite, but got -1.0."),
        (lambda: theory.free_scale(0.5, 1), "n must be a whole number of at least 2 candidates, but got 1."),
        (lambda: theory.learnable_scale(0.5, math.inf), "t must be finite, but got inf."),
        (
            lambda: theory.vanishing_interval(0.1, share=1.0),
            "share must lie strictly between 0 and 1, but got 1.0.",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
