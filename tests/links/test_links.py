import copy
import math
import pickle

import pytest
import torch

from taufree import LearnableTemperature, Link, LogOdds, Temperature, info_nce, nt_xent, sup_con
from taufree.backends import fused
from taufree.backends.blockwise.tiles import OddsTile, PlainTile, SoftmaxTile, tile_kind
from taufree.contrast import Contrast
from taufree.links.log_odds import with_gain


class Cubic(Link):
    """A user's link without parameters or a slope of its own."""

    def logit(self, cosine, gap, rise):
        return 5 * cosine**3


class Learned(Link):
    """A user's link with two parameters, one of them unused."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))
        self.spare = torch.nn.Parameter(torch.tensor(1.0))

    def logit(self, cosine, gap, rise):
        return self.scale.to(cosine.dtype) * (rise.sqrt() - gap.sqrt())


class Bent(LogOdds):
    """A user's link made from one of the library's, whose slope it has no more."""

    def logit(self, cosine, gap, rise):
        return super().logit(cosine, gap, rise) + 5 * cosine**3


class Bend:
    def logit(self, cosine, gap, rise):
        return super().logit(cosine, gap, rise).tanh()


class Mixed(Bend, LearnableTemperature):
    """The same by way of a class that is no link."""


class Coarse(LogOdds):
    """A user's link that only sets another resolution."""

    def __init__(self):
        super().__init__(resolution=1e-2)


class Constant(Link):
    def logit(self, cosine, gap, rise):
        return torch.zeros_like(cosine)


def test_log_odds_is_twice_atanh():
    c = torch.linspace(-0.999, 0.999, 101, dtype=torch.float64)
    torch.testing.assert_close(LogOdds(resolution=0.0)(c), 2 * torch.atanh(c))
    torch.testing.assert_close(LogOdds(2.5, 1e-2)(c), 5 * torch.atanh(c / 1.01))
    assert LogOdds()(torch.tensor([1.0, -1.0])).isfinite().all()
    assert (LogOdds().gain, LogOdds().resolution) == (1.0, 1e-4)


@pytest.mark.parametrize(
    "link", [LogOdds(), LogOdds(2.0), Temperature(0.3), LearnableTemperature(), Cubic(), Bent(), Mixed()]
)
def test_slopes_are_derivatives(link):
    c = torch.linspace(-0.9, 0.9, 19, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(link(c).sum(), c)[0]
    found = link.slope(c.detach(), 1 - c.detach(), 1 + c.detach())
    torch.testing.assert_close(found.detach(), expected)


@pytest.mark.parametrize("link", [Cubic(), Learned(), Bent(), Coarse()])
def test_a_users_link_works_on_every_backend(link):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(9, 5, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    inputs = [a, b, *link.parameters()]
    for loss in (
        lambda backend: info_nce(a, b, symmetric=True, link=link, backend=backend),
        lambda backend: nt_xent(a, b, link=link, backend=backend),
        lambda backend: sup_con(a, torch.arange(9) % 3, link=link, backend=backend),
    ):
        results = []
        for backend in ("reference", "blockwise"):
            value = loss(backend)
            grads = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
            results.append([value, *grads])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)


def test_a_constant_link_has_no_gradient():
    a = torch.eye(4).requires_grad_()
    loss = info_nce(a, torch.eye(4), link=Constant(), backend="blockwise")
    assert loss.item() == pytest.approx(math.log(4))
    assert (torch.autograd.grad(loss, a)[0] == 0).all()


def test_a_link_without_a_logit_says_so():
    with pytest.raises(NotImplementedError, match="Link must define logit"):
        Link()(torch.zeros(2))


def test_the_learned_scale_goes_where_the_embeddings_are():
    cosine = torch.zeros(3, device="meta", dtype=torch.float64)
    link = LearnableTemperature()
    for found in (link.logit(cosine, cosine, cosine), link.slope(cosine, cosine, cosine)):
        assert (found.device, found.dtype) == (cosine.device, cosine.dtype)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_the_learned_scale_is_capped_and_can_come_down_again(backend):
    link = LearnableTemperature(init=0.07, max_scale=20.0)
    assert link.log_scale.item() == pytest.approx(math.log(1 / 0.07))
    with torch.no_grad():
        link.log_scale.fill_(5.0)
    a, b = torch.eye(4), torch.eye(4).roll(1, 0)  # wrong pairs: a smaller scale is better
    info_nce(a, b, link=link, backend=backend).backward()
    assert link.log_scale.item() == pytest.approx(math.log(20))
    assert link.tau == pytest.approx(1 / 20)
    assert link.log_scale.grad.item() > 1


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_two_losses_may_share_a_learned_link_before_one_backward(backend):
    link = LearnableTemperature()
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    (info_nce(a, b, link=link, backend=backend) + info_nce(b, a, link=link, backend=backend)).backward()
    assert link.log_scale.grad.isfinite()


def test_the_learned_scale_may_be_there_when_torch_func_differentiates():
    link, b = LearnableTemperature(), torch.eye(3, 4) + 0.5
    link.log_scale.data.fill_(9.0)
    gradient = torch.func.grad(lambda a: nt_xent(a, b, link=link))(torch.eye(3, 4))
    a = torch.eye(3, 4, requires_grad=True)
    nt_xent(a, b, link=Temperature(0.01)).backward()
    torch.testing.assert_close(gradient, a.grad)


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("name", ["gain", "resolution", "tau"])
def test_a_setting_may_be_made_a_parameter(name, near):
    """Both in plain tiles and in those with a close pair."""
    found = []
    for backend in ("reference", "blockwise"):
        link = Temperature(0.5) if name == "tau" else LogOdds()
        setattr(link, name, torch.nn.Parameter(torch.tensor(getattr(link, name))))
        a, b = torch.eye(6, 8) + 0.3, torch.eye(6, 8) + 0.5 * torch.eye(6, 8).roll(1, 1)
        b[3] = a[4] if near else b[3]
        nt_xent(a, b, link=link, backend=backend).backward()
        found.append(getattr(link, name).grad)
    assert found[0] != 0
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


def replica(module):
    """As nn.DataParallel makes it, on the same device."""
    found = module._replicate_for_data_parallel()
    found._former_parameters = {name: p * 1 for name, p in module._parameters.items()}
    for name, p in found._former_parameters.items():
        setattr(found, name, p)
    return found


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("link", [LearnableTemperature(), Learned()], ids=repr)
def test_replicas_of_data_parallel_learn(link, backend, reduction):
    a, b = torch.eye(6, 8) + 0.3, torch.eye(6, 8) + 0.5 * torch.eye(6, 8).roll(1, 1)
    found = []
    for make in (copy.deepcopy, replica):
        original = copy.deepcopy(link)
        used = make(original)
        nt_xent(a, b, link=used, backend=backend, reduction=reduction).sum().backward()
        found.append(next((original if make is replica else used).parameters()).grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0)


class Handed(Link):
    """A user's link around a scale that the model learns; FSDP too makes plain tensors of parameters."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def logit(self, cosine, gap, rise):
        return self.scale * cosine


def test_blockwise_does_not_silently_leave_untrained_what_is_no_parameter():
    a, b = torch.eye(6, 8) + 0.3, torch.eye(6, 8) + 0.5 * torch.eye(6, 8).roll(1, 1)
    log_scale = torch.tensor(1.0, requires_grad=True)
    nt_xent(a, b, link=Handed(log_scale.exp()), backend="reference").backward()
    assert log_scale.grad != 0
    with pytest.raises(ValueError, match=r'got a Handed with another tensor.* use backend="reference"'):
        nt_xent(a, b, link=Handed(log_scale.exp()), backend="blockwise")
    with torch.no_grad():
        nt_xent(a, b, link=Handed(log_scale.exp()), backend="blockwise")
    nt_xent(a.requires_grad_(), b, link=Handed(log_scale.exp().detach()), backend="blockwise").backward()


def test_the_kernels_refuse_to_learn_what_they_cannot(monkeypatch):
    monkeypatch.setattr(fused, "machine", lambda *_: None)
    link = LogOdds()
    contrast = Contrast(torch.eye(4))
    assert fused.unsupported(contrast, link) is None
    link.gain = torch.nn.Parameter(torch.tensor(1.0))
    assert "not a parameter of LogOdds" in fused.unsupported(contrast, link)
    assert fused.unsupported(contrast, LearnableTemperature()) is None


def test_a_subclass_has_the_formula_unless_its_logit_is_its_own(monkeypatch):
    monkeypatch.setattr(fused, "machine", lambda *_: None)
    contrast = Contrast(torch.eye(4))
    assert Coarse().formula == ("log-odds", 1e-2)
    assert tile_kind(Coarse()) is OddsTile
    assert fused.unsupported(contrast, Coarse()) is None
    for link in (Bent(), Mixed()):
        assert link.formula is None
        assert tile_kind(link) is SoftmaxTile
        assert f"{type(link).__name__} has none" in fused.unsupported(contrast, link)


def test_the_fast_tiles_are_for_a_gain_of_one_that_nothing_learns():
    assert tile_kind(LogOdds(gain=1)) is OddsTile
    assert tile_kind(LogOdds(gain=1), learns=True) is PlainTile
    link = LogOdds()
    link.resolution = torch.nn.Parameter(torch.tensor(1.0))
    assert tile_kind(link) is SoftmaxTile


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        (LogOdds(gain=2), PlainTile),
        (LogOdds(gain=20), PlainTile),
        (LogOdds(gain=21), SoftmaxTile),  # 2^112 where no pair is near
        (LogOdds(gain=20, resolution=1e-14), SoftmaxTile),  # 2^950 at c = 1
        (LogOdds(gain=2, resolution=0), SoftmaxTile),
        (with_gain(torch.tensor(1.0), 1e-4), OddsTile),
        (with_gain(torch.tensor(3.0), 1e-4), PlainTile),
        (with_gain(torch.tensor(torch.nan), 1e-4), SoftmaxTile),
        (Temperature(0.02), PlainTile),
        (Temperature(0.01), SoftmaxTile),
    ],
)
def test_sums_are_plain_where_the_weights_stay_in_range(link, kind):
    assert tile_kind(link) is kind


@pytest.mark.parametrize("link", [LogOdds(2.0, 1e-3), Temperature(0.2), LearnableTemperature(0.5, 10.0)])
def test_copies_and_state(link):
    c = torch.linspace(-1, 1, 7)
    for other in (copy.deepcopy(link), pickle.loads(pickle.dumps(link))):
        torch.testing.assert_close(other(c), link(c))
        assert repr(other) == repr(link)
    again = copy.deepcopy(link)
    again.load_state_dict(link.state_dict())
    torch.testing.assert_close(again(c), link(c))
    assert set(link.state_dict()) == ({"log_scale"} if isinstance(link, LearnableTemperature) else set())
