"""The arguments and attributes ``link`` and ``backend`` of all drop-ins."""

from collections.abc import Callable
from typing import Any, NamedTuple

import info_nce as original_info_nce
import lightly.loss
import open_clip
import pytest
import torch
from pytorch_metric_learning import losses as metric_losses
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses as original_losses
from torch import nn

import taufree
from taufree import (
    CalibratedLogOdds,
    FittedLogOdds,
    FittedTemperature,
    LearnableTemperature,
    Link,
    LogOdds,
    Temperature,
    temperature_free,
)
from taufree.integrations import info_nce
from taufree.integrations import lightly as ours
from taufree.integrations import open_clip as clip
from taufree.integrations import pytorch_metric_learning as metric
from taufree.integrations import sentence_transformers as sentences
from taufree.links.named import NAMED_LINKS as NAMED
from taufree.masked import masked_losses
from tests.support.comparison import agree, rows
from tests.support.gcl import GCL

from taufree.integrations import pygcl  # isort: skip (after GCL, see tests/support/gcl.py)

TAU = 0.3
A, B, REF = rows(8, 6), rows(8, 6, seed=1), rows(12, 6, seed=2)
PAIRS = torch.arange(8) // 2
MINED = tuple(torch.tensor(x) for x in ([0, 1, 2], [1, 0, 3], [0, 1, 2, 3], [4, 5, 6, 7]))  # of a miner
EYE = torch.eye(8)


class Linear(Link):
    """The link of a temperature, in a class that no drop-in knows."""

    def logit(self, cosine, gap, rise):
        return cosine / TAU


class Case(NamedTuple):
    make: Callable[..., Any]
    call: Callable[[Any], torch.Tensor]
    temperature: str = "temperature"
    value: float = TAU
    dense: bool = False
    default: type = LogOdds


def ranking(**options):
    return lambda **given: sentences.MultipleNegativesRankingLoss(nn.Identity(), **options, **given)


def cached(**given):
    return sentences.CachedMultipleNegativesRankingLoss(nn.Sequential(nn.Identity()), **given)


def views(loss):
    return loss(A, B)


def columns(loss):
    return loss.compute_loss_from_embeddings([A, B], None)


CASES = {
    "lightly.NTXentLoss": Case(ours.NTXentLoss, views),
    "lightly.DCLLoss": Case(ours.DCLLoss, views),
    "lightly.DCLWLoss": Case(ours.DCLWLoss, views),
    "metric.NTXentLoss": Case(metric.NTXentLoss, lambda loss: loss(A, PAIRS)),
    "metric.NTXentLoss, dense": Case(metric.NTXentLoss, lambda loss: loss(A, PAIRS, MINED), dense=True),
    "metric.SupConLoss": Case(metric.SupConLoss, lambda loss: loss(A, PAIRS)),
    "metric.SupConLoss, dense": Case(metric.SupConLoss, lambda loss: loss(A, PAIRS, MINED), dense=True),
    "info_nce.InfoNCE": Case(info_nce.InfoNCE, views),
    "pygcl.InfoNCE": Case(pygcl.InfoNCE, lambda loss: loss(A, B, EYE, 1 - EYE), "tau"),
    "pygcl.InfoNCE, both views": Case(
        pygcl.InfoNCE,
        lambda loss: loss(A, torch.cat([B, A]), torch.eye(8, 16), 1 - EYE.repeat(1, 2)),
        "tau",
    ),
    "pygcl.InfoNCE, dense": Case(
        pygcl.InfoNCE, lambda loss: loss(A, B, EYE, 1 - EYE - EYE.roll(1, 1)), "tau", dense=True
    ),
    "sentences": Case(ranking(), columns, "scale", 1 / TAU, default=FittedTemperature),
    "sentences, dense": Case(
        ranking(directions=("query_to_doc", "query_to_query")),
        columns,
        "scale",
        1 / TAU,
        dense=True,
        default=FittedTemperature,
    ),
    "sentences, cached": Case(
        cached, lambda loss: loss.calculate_loss([[A], [B]]), "scale", 1 / TAU, default=FittedTemperature
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
SOME_WARN = pytest.mark.filterwarnings("ignore:To copy construct")


@SOME_WARN
@EVERY
def test_the_link_is_an_argument_and_an_attribute(case):
    def expected():
        return case.call(case.make(**{case.temperature: case.value}))

    for link in (Temperature(TAU), Linear()):
        agree(case.call(case.make(link=link)), expected(), A)
        loss = case.make()
        assert type(loss.link) is case.default
        assert abs(case.call(loss) - expected()) > 0.01
        loss.link = link
        assert loss.link is link
        agree(case.call(loss), expected(), A)


@SOME_WARN
@EVERY
def test_link_and_temperature_are_one_setting(case):
    loss = case.make(**{case.temperature: case.value})
    assert loss.link.tau == pytest.approx(TAU)
    assert getattr(loss, case.temperature) == case.value
    loss.link = None  # that of the temperature
    assert loss.link.tau == pytest.approx(TAU)
    loss.link = LogOdds(gain=2.0)
    assert getattr(loss, case.temperature) is None
    free = case.call(loss)
    loss.link = None
    assert type(loss.link) is case.default
    assert loss.link.formula_scale() == case.default().formula_scale()
    setattr(loss, case.temperature, case.value)
    agree(case.call(loss), case.call(case.make(link=Linear())), A)
    setattr(loss, case.temperature, None)
    assert type(loss.link) is case.default
    loss.link = Temperature(0.5)
    assert getattr(loss, case.temperature) == pytest.approx(1 / 0.5 if case.temperature == "scale" else 0.5)
    loss.link = LogOdds(gain=2.0)
    assert case.call(loss) == free
    with pytest.raises(ValueError, match=f"^{case.temperature} must be None with a link, got 2.0"):
        case.make(**{case.temperature: 2.0}, link=LogOdds())
    for change in (lambda: case.make(link=LogOdds), lambda: setattr(loss, "link", LogOdds)):
        with pytest.raises(TypeError, match=r"^link must be a taufree\.Link .* got the class LogOdds\.$"):
            change()
    with pytest.raises(ValueError, match=r"^link must be one of the names 'free'.* got 'learned'\.$"):
        loss.link = "learned"
    assert case.call(loss) == free  # as before the mistake


@SOME_WARN
@EVERY
def test_a_link_may_be_a_number_a_tensor_or_a_name(case):
    expected = case.call(case.make(**{case.temperature: case.value}))
    for link in (TAU, torch.tensor(TAU)):
        agree(case.call(case.make(link=link)), expected, A, retain=True)
        loss = case.make()
        loss.link = link
        agree(case.call(loss), expected, A, retain=True)
    for name, kind in NAMED.items():
        assert type(case.make(link=name).link) is kind
        loss.link = name
        assert type(loss.link) is kind
        assert case.call(loss).isfinite()


@SOME_WARN
@EVERY
def test_a_temperature_that_is_a_parameter_is_learned(case):
    """As the originals do: by its own gradient, found among the loss's parameters, saved and loaded."""
    found, expected = (nn.Parameter(torch.tensor(case.value)) for _ in range(2))
    loss = case.make(**{case.temperature: found})
    assert getattr(loss, case.temperature) is found
    value = case.call(loss)
    theirs = case.call(case.make(link=Scaling(expected, case.temperature == "scale")))
    agree(value, theirs, A, retain=True)
    value.backward()
    theirs.backward()
    assert expected.grad.abs() > 1e-3
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)
    link = nn.Parameter(torch.tensor(TAU))
    loss.link = link
    case.call(loss).backward()
    assert link.grad.abs() > 1e-3
    if isinstance(loss, nn.Module):
        assert [x is link for x in loss.parameters()] == [True]
        setattr(loss, case.temperature, found)
        assert [x is found for x in loss.parameters()] == [True]
        loss.load_state_dict({case.temperature: torch.tensor(0.7)})  # as the original saves it
        assert found.item() == pytest.approx(0.7)
        loss.load_state_dict(loss.double().state_dict())
        assert getattr(loss, case.temperature).dtype == torch.float64
    setattr(loss, case.temperature, case.value)  # a plain number again
    assert getattr(loss, case.temperature) == case.value
    if isinstance(loss, nn.Module):
        assert not list(loss.parameters())


class Scaling(Link):
    """What an original does with a temperature (or a scale) that is a parameter."""

    def __init__(self, value, is_scale):
        super().__init__()
        self.value, self.is_scale = value, is_scale

    def logit(self, cosine, gap, rise):
        return cosine * self.value if self.is_scale else cosine / self.value


ORIGINALS = {  # each beside its drop-in, with the argument and what it is called with
    "lightly.NTXentLoss": (lightly.loss.NTXentLoss, "temperature"),
    "lightly.DCLLoss": (lightly.loss.DCLLoss, "temperature"),
    "metric.NTXentLoss": (metric_losses.NTXentLoss, "temperature"),
    "metric.SupConLoss": (metric_losses.SupConLoss, "temperature"),
    "metric.SupConLoss, dense": (metric_losses.SupConLoss, "temperature"),
    "info_nce.InfoNCE": (original_info_nce.InfoNCE, "temperature"),
    "pygcl.InfoNCE": (GCL.losses.InfoNCE, "tau"),
    "sentences": (lambda **x: original_losses.MultipleNegativesRankingLoss(nn.Identity(), **x), "scale"),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_parameters_gradient_is_the_originals(name):
    case, (kind, argument) = CASES[name], ORIGINALS[name]
    found, expected = (nn.Parameter(torch.tensor([case.value])) for _ in range(2))  # of shape [1], too
    ours, theirs = case.make(**{argument: found}), kind(**{argument: expected})
    values = [case.call(loss).squeeze() for loss in (ours, theirs)]
    agree(*values, A, retain=True)
    for value in values:
        value.backward()
    assert expected.grad.abs() > 1e-3
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)
    if isinstance(theirs, nn.Module):
        ours.load_state_dict(theirs.state_dict())
    tensor = torch.tensor(case.value, requires_grad=True)  # of a network, say: no parameter
    case.call(case.make(**{argument: tensor}, backend="reference")).backward()
    torch.testing.assert_close(tensor.grad, expected.grad.squeeze(), rtol=1e-4, atol=1e-6)


@SOME_WARN
@EVERY
def test_a_checkpoint_of_the_original_leaves_the_link_as_it_is(case):
    loss = case.make(link=FittedLogOdds())
    for _ in range(3):
        case.call(loss)
    if not isinstance(loss, nn.Module):
        return
    assert set(loss.state_dict()) == {"link.log_gain", "link.curvature", "link.far_in_a_row"}
    before = loss.link.log_gain.clone()
    loss.load_state_dict({})  # of an original, which has nothing to save
    assert loss.link.log_gain == before
    wrapped = nn.ModuleList([loss])
    wrapped.load_state_dict({})
    wrapped.load_state_dict({"0.link.log_gain": torch.tensor(0.5), "0.link.curvature": torch.tensor(1.0)})
    assert loss.link.log_gain == 0.5
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"link\.moment"'):
        loss.load_state_dict({"link.moment": torch.tensor(0.5)})


@SOME_WARN
@EVERY
def test_what_a_link_learns_and_measures_is_the_losss(case):
    loss = case.make(link=LearnableTemperature(init=TAU, max_scale=20.0))
    with torch.no_grad():
        loss.link.log_scale.fill_(9.0)
    case.call(loss).backward()
    assert loss.link.log_scale.exp().item() == pytest.approx(20.0)  # prepared, by which it is in range
    assert loss.link.log_scale.grad != 0
    measured = case.make(link=CalibratedLogOdds())
    case.call(measured)
    assert 0 < measured.link.moment < 1
    if isinstance(loss, nn.Module):  # PyGCL's losses are no modules
        assert loss.link.log_scale in set(loss.parameters())
        assert {"link.log_scale"} == set(loss.state_dict())
        assert measured.double().link.moment.dtype == torch.float64


@SOME_WARN
@EVERY
def test_the_backend_is_an_argument_and_an_attribute(case):
    expected = case.call(case.make())
    loss = case.make(backend="reference")
    torch.testing.assert_close(case.call(loss), expected)
    loss.backend = "triton"  # which cannot be on these devices, so the error shows that it was asked for
    dense = r'backend must be "auto" or "reference" with .*, got \'triton\'\.$'
    with pytest.raises(ValueError, match=dense if case.dense else r'^backend="triton" cannot compute'):
        case.call(loss)
    if not case.dense:
        torch.testing.assert_close(case.call(case.make(backend="blockwise")), expected)
    for change in (lambda: case.make(backend="cuda"), lambda: setattr(loss, "backend", "cuda")):
        with pytest.raises(ValueError, match=r"^backend must be one of .* got 'cuda'\.$"):
            change()


@EVERY
def test_a_repr_says_whether_a_loss_is_free(case):
    free, scaled = case.make(backend="blockwise"), case.make(**{case.temperature: case.value})
    assert repr(case.default()) in repr(free)
    assert "backend='blockwise'" in repr(free)
    assert "LogOdds" not in repr(scaled)
    assert f"Temperature(tau={scaled.link.tau})" in repr(scaled)


@EVERY
def test_a_twin_keeps_a_free_link_and_the_backend(case):
    twin = temperature_free(case.make(link=LogOdds(gain=2.0), backend="blockwise"))
    assert (twin.link.gain, twin.backend) == (2.0, "blockwise")
    twin = temperature_free(case.make(link=LearnableTemperature()))
    assert type(twin.link) is case.default
    assert type(temperature_free(case.make(link=LogOdds()), link="calibrated").link) is CalibratedLogOdds


def test_masks_are_measured_as_the_core_measures():
    dense, core = CalibratedLogOdds(), CalibratedLogOdds()
    every = torch.ones(8, 8, dtype=torch.bool)
    for a, b in ((A, B), (B, REF[:8])):
        losses = masked_losses(a, b, EYE.bool(), every, dense)
        agree(losses.mean(), taufree.info_nce(a, b, link=core), a, b)
        assert dense.moment.item() == pytest.approx(core.moment.item(), rel=1e-6)
        assert dense.moment < 1
    links = [CalibratedLogOdds() for _ in range(2)]
    same = PAIRS[:, None] == PAIRS
    listed = (*torch.where(same & ~torch.eye(8, dtype=torch.bool)), *torch.where(~same))
    for kind in (metric.NTXentLoss, metric.SupConLoss):
        listed_loss, all_loss = (kind(link=link) for link in links)
        agree(listed_loss(A, PAIRS, listed), all_loss(A, PAIRS), A)
        assert links[0].moment.item() == pytest.approx(links[1].moment.item(), rel=1e-6)


def test_a_link_is_measured_once_a_loss():
    class Counting(CalibratedLogOdds):
        def prepare(self, measure):
            self.prepared = getattr(self, "prepared", 0) + 1
            return super().prepare(measure)

    for case in CASES.values():
        loss = case.make(link=Counting())
        case.call(loss)
        assert loss.link.prepared == 1


def test_one_softmax_over_two_directions_has_one_gain():
    a = rows(64, 16)
    near = a.detach() + rows(64, 16, seed=1).detach()
    loss, once = ranking(directions=("query_to_doc", "doc_to_query"))(), FittedTemperature()
    found = loss.compute_loss_from_embeddings([a, near])
    both = [taufree.info_nce(a, near, link=once, reduction="none")]
    both.append(taufree.info_nce(near, a, link=once.tau, reduction="none"))
    assert loss.link.log_gain == once.log_gain > 0
    agree(found, torch.logaddexp(*both).mean(), a)


def test_the_function_of_info_nce_takes_both():
    expected = info_nce.info_nce(A, B, temperature=TAU)
    agree(info_nce.info_nce(A, B, link=Linear(), backend="blockwise"), expected, A, B)
    with pytest.raises(ValueError, match=r"^temperature must be None with a link, got 0\.3\.$"):
        info_nce.info_nce(A, B, temperature=TAU, link=LogOdds())
    agree(info_nce.info_nce(A, B, link=TAU), info_nce.info_nce(A, B, temperature=torch.tensor(TAU)), A, B)
    with pytest.raises(ValueError, match=r"^link must be a Link that you keep from loss to loss"):
        info_nce.info_nce(A, B, link="fitted")


def test_open_clips_loss_takes_a_link_or_the_learned_scale():
    unit = [nn.functional.normalize(x, dim=1).detach().requires_grad_() for x in (A, B)]

    def theirs():
        return open_clip.ClipLoss()(*unit, logit_scale=1 / TAU)

    torch.testing.assert_close(clip.ClipLoss(link=Linear())(A, B), theirs())
    loss = clip.ClipLoss()
    loss.link = LearnableTemperature(init=TAU)
    torch.testing.assert_close(loss(A, B), theirs())
    assert list(loss.state_dict()) == ["link.log_scale"]
    with pytest.raises(ValueError, match=r"^link must be None with use_logit_scale=True, .* got LogOdds\.$"):
        clip.ClipLoss(use_logit_scale=True, link=LogOdds())
    scaled = clip.ClipLoss(use_logit_scale=True)
    with pytest.raises(ValueError, match=r"^link must be None with use_logit_scale=True"):
        scaled.link = LogOdds()
    assert scaled.link is None
    assert "use_logit_scale=True" in repr(scaled)
    assert "LogOdds" not in repr(scaled)
    assert "(link): FittedLogOdds(" in repr(clip.ClipLoss())
    torch.testing.assert_close(clip.ClipLoss(link=TAU)(A, B), theirs())
    assert isinstance(clip.ClipLoss(link="free").link, LogOdds)
    clip.ClipLoss().load_state_dict(open_clip.ClipLoss().state_dict())
    loss.use_logit_scale = True
    assert loss.link is None
    assert loss(*unit, logit_scale=1 / TAU) == theirs()
    loss.use_logit_scale = False
    assert loss(A, B) == clip.ClipLoss()(A, B)


def test_open_clips_loss_takes_a_backend():
    with pytest.raises(ValueError, match=r'^backend="triton" cannot compute'):
        clip.ClipLoss(backend="triton")(A, B)
    with pytest.raises(ValueError, match=r'^backend must be "auto" or "reference" with use_logit_scale=True'):
        clip.ClipLoss(use_logit_scale=True, backend="blockwise")(A, B, logit_scale=1.0)
    twin = temperature_free(clip.ClipLoss(link=LogOdds(gain=2.0), backend="blockwise"))
    assert (twin.link.gain, twin.backend) == (2.0, "blockwise")


def test_another_similarity_takes_no_link():
    loss = ranking(similarity_fct=util.dot_score, scale=2.0)()
    loss.link = CalibratedLogOdds()
    with pytest.raises(ValueError, match=r"^similarity_fct must be cos_sim without a scale"):
        columns(loss)
    with pytest.raises(ValueError, match=r'^backend must be "auto" or "reference" with another similarity'):
        ranking(similarity_fct=util.dot_score, scale=2.0)(backend="blockwise")


@SOME_WARN
def test_the_weighted_loss_is_lightlys():
    for loss in (ours.DCLWLoss(sigma=0.7), temperature_free(lightly.loss.DCLWLoss(sigma=0.7))):
        assert isinstance(loss, lightly.loss.DCLWLoss)
        assert loss.weight_fn.keywords == {"sigma": 0.7}
        loss.temperature = TAU
        agree(loss(A, B), lightly.loss.DCLWLoss(TAU, sigma=0.7)(A, B), A, B)


def test_a_wrapped_loss_is_still_the_wrappers():
    wrapped = metric_losses.SelfSupervisedLoss(metric.NTXentLoss(link=Linear()))
    agree(wrapped(A, B), metric_losses.SelfSupervisedLoss(metric_losses.NTXentLoss(TAU))(A, B), A, B)
    contrast = GCL.models.DualBranchContrast(pygcl.InfoNCE(link=LearnableTemperature()), "L2L")
    assert not list(contrast.parameters())  # as the page says
