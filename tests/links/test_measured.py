"""CalibratedLogOdds: the gain it takes from a batch, how it remembers, and that every backend uses it."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

import taufree
from taufree import CalibratedLogOdds, InfoNCE, Link, LogOdds, NTXent, Temperature, info_nce, nt_xent, sup_con
from taufree.backends import moments
from taufree.contrast import Contrast
from taufree.diagnostics.theory import closed_forms as theory
from taufree.links import Formula, from_formula

IDS = torch.arange(40) // 2


def rows(n=40, d=24, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def calibrated(moment, **options):
    link = CalibratedLogOdds(**options)
    link.moment.fill_(moment)
    return link.eval()


CALLS = {
    "one-way": lambda a, b, **o: info_nce(a, b, **o),
    "symmetric, ids": lambda a, b, **o: info_nce(a, b, symmetric=True, ids=IDS, **o),
    "queue": lambda a, b, **o: info_nce(a, b, rows(30, seed=5).to(a.dtype), **o),
    "hard negatives": lambda a, b, **o: info_nce(a, b, rows(120, seed=6).view(40, 3, 24), in_batch=True, **o),
    "nt_xent": lambda a, b, **o: nt_xent(a, b, ids=IDS, **o),
    "sup_con": lambda a, b, **o: sup_con(a + b, IDS % 5, **o),
}  # fmt: skip


@pytest.mark.parametrize("nu", [3.5, 6.0, 39.0, 128.0, 4096.0])
def test_the_gain_is_half_the_slope_of_the_log_odds_in_nu_dimensions(nu):
    link = calibrated(1 / nu)
    assert link.dimension == pytest.approx(nu, rel=1e-6)
    assert link.gain == pytest.approx(theory.null_slope(link.dimension) / 2, rel=1e-9)


@pytest.mark.parametrize("moment", [1 / 3, 0.5, 0.99, 1.0])
def test_up_to_three_dimensions_it_is_the_papers_link(moment):
    assert calibrated(moment).gain == 1.0


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_on_a_concentrated_batch_it_is_the_papers_link(backend):
    link = CalibratedLogOdds()
    results = []
    for one in (link, LogOdds()):
        a = (rows() * 0.2 + 1).requires_grad_()
        loss = nt_xent(a, a.detach() + 0.05 * rows(seed=1), link=one, backend=backend)
        results.append([loss.detach(), *torch.autograd.grad(loss, a)])
    assert 1 < link.dimension < 3
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CALLS)
def test_every_loss_and_backend_uses_the_measured_gain(name):
    link = CalibratedLogOdds()
    a, b = rows(), rows() + rows(seed=1)
    CALLS[name](a, b, link=link)
    assert 10 < link.dimension <= 24.01
    assert link.gain > 2
    expected = None
    for backend, one in (
        ("reference", LogOdds(link.gain)), ("reference", link), ("blockwise", link), ("auto", link)
    ):  # fmt: skip
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        loss = CALLS[name](x, y, link=one, backend=backend)
        found = [loss, *torch.autograd.grad(loss, [x, y])]
        expected = expected or found
        for one_part, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one_part, other, rtol=2e-5, atol=1e-7)


def test_it_moves_no_further_than_the_batch_asks_for():
    link = CalibratedLogOdds()

    def after(mean, error):
        found = torch.tensor(mean), torch.tensor(error)
        link.prepare(SimpleNamespace(squared_cosine=lambda found=found: found))
        return link.moment.item()

    assert after(0.5, 0.1) == pytest.approx(0.6)  # from 1, where it begins
    assert after(0.55, 0.1) == pytest.approx(0.6)  # within the error
    assert after(0.2, 0.01) == pytest.approx(0.21)
    assert after(0.3, 0.05) == pytest.approx(0.25)
    assert after(math.nan, math.nan) == pytest.approx(0.25)


def test_it_smooths_small_batches_and_follows_a_change():
    """Over batches of one kind its gain varies less than a batch's own; a jump is followed at once."""
    link, alone, held = CalibratedLogOdds(), [], []
    weights = torch.arange(1, 17).rsqrt()
    for seed in range(200):
        batch = rows(16, 16, seed) * weights
        other = rows(16, 16, seed + 999) * weights
        nt_xent(batch, other, link=link)
        held.append(link.gain)
        mean, _ = moments.measure(Contrast(torch.cat([batch, other]), shift=16))
        alone.append(calibrated(mean.item()).gain)
    alone, held = torch.tensor(alone[50:]), torch.tensor(held[50:])
    assert held.std() < 0.75 * alone.std()
    assert held.mean().item() == pytest.approx(alone.mean().item(), rel=0.05)
    nt_xent(rows(512, 16), rows(512, 16, 1), link=link)
    assert link.dimension == pytest.approx(16, rel=0.05)


def test_the_gain_has_no_gradient_and_backward_uses_the_one_of_its_forward():
    """Two losses before a backward: the second moves the link on, the first one's gradient stays its own."""
    for backend in ("reference", "blockwise"):
        link, a = CalibratedLogOdds(), rows().requires_grad_()
        first = info_nce(a, rows(seed=1), link=link, reduction="none", backend=backend)
        gain = link.gain
        info_nce(rows() + 3, rows(seed=1) + 3, link=link)
        assert link.gain < gain / 2
        found = torch.autograd.grad(first.sum(), a)[0]
        expected = info_nce(a, rows(seed=1), link=LogOdds(gain), reduction="sum", backend=backend)
        torch.testing.assert_close(found, torch.autograd.grad(expected, a)[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_a_subclass_with_a_logit_of_its_own_is_heard(backend):
    class Half(CalibratedLogOdds):
        def logit(self, cosine, gap, rise):
            return super().logit(cosine, gap, rise) / 2

    link, a, b = Half(), rows().requires_grad_(), rows(seed=1)
    loss = nt_xent(a, b, link=link, backend=backend)
    gain = link.gain
    assert gain > 2
    nt_xent(rows(d=2000), rows(d=2000, seed=3), link=link)  # the gain moves on before the backward
    assert link.gain > 2 * gain
    loss.backward()
    other = a.detach().clone().requires_grad_()
    expected = nt_xent(other, b, link=LogOdds(gain / 2), backend=backend)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(a.grad, other.grad)


@pytest.mark.parametrize(
    ("formula", "used"),
    [
        (Formula("log-odds", 1e-4), Temperature(0.2)),
        (Formula("log-odds", 1e-4), LogOdds(3.0, resolution=1e-2)),
        (Formula("log-odds", 1e-2), LogOdds(3.0, resolution=1e-8)),
        (Formula("linear"), LogOdds(3.0)),
        (Formula("linear"), LogOdds()),
    ],
)
def test_a_link_may_prepare_one_of_another_formula(formula, used):
    class Measuring(Link):
        measures = True

        def prepare(self, measure):
            measure.likelihood(from_formula(formula, torch.tensor(2.0)))
            return used

    Measuring.formula, a, b = formula, rows().requires_grad_(), rows(seed=1)
    for loss in (info_nce, nt_xent):
        results = []
        for link in (Measuring(), used):
            found = loss(a, a + b, link=link, backend="blockwise")
            results.append([found.detach(), *torch.autograd.grad(found, a)])
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("loss", [info_nce, nt_xent])
@pytest.mark.parametrize("n", [40, 200])  # in float64, and in float32
def test_a_link_may_ask_for_several_measures_in_any_order(loss, n):
    class Measuring(Temperature):
        measures = True

        def prepare(self, measure):
            ask = {"cosine": measure.squared_cosine, "likelihood": lambda: measure.likelihood(self)}
            self.found = [torch.stack(ask[name]()) for name in self.order]
            return self

    found = []
    for order in (("cosine", "likelihood"), ("likelihood", "cosine")):
        link = Measuring(0.5)
        link.order = order
        loss(rows(n), rows(n) + rows(n, seed=1), link=link)
        found.append(dict(zip(order, link.found, strict=True)))
    torch.testing.assert_close(*found)


def test_evaluation_measures_nothing():
    loss = NTXent(link=CalibratedLogOdds())
    loss(rows(), rows(seed=1))
    moment = loss.link.moment.clone()
    loss.eval()
    loss(rows() + 2, rows(seed=1) + 2)
    assert torch.equal(loss.link.moment, moment)
    loss.train()
    with torch.no_grad():
        loss(rows() + 2, rows(seed=1) + 2)
    assert torch.equal(loss.link.moment, moment)
    loss(rows() + 2, rows(seed=1) + 2)
    assert not torch.equal(loss.link.moment, moment)


def test_a_run_goes_on_bit_for_bit_from_its_state():
    link = CalibratedLogOdds()
    for seed in range(3):
        nt_xent(rows(8, seed=seed), rows(8, seed=seed + 10), link=link)
    again = CalibratedLogOdds()
    again.load_state_dict(copy.deepcopy(link.state_dict()))
    assert set(link.state_dict()) == {"moment"}
    for seed in range(3, 6):
        losses = [nt_xent(rows(8, seed=seed), rows(8, seed=seed + 10), link=one) for one in (link, again)]
        assert torch.equal(*losses)
    assert torch.equal(link.moment, again.moment)


def test_no_batch_can_spoil_it():
    link = CalibratedLogOdds()
    nt_xent(rows(), rows(seed=1), link=link)
    moment = link.moment.clone()
    broken = rows()
    broken[3] = math.inf
    assert nt_xent(broken, rows(seed=1), link=link).isnan()
    assert nt_xent(rows(1), rows(1, seed=1), link=link).item() == 0  # no negatives
    info_nce(rows(1), rows(1), rows(1).view(1, 1, -1), link=link)  # one anchor, so no error
    assert torch.equal(link.moment, moment)


def test_compiles_without_a_graph_break():
    eager, a = CalibratedLogOdds(), rows(12, 6)
    link = CalibratedLogOdds()
    compiled = torch.compile(
        lambda a, b: nt_xent(a, b, link=link, backend="reference"), fullgraph=True, backend="aot_eager"
    )
    for seed in (1, 2):
        b = rows(12, 6, seed)
        torch.testing.assert_close(compiled(a, b), nt_xent(a, b, link=eager))
        assert link.moment.item() == pytest.approx(eager.moment.item(), rel=1e-6)


def test_it_is_shown_moved_and_refused_like_the_others():
    assert repr(CalibratedLogOdds()) == "CalibratedLogOdds(dimension=1, gain=1, resolution=0.0001)"
    assert "CalibratedLogOdds" in repr(InfoNCE(link=CalibratedLogOdds()))
    assert CalibratedLogOdds().to(torch.float64).moment.dtype == torch.float64
    assert taufree.CalibratedLogOdds is CalibratedLogOdds
    with pytest.raises(ValueError, match=r"resolution must be a number of at least 0, got -1"):
        CalibratedLogOdds(resolution=-1)
