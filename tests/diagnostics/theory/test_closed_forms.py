"""The closed forms against autograd on the softmax itself, and the facts the paper reads off them."""

import math
import re
import warnings

import mpmath
import numpy as np
import pytest
import torch

from taufree.diagnostics.theory import closed_forms as theory

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


@pytest.mark.parametrize("gain", [0.5, 1.7, 4.0])
def test_free_forms_with_a_gain_are_the_softmax(gain):
    loss, scale = softmax_truth(lambda c: 2 * gain * torch.atanh(c), COSINES, 16)
    np.testing.assert_allclose(theory.free_loss(COSINES, 16, gain), loss, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(theory.free_scale(COSINES, 16, gain), scale, rtol=1e-10, atol=1e-10)


DIMENSIONS = (2, 2.5, 3, 4, 7.3, 39, 128, 1000)
VAST_DIMENSIONS = (300, 1e4, 1e6, 1e8)


@pytest.mark.parametrize("nu", DIMENSIONS)
def test_random_directions_against_mpmath(nu):
    """Log-odds to 14 digits from 1e-12 to within a rounding of 1, even where the tail underflows."""
    with mpmath.workdps(60):
        a = (mpmath.mpf(nu) - 1) / 2
        for c in (1e-12, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 2.0**-53):
            x = mpmath.mpf(c)
            density = (1 - x * x) ** (a - 1) / mpmath.beta(0.5, a)
            y = mpmath.betainc(0.5, a, 0, x * x, regularized=True)
            tail = mpmath.betainc(a, 0.5, 0, 1 - x * x, regularized=True)
            odds = mpmath.log1p(y) - mpmath.log(tail) if c > 0.1 else 2 * mpmath.atanh(y)
            if density > 1e-300:
                assert theory.null_density(c, nu) == pytest.approx(float(density), rel=1e-11, abs=0)
                assert theory.null_cdf(-c, nu) == pytest.approx(float(tail / 2), rel=1e-11, abs=0)
            assert theory.null_log_odds(c, nu) == pytest.approx(float(odds), rel=2e-14, abs=0)
            assert theory.null_log_odds(-c, nu) == -theory.null_log_odds(c, nu)
        slope = 4 * mpmath.gamma(mpmath.mpf(nu) / 2) / mpmath.sqrt(mpmath.pi) / mpmath.gamma(a)
        assert theory.null_slope(nu) == pytest.approx(float(slope), rel=1e-12)
    assert theory.null_log_odds(1.0, nu) == math.inf
    assert theory.null_log_odds(0.0, nu) == 0


def test_three_dimensions_are_the_free_link():
    c = np.linspace(-1, 1, 20_001)[1:-1]
    np.testing.assert_allclose(theory.null_log_odds(c, 3), 2 * np.arctanh(c), rtol=1e-12)
    np.testing.assert_allclose(theory.null_cdf(c, 3), (1 + c) / 2, rtol=1e-12)
    np.testing.assert_allclose(theory.null_density(c, 3), 0.5, rtol=1e-12)
    assert theory.dimension_temperature(3) == pytest.approx(0.5, rel=1e-14)


def test_two_dimensions_are_the_arc_cosine():
    c = np.linspace(-1, 1, 2001)[1:-1]
    np.testing.assert_allclose(theory.null_cdf(c, 2), 1 - np.arccos(c) / np.pi, rtol=1e-12)
    assert theory.null_density(1.0, 2) == math.inf


@pytest.mark.parametrize("nu", [2, 3, 10, 64])
def test_random_directions_by_drawing_them(nu):
    draw = np.random.default_rng(0)
    first, second = draw.standard_normal((2, 200_000, nu))
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    for c in (-0.6, -0.1, 0.0, 0.2, 0.5):
        chance = theory.null_cdf(c, nu)
        assert (cosine < c).mean() == pytest.approx(
            chance, abs=5 * math.sqrt(chance * (1 - chance) / 2e5) + 1e-9
        )
        assert theory.null_log_odds(c, nu) == pytest.approx(
            math.log(chance / theory.null_cdf(-c, nu)), abs=1e-12
        )
    assert (cosine**2).mean() == pytest.approx(1 / nu, rel=0.02)


@pytest.mark.parametrize("nu", VAST_DIMENSIONS)
def test_vast_dimensions_keep_their_digits(nu):
    """Cosines as wide as they are in nu dimensions: s standard deviations from 0, by quadrature."""
    with mpmath.workdps(30):
        slope = 4 * mpmath.gammaprod([mpmath.mpf(nu) / 2], [mpmath.mpf(1) / 2, (mpmath.mpf(nu) - 1) / 2])
        assert theory.null_slope(nu) == pytest.approx(float(slope), rel=1e-14)

        def density(c):
            return slope / 4 * mpmath.exp((mpmath.mpf(nu) - 3) / 2 * mpmath.log1p(-c * c))

        for s in (0.1, 0.6, 1, 3, 8):
            c = s / math.sqrt(nu)
            y = 2 * mpmath.quad(density, [s / mpmath.sqrt(nu) * part / 8 for part in range(9)])
            odds = mpmath.log((1 + y) / (1 - y))
            assert theory.null_density(c, nu) == pytest.approx(float(density(mpmath.mpf(c))), rel=1e-13)
            assert theory.null_log_odds(c, nu) == pytest.approx(float(odds), rel=2e-14)


@pytest.mark.parametrize("nu", [1e4, 1e9, 1e15])
def test_a_tail_too_small_for_a_number(nu):
    """40 standard deviations from 0, by quadrature of what the density falls by; at once for every nu."""
    with mpmath.workdps(50):
        power, c = (mpmath.mpf(nu) - 3) / 2, mpmath.mpf(40 / math.sqrt(nu))
        log_most = power * mpmath.log1p(-c * c) - mpmath.log(mpmath.beta(0.5, power + 1))

        def falls(step):
            return mpmath.exp(power * (mpmath.log1p(-((c + step * c) ** 2)) - mpmath.log1p(-c * c)))

        tail = mpmath.quad(falls, [part / mpmath.mpf(400) for part in range(41)])
        odds = -log_most - mpmath.log(c * tail)
        assert theory.null_log_odds(float(c), nu) == pytest.approx(float(odds), rel=2e-14)


def test_temperatures_and_dimensions_are_each_others_inverse():
    nu = np.geomspace(2, 1e9, 1001)
    tau = theory.dimension_temperature(nu)
    assert (np.diff(tau) < 0).all()
    np.testing.assert_allclose(theory.temperature_dimension(tau), nu, rtol=1e-12)
    assert theory.temperature_dimension(math.pi / 4) == pytest.approx(2)
    np.testing.assert_allclose(theory.null_slope(1e6), math.sqrt(8e6 / math.pi), rtol=1e-5)


@pytest.mark.parametrize("tau", [1e-3, 1e-8, 1e-100])
def test_a_tiny_temperature_is_a_vast_dimension(tau):
    assert theory.temperature_dimension(tau) == pytest.approx(1.5 + np.pi / (8 * tau**2), rel=1e-7)


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
        (
            lambda: theory.free_loss(0.5, math.inf),
            "n must be a whole number of at least 2 candidates, but got inf.",
        ),
        (lambda: theory.free_loss(0.5, gain=0.4), "gain must be finite and at least 1/2, but got 0.4."),
        (lambda: theory.null_cdf(-1.5, 3), "c must lie between -1 and 1, but got -1.5."),
        (lambda: theory.null_slope(1.5), "nu must be finite and at least 2, but got 1.5."),
        (
            lambda: theory.temperature_dimension(1.0),
            "tau must be at most pi/4, that of two dimensions, but got 1.0.",
        ),
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
