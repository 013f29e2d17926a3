"""The schemes that are links, against float64 sketches of their publications."""

import copy
import math

import pytest
import torch
from torch.nn.functional import normalize

from taufree import info_nce, nt_xent
from taufree.baselines import (
    AdaptiveTemperature,
    Cauchy,
    DySTreSS,
    ModelAwareTemperature,
    PositivePairTemperature,
    TemperatureSchedule,
    VonMisesFisherTemperature,
)
from tests.support.contrasts import rows

N, D = 6, 5
RULES = {
    PositivePairTemperature: lambda positive, mean: 2 * (1 - positive),
    VonMisesFisherTemperature: lambda r, mean: (1 - r**2) / (r * (D - r**2)),
    AdaptiveTemperature: lambda positive, mean: (positive - mean) / math.log(N / 2),
    ModelAwareTemperature: lambda positive, mean: 0.1 * (1 + 0.5 * positive),
}


def pairs():
    a = rows(N, D)
    return a.requires_grad_(), (a.detach() + rows(N, D, seed=1) / 2).requires_grad_()


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("made", RULES)
def test_a_rule_sets_the_temperature_of_each_batch(made, backend):
    link, (a, b) = made(), pairs()
    c = normalize(a, dim=1) @ normalize(b, dim=1).T
    tau = RULES[made](c.diag().mean().item(), c.mean().item())
    expected = torch.nn.functional.cross_entropy(c / tau, torch.arange(N))
    found = info_nce(a, b, link=link, backend=backend)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)))
    assert link.tau.item() == pytest.approx(tau, rel=1e-6)
    torch.testing.assert_close(link(torch.tensor([0.5])), torch.tensor([0.5 / tau]), rtol=1e-5, atol=0)
    assert link.formula.kind == "linear"  # which the fused kernels have


def test_a_rule_is_compiled_and_transformed():
    link, (a, b) = PositivePairTemperature(), pairs()
    expected = nt_xent(a, b, link=link)
    compiled = torch.compile(lambda a, b: nt_xent(a, b, link=link), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b), expected)
    found = torch.func.grad(lambda a: nt_xent(a, b, link=link))(a.detach())
    torch.testing.assert_close(found, torch.autograd.grad(expected, a)[0])


def test_identical_views_leave_all_rules_finite():
    view = torch.eye(4, requires_grad=True)
    for made in RULES:
        link = made()
        nt_xent(view, view, link=link).backward()
        assert 0 < link.tau.item() < math.inf
        assert view.grad.isfinite().all()


def test_the_schedule_hears_how_much_is_done():
    link = TemperatureSchedule(low=0.1, high=1.0, periods=5)
    a, b = pairs()
    for epoch in (1, 100, 200, 300, 400, 2000):  # as published: half a period is 200 of 2000 epochs
        link.step(epoch / 2000)
        tau = 0.1 + 0.9 * (1 + math.cos(math.pi * epoch / 200)) / 2
        torch.testing.assert_close(nt_xent(a, b, link=link), nt_xent(a, b, link=tau), rtol=1e-6, atol=1e-6)
    resumed = TemperatureSchedule()
    link.step(0.03)
    resumed.load_state_dict(copy.deepcopy(link.state_dict()))
    assert resumed.tau == link.tau


def test_a_plain_link_hears_it_and_stays():
    link = Cauchy()
    link.step(0.5)
    assert link(torch.tensor([1.0])).item() == 0


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_dystress_has_a_detached_slope(backend):
    a, b = pairs()
    c = normalize(a, dim=1) @ normalize(b, dim=1).T
    tau = 0.1 + 0.1 * (1 + torch.cos(math.pi * (1 + c.detach()))) / 2
    expected = torch.nn.functional.cross_entropy(c / tau, torch.arange(N))
    found = info_nce(a, b, link=DySTreSS(0.1, 0.2), backend=backend)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)))


def test_dystress_undetached_is_monotone_below_a_ratio_of_four_and_a_half():
    s = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    for ratio, monotone in ((4.4, True), (4.6, False)):
        steps = DySTreSS(0.1, 0.1 * ratio)(s).diff()
        assert bool((steps > 0).all()) is monotone


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_the_cauchy_kernel_is_of_the_euclidean_distance(backend):
    a, b = pairs()
    distance = torch.cdist(normalize(a, dim=1), normalize(b, dim=1)).square()
    expected = torch.nn.functional.cross_entropy(-torch.log(1 + distance), torch.arange(N))
    found = info_nce(a, b, link=Cauchy(), backend=backend)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)))
