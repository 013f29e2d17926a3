"""The links of the study beside CalibratedLogOdds: what they measure, and that every backend can use them."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from benchmarks.alternatives import Centred, Full, Median, NullLogOdds, WithCount
from taufree import CalibratedLogOdds, info_nce, nt_xent, sup_con
from taufree.diagnostics import theory
from taufree.links import TensorGain


def rows(n=64, d=24, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def measured(link, a, b):
    nt_xent(a, b, link=link)
    return link


def cosines(a, b):
    """All negatives of NT-Xent, by numpy."""
    z = torch.cat([a, b]).numpy()
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    n = len(a)
    return np.array([z[i] @ z[j] for i in range(2 * n) for j in range(2 * n) if (i - j) % n])


def test_centred_takes_the_variance():
    uneven = torch.linspace(2, 0.2, 24)
    a, b = rows() * uneven + 0.5, rows(seed=1) * uneven + 0.5
    found = cosines(a, b)
    link = measured(Centred(), a, b)
    assert link.dimension == pytest.approx(1 / found.var(), rel=1e-5)
    assert link.gain == pytest.approx(theory.null_slope(link.dimension) / 2, rel=1e-6)
    assert measured(CalibratedLogOdds(), a, b).dimension < 0.7 * link.dimension


def test_no_dimension_beyond_the_columns():
    a = 1 + 1e-3 * rows()
    assert measured(Centred(), a, a + 1e-3 * rows(seed=1)).dimension == pytest.approx(24, rel=1e-6)


@pytest.mark.parametrize("d", [5, 40])
def test_median_finds_the_dimension_of_random_directions(d):
    a, b = rows(600, d), rows(600, d, seed=1)
    link = measured(Median(), a, b)
    assert link.dimension == pytest.approx(d, rel=0.02)
    median = np.median(np.abs(cosines(a[:80], b[:80])))
    link = measured(Median(), a[:80], b[:80])
    assert theory.null_cdf(median, link.dimension) == pytest.approx(0.75, abs=1e-4)


def test_median_does_not_feel_a_few_duplicates():
    a, b = rows(200), rows(200, seed=1)
    a[:12], b[:12] = a[0], a[0]
    assert measured(Median(), a, b).dimension > 1.05 * measured(CalibratedLogOdds(), a, b).dimension


def test_with_count_is_the_threshold_of_gaussian_logits():
    a, b = rows(), rows(seed=1)
    link = measured(WithCount(), a, b)
    assert link.moment == measured(CalibratedLogOdds(), a, b).moment
    tau = math.sqrt(link.moment) / math.sqrt(2 * math.log(126))
    assert link(torch.tensor([1e-6], dtype=torch.float64)).item() == pytest.approx(1e-6 / tau, rel=1e-3)
    concentrated = rows() * 1e-3 + 1
    link = measured(WithCount(), concentrated[:2], concentrated[2:4])
    assert link._now().gain == 1


def test_the_threshold_is_where_a_few_logits_begin_to_carry_the_sum():
    """The share of the largest of N Gaussian weights, below and above s = sqrt(2 ln N)."""
    x = rows(200, 10_000)
    threshold = math.sqrt(2 * math.log(10_000))
    shares = [(x * threshold * part).softmax(1).amax(1).mean().item() for part in (0.5, 1.0, 2.0)]
    assert shares[0] < 0.1 < shares[1] < 0.5 < shares[2]


@pytest.mark.parametrize("nu", [3.0, 7.3, 128.0])
def test_full_is_the_log_odds_of_the_null_distribution(nu):
    link = NullLogOdds(nu, 1e-4)
    c = torch.cat([torch.linspace(-1, 1, 999, dtype=torch.float64), torch.tensor([0.0, 1e-7]).double()])
    expected = theory.null_log_odds(c.numpy() / (1 + 1e-4), nu)
    torch.testing.assert_close(link(c), torch.as_tensor(expected), rtol=1e-7, atol=1e-7)
    at = c[::50] / (1 + 1e-4)
    density, log_odds = theory.null_density(at.numpy(), nu), theory.null_log_odds(at.numpy(), nu)
    slope = density * (2 + 2 * np.cosh(log_odds)) / (1 + 1e-4)  # 1/(F(1-F)) = 2 + 2 cosh
    found = link.slope(c[::50], 1 - c[::50], 1 + c[::50]).numpy()
    np.testing.assert_allclose(found, slope, rtol=1e-5)
    assert link(torch.tensor([torch.nan])).isnan().all()


def test_the_table_agrees_with_an_integral():
    below, every = (quad(lambda c: (1 - c * c) ** 2, -1, end)[0] for end in (0.3 / (1 + 1e-4), 1))
    found = NullLogOdds(7.0, 1e-4)(torch.tensor([0.3], dtype=torch.float64)).item()
    assert found == pytest.approx(math.log(below / (every - below)), rel=1e-9)


def test_full_has_the_slope_of_the_calibrated_link_at_zero_and_more_beyond():
    a, b = rows(), rows(seed=1)
    links = [measured(kind(), a, b) for kind in (Full, CalibratedLogOdds)]
    near, far = ([link(torch.tensor([c], dtype=torch.float64)).item() for link in links] for c in (1e-5, 0.9))
    assert near[0] == pytest.approx(near[1], rel=1e-3)
    assert far[0] > 1.5 * far[1]


@pytest.mark.parametrize("kind", [Centred, Median, WithCount, Full])
def test_backends_agree_and_duplicates_are_finite(kind):
    a = rows().float()
    a[1] = a[0]
    results = []
    for backend in ("reference", "blockwise"):
        x = a.clone().requires_grad_()
        loss = nt_xent(x, x.detach() + 0.1 * rows(seed=1).float(), link=kind(), backend=backend)
        results.append([loss.detach(), *torch.autograd.grad(loss, x)])
        assert all(value.isfinite().all() for value in results[-1])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [Centred, Median, WithCount, Full])
def test_state_goes_with_the_link_and_eval_freezes_it(kind):
    link = measured(kind(), rows(), rows(seed=1))
    again = kind()
    again.load_state_dict(link.state_dict())
    c = torch.tensor([0.4])
    assert again(c) == link(c)
    assert again(c) == measured(again.eval(), rows(d=3), rows(d=3, seed=1))(c)


def test_the_fused_kernels_know_what_a_measured_gain_becomes():
    assert all(type(kind()._now()) is TensorGain for kind in (Centred, Median, WithCount))


def test_other_negatives_are_refused():
    with pytest.raises(ValueError, match="negative_keys and labels"):
        info_nce(rows(), rows(), rows(), link=Centred())
    with pytest.raises(ValueError, match="negative_keys and labels"):
        sup_con(rows(), torch.arange(64) // 2, link=Median())
