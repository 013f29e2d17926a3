"""The schemes that are losses, against float64 sketches of their publications, and their identities."""

import math
import re

import pytest
import torch
from torch.nn.functional import normalize

import taufree
from taufree.baselines import MACL, AdapTau, DualTemperature, ISogCLR, TaU
from tests.support.contrasts import rows

N, D = 6, 5


def views():
    a = rows(N, D)
    return a.requires_grad_(), (a.detach() + rows(N, D, seed=1) / 2).requires_grad_()


def cosines_of_views(a, b):
    """[2N, 2N - 1]: each anchor's cosines, its positive first, then its negatives."""
    z = normalize(torch.cat([a, b]), dim=1)
    c, n = z @ z.T, len(a)
    order = [[(i + n) % (2 * n), *(j for j in range(2 * n) if j % n != i % n)] for i in range(2 * n)]
    return c.gather(1, torch.tensor(order))


def cosines_of_pairs(a, b):
    """[2N, N]: the same with the rows of the other view alone as candidates."""
    a, b = normalize(a, dim=1), normalize(b, dim=1)
    order = torch.tensor([[i, *(j for j in range(len(a)) if j != i)] for i in range(len(a))])
    return torch.cat([(a @ b.T).gather(1, order), (b @ a.T).gather(1, order)])


def check(found, expected, *inputs):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), rtol=1e-8, atol=1e-10
    )


def weighted(logits, weight):
    """mean of sg[weight(P)] * -log P."""
    log_p = logits.log_softmax(1)[:, 0]
    return (weight(log_p.exp()).detach() * -log_p).mean()


@pytest.mark.parametrize("pairs", [False, True])
def test_macl(pairs):
    a, b = views()
    c = (cosines_of_pairs if pairs else cosines_of_views)(a, b)
    tau = 0.2 * (1 + 0.7 * (c[:, 0].mean().detach() - 0.1))
    check(MACL(0.2, 0.7, 0.1, pairs=pairs)(a, b), weighted(c / tau, lambda p: 1 / (1 - p)), a, b)


def test_macl_is_lightlys():
    loss = pytest.importorskip("lightly.loss.macl_loss")
    a, b = views()
    expected = loss.MACLLoss(temperature=0.3, alpha=0.4, A_0=0.2)(a, b)
    found = MACL(tau0=0.3, alpha=0.4, a0=0.2)(a, b)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for one, other in zip(
        torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_macl_is_exact_where_the_positive_is_nearly_certain():
    view = torch.eye(4, requires_grad=True)
    found = MACL(tau0=0.01, alpha=0.0)(view, torch.eye(4) + 1e-3)
    (gradient,) = torch.autograd.grad(found, view)
    (expected,) = torch.autograd.grad(
        taufree.nt_xent(view, torch.eye(4) + 1e-3, link=0.01, decoupled=True), view
    )
    torch.testing.assert_close(found.item(), 1.0)  # -log P / (1 - P), which 1 - softmax makes infinite
    torch.testing.assert_close(gradient, expected)


def test_dual_temperature():
    a, b = views()
    c = cosines_of_pairs(a, b)
    p_far = (c / 0.7).softmax(1)[:, 0]
    expected = weighted(c / 0.2, lambda p: (1 - p_far) / (1 - p))
    check(DualTemperature(0.2, 0.7)(a, b), expected, a, b)
    assert DualTemperature().between == 1.0


@pytest.mark.parametrize("pairs", [False, True])
def test_tau_net_predicts_a_scale_for_each_anchor(pairs):
    (a, b), u = views(), rows(2 * N, seed=5).requires_grad_()
    c = (cosines_of_pairs if pairs else cosines_of_views)(a, b)
    logits = c * (u.sigmoid() / 0.1)[:, None]
    expected = (logits[:, 1:].logsumexp(1) - logits[:, 0]).mean()
    found = TaU(pairs=pairs)(a, b, u)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # sigmoid in float32
    grads = zip(*(torch.autograd.grad(loss, (a, b, u)) for loss in (found, expected)), strict=True)
    for one, other in grads:
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    extreme = torch.full((2 * N,), -1e4, requires_grad=True)
    TaU()(a, b, extreme).backward()
    assert extreme.grad.isfinite().all()


def test_adap_tau():
    a, b = views()
    c = cosines_of_views(a, b)
    lead = (c[:, 0].mean() - c.mean()).detach()
    logits = c * (math.log((2 * N - 1) / 2) / lead)
    check(AdapTau()(a, b), (logits[:, 1:].logsumexp(1) - logits[:, 0]).mean(), a, b)


def isogclr_sketch(state, index, c, gamma, beta, rho, low, high, eta):
    """Loss and next state, as the publication has them: two views share a state, two sides do not."""
    u, tau, m = (state[name][:, index] for name in ("u", "tau", "m"))
    h = (c[:, 1:] - c[:, :1]).view(2, len(index), -1)
    e = (h / tau[..., None]).exp()
    mean = (lambda x: x.mean(0, keepdim=True)) if len(tau) == 1 else (lambda x: x)
    g = mean(e.mean(2).detach())
    u = torch.where(u == 0, g, (1 - gamma) * u + gamma * g)
    w = (e / u[..., None]).detach()
    loss = (w * h).mean(2)
    change = u.log() + rho - mean((loss / tau).detach())
    m = (1 - beta) * m + beta * change.clamp(-3, 3)
    tau = (tau - eta * m).clamp(low, high)
    for name, value in (("u", u), ("tau", tau), ("m", m)):
        state[name][:, index] = value
    return loss.mean()


@pytest.mark.parametrize("pairs", [False, True])
def test_isogclr_keeps_a_temperature_for_each_sample_and_resumes(pairs):
    shape, index = (2 if pairs else 1, 9), torch.tensor([3, 8, 0, 5, 1, 7])
    loss = ISogCLR(9, pairs=pairs)
    state = {"u": torch.zeros(shape), "tau": torch.full(shape, 0.1), "m": torch.zeros(shape)}
    state = {name: x.double() for name, x in state.items()}
    cosines = cosines_of_pairs if pairs else cosines_of_views
    for step in range(4):
        if step == 2:  # as a checkpoint does
            resumed = ISogCLR(9, pairs=pairs)
            resumed.load_state_dict(loss.state_dict())
            loss, index = resumed, (index + 1) % 9
        a, b = (x.detach() + 0.3 * rows(N, D, seed=step + 3) for x in views())
        a, b = a.requires_grad_(), b.requires_grad_()
        expected = isogclr_sketch(state, index, cosines(a, b), 0.8, 0.5, 0.4, 0.05, 1.0, 0.03)
        found = loss(a, b, index)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        grads = (torch.autograd.grad(x, (a, b)) for x in (found, expected))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(loss.tau.double(), state["tau"], rtol=1e-5, atol=1e-6)
    kept = loss.state_dict()["tau"].clone()
    loss.eval()(a, b, index)
    with torch.no_grad():
        loss.train()(a, b, index)
    loss(a * torch.nan, b, index)
    torch.testing.assert_close(loss.tau, kept)


# What ties the schemes together.


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


def test_a_decoupled_loss_has_a_gradient_of_one_over_tau_on_the_positive():
    c = torch.tensor([0.5, 0.1, -0.2], dtype=torch.float64, requires_grad=True)
    (gradient,) = gradients((c[1:] / 0.2).logsumexp(0) - c[0] / 0.2, c)
    shares = (c[1:].detach() / 0.2).softmax(0) / 0.2
    torch.testing.assert_close(gradient, torch.cat([torch.tensor([-5.0]).double(), shares]))


def test_macl_is_dcl_and_dual_temperature_weighted_dcl():
    a, b = views()
    tau = MACL()
    found = gradients(tau(a, b), a, b)
    expected = gradients(taufree.nt_xent(a, b, link=tau.link.tau.item(), decoupled=True), a, b)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        certain = [(-taufree.info_nce(x, y, link=1.0, reduction="none")).exp() for x, y in ((a, b), (b, a))]
    parts = [taufree.info_nce(x, y, link=0.1, decoupled=True, reduction="none") for x, y in ((a, b), (b, a))]
    expected = gradients(
        sum(((1 - p) * part).mean() / 2 for p, part in zip(certain, parts, strict=True)), a, b
    )
    torch.testing.assert_close(gradients(DualTemperature()(a, b), a, b), expected)


def test_tau_net_is_dcl_with_a_temperature_for_each_anchor():
    (a, b), u = views(), torch.linspace(-1, 1, 2 * N)
    expected = taufree.nt_xent(a, b, link=0.1 / u.sigmoid(), decoupled=True)
    torch.testing.assert_close(TaU()(a, b, u), expected)


def test_isogclr_with_gamma_one_is_tau_times_dcl():
    a, b = views()
    found = gradients(ISogCLR(N, gamma=1.0, tau=0.2)(a, b, torch.arange(N)), a, b)
    dcl = taufree.nt_xent(a, b, link=0.2, decoupled=True, reduction="none").view(2, N)
    # u is the mean of both views' g: an anchor's weight is tau times its own share of that.
    share = dcl.detach().exp() / dcl.detach().exp().mean(0)
    torch.testing.assert_close(found, gradients((0.2 * share * dcl).mean(), a, b), rtol=1e-5, atol=1e-8)
    same = torch.cat([normalize(a, dim=1), normalize(a, dim=1)]).detach().chunk(2)
    x, y = (view.clone().requires_grad_() for view in same)
    found = gradients(ISogCLR(N, gamma=1.0, tau=0.2)(x, y, torch.arange(N)), x, y)
    expected = gradients(0.2 * taufree.nt_xent(x, y, link=0.2, decoupled=True), x, y)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_isogclr_ends_where_the_negatives_are_rho_nats_from_uniform():
    z, rho = rows(24, 4), 0.4
    loss, index = ISogCLR(24, gamma=1.0, rho=rho, low=0.01, high=10.0, eta=0.02), torch.arange(24)
    for _ in range(1500):
        loss(z, z, index)
    z = normalize(z, dim=1)
    for i in range(24):
        logits = (z @ z[i]).repeat(2)[[j for j in range(48) if j % 24 != i]] / loss.tau[0, i].double()
        p = logits.softmax(0)
        assert (p * (p * len(p)).log()).sum().item() == pytest.approx(rho, abs=0.02)


def test_one_minus_p_comes_from_the_decoupled_loss_without_a_difference():
    a, b = views()
    p = (-taufree.nt_xent(a, b, link=0.5, reduction="none")).exp()
    decoupled = taufree.nt_xent(a, b, link=0.5, decoupled=True, reduction="none")
    torch.testing.assert_close(decoupled.sigmoid(), 1 - p)


@pytest.mark.parametrize("made", [MACL, DualTemperature, AdapTau])
def test_reductions_and_ids(made):
    a, b = views()
    each = made(reduction="none")(a, b)
    assert each.shape == (2 * N,)
    torch.testing.assert_close(made()(a, b), each.mean())
    torch.testing.assert_close(made(reduction="sum")(a, b), each.sum())
    torch.testing.assert_close(made()(a, b, ids=torch.arange(N)), each.mean())


def test_bad_arguments_get_one_sentence():
    a, b = views()
    for message, call in {
        "uncertainty must have shape [12], one for each anchor, got [6]": lambda: TaU()(a, b, torch.zeros(6)),
        "index must be an integer tensor [6], got torch.int64 [5]": lambda: ISogCLR(9)(a, b, torch.arange(5)),
        "alpha must be a number from 0 to 1, got 2": lambda: MACL(alpha=2),
        "between must be a positive number, got 0": lambda: DualTemperature(between=0),
    }.items():
        with pytest.raises(ValueError, match=re.escape(message + ".")):
            call()
