"""The sigmoid loss: one visit of the pairs, its bias, and the precision of its questions."""

import math
import weakref

import mpmath
import pytest
import torch

from taufree import (
    CalibratedLogOdds,
    LearnableTemperature,
    Link,
    LogOdds,
    SigmoidNCE,
    Temperature,
    info_nce,
    sigmoid_nce,
)
from taufree.backends.blockwise import engine as blockwise
from taufree.backends.blockwise.tiles import keep_freed_memory
from taufree.large_batch import chunked_backward
from tests.support.largest import Largest

BACKENDS = ["reference", "blockwise"]
LINKS = [LogOdds(), LogOdds(gain=2.0), Temperature(0.1), LearnableTemperature(0.1)]


class Cubic(Link):
    def __init__(self):
        super().__init__()
        self.times = torch.nn.Parameter(torch.tensor(5.0))

    def logit(self, cosine, gap, rise):
        return self.times * cosine**3


def rows(n, d=8, seed=0, dtype=torch.float32):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def tiles(monkeypatch):
    """The tiles that are visited, of 16 x 16 pairs."""
    seen, original = [], blockwise.BlockwiseEngine._tile
    monkeypatch.setattr(blockwise, "TILE_SIZE", 16)
    monkeypatch.setattr(
        blockwise.BlockwiseEngine, "_tile", lambda self, place: (seen.append(place), original(self, place))[1]
    )
    return seen


@pytest.mark.parametrize(("reduction", "visits"), [("mean", 1), ("sum", 1), ("none", 2)])
@pytest.mark.parametrize("link", [*LINKS, Cubic()], ids=repr)
def test_a_scalar_visits_each_pair_once(link, reduction, visits, tiles):
    a, b = rows(40).requires_grad_(), rows(40, seed=1).requires_grad_()
    sigmoid_nce(a, b, link=link, reduction=reduction, backend="blockwise").sum().backward()
    assert len(tiles) == 9 * visits


@pytest.mark.parametrize("link", [*LINKS, Cubic()], ids=repr)
def test_no_tensor_grows_with_the_square_of_the_batch(link, monkeypatch):
    monkeypatch.setattr(blockwise, "TILE_SIZE", 32)
    keep_freed_memory()
    a, b = rows(160, 4).requires_grad_(), rows(160, 4, seed=1).requires_grad_()
    for ids in (None, torch.arange(160) // 2):
        with Largest() as largest:
            sigmoid_nce(a, b, ids=ids, link=link, bias=torch.zeros(()), backend="blockwise").backward()
        assert largest.numel <= 2 * 32 * 32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [-2000.0, -100.0, 19.0, 100.0, 2000.0])
def test_questions_that_are_beyond_doubt_keep_their_digits(bias, backend):
    """exp(bias) is beyond any range; the loss is not."""
    a, b = rows(4, dtype=torch.float64).requires_grad_(), rows(4, seed=1, dtype=torch.float64)
    found = sigmoid_nce(a, b, link=0.01, bias=bias, reduction="none", backend=backend)
    cosines = torch.nn.functional.cosine_similarity(a[:, None], b, dim=-1).tolist()
    for i, loss in enumerate(found.tolist()):
        with mpmath.workdps(60):
            signed = [(-1 if i == j else 1) * (100 * mpmath.mpf(c) + bias) for j, c in enumerate(cosines[i])]
            true = mpmath.fsum(mpmath.log1p(mpmath.exp(z)) for z in signed)
        assert loss == pytest.approx(float(true), rel=1e-11, abs=1e-300)
    assert torch.autograd.grad(found.sum(), a)[0].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bias_is_the_prior_unless_it_is_given(backend):
    a, b = rows(9), rows(9, seed=1)
    for n, prior in ((9, -math.log(8)), (3, -math.log(2)), (2, 0.0), (1, 0.0)):
        found = sigmoid_nce(a[:n], b[:n], backend=backend)
        torch.testing.assert_close(found, sigmoid_nce(a[:n], b[:n], bias=prior, backend=backend))
        torch.testing.assert_close(
            found, sigmoid_nce(a[:n], b[:n], bias=torch.tensor([prior]), backend=backend)
        )
    # Orthogonal pairs, gain 1: each answer is the prior probability, so that the loss is its entropy.
    chance = sigmoid_nce(torch.eye(8)[:4], torch.eye(8)[4:], backend=backend).item()
    assert chance == pytest.approx(math.log(4) + 3 * math.log(4 / 3), rel=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_from_elsewhere(backend):
    """Of another dtype, from inference mode, or in the middle of a graph."""
    a, b, x = rows(5).requires_grad_(), rows(5, seed=1), torch.tensor(0.3, requires_grad=True)
    loss = sigmoid_nce(a, b, bias=(x * 2).bfloat16(), backend=backend)
    assert loss.dtype == torch.float32
    assert torch.autograd.grad(loss, x)[0] != 0
    with torch.inference_mode():
        made = torch.tensor(-1.0)
    loss = sigmoid_nce(a, b, bias=made, backend=backend)
    torch.testing.assert_close(loss, sigmoid_nce(a, b, bias=-1.0, backend=backend))
    loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_leave_out_what_they_say(backend):
    a, b = rows(4), rows(4, seed=1)
    found = sigmoid_nce(a, b, ids=torch.tensor([7, 7, 8, 9]), reduction="none", bias=-1.0, backend=backend)
    kept = sigmoid_nce(a[[0, 2, 3]], b[[0, 2, 3]], reduction="none", bias=-1.0)
    torch.testing.assert_close(found[0], kept[0])
    torch.testing.assert_close(found[2], sigmoid_nce(a, b, reduction="none", bias=-1.0)[2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_inputs_mixed_dtypes_and_a_scaled_gradient(backend):
    """float16 keeps the digits of a gradient that is only large once a scaler has multiplied it."""
    a, b = rows(600, dtype=torch.float16), rows(600, seed=1)
    a.requires_grad_()
    loss = sigmoid_nce(a, b, backend=backend)
    (grad,) = torch.autograd.grad(2.0**14 * loss, a)
    single = a.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(2.0**14 * sigmoid_nce(single, b), single)
    assert loss.dtype == torch.float32
    assert grad.dtype == torch.float16
    torch.testing.assert_close(grad.float(), expected, rtol=2e-3, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("link", [*LINKS, Cubic()], ids=repr)
def test_higher_derivatives_are_those_of_the_reference(link, reduction):
    a, b = (rows(5, 3, seed, torch.float64).requires_grad_() for seed in range(2))
    bias = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    inputs, found = (a, b, bias, *link.parameters()), []
    for backend in BACKENDS:
        derivative = sigmoid_nce(a, b, link=link, bias=bias, reduction=reduction, backend=backend).sum()
        for _ in range(2):
            first = torch.autograd.grad(derivative, inputs, create_graph=True)
            derivative = sum(x.sin().sum() for x in first)
        found.append(torch.autograd.grad(derivative, inputs))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_transforms_are_the_references(reduction):
    a, b = rows(6, dtype=torch.float64), rows(6, seed=1, dtype=torch.float64)
    found = [
        torch.func.jacfwd(lambda x, one=one: sigmoid_nce(x, b, reduction=reduction, backend=one))(a)
        for one in ("auto", "reference")
    ]
    torch.testing.assert_close(*found)
    with pytest.raises(RuntimeError, match=r'blockwise backend.*backend="reference"'):
        torch.func.grad(lambda x: sigmoid_nce(x, b, backend="blockwise"))(a)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_scaled_upstream(reduction):
    link = LearnableTemperature(0.5)
    a, b = rows(5).requires_grad_(), rows(5, seed=1).requires_grad_()
    bias = torch.tensor(-1.0, requires_grad=True)
    value = sigmoid_nce(a, b, link=link, bias=bias, reduction=reduction, backend="blockwise").sum()
    inputs = (a, b, bias, link.log_scale)
    once = torch.autograd.grad(value, inputs, retain_graph=True)
    tripled = torch.autograd.grad(3 * value, inputs)
    for first, third in zip(once, tripled, strict=True):
        torch.testing.assert_close(third, 3 * first)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_that_is_kept_does_not_keep_the_embeddings(reduction):
    embeddings = rows(4).requires_grad_() * 2
    alive = weakref.ref(embeddings)
    loss = sigmoid_nce(embeddings, rows(4, seed=1), reduction=reduction, backend="blockwise").sum()
    loss.backward()
    del embeddings
    assert alive() is None


def test_a_bias_may_change_between_forward_and_backward():
    bias, a = torch.nn.Parameter(torch.tensor(-1.0)), rows(4).requires_grad_()
    found = []
    for change in (0.0, 1.0):
        loss = sigmoid_nce(a, rows(4, seed=1), bias=bias, reduction="none", backend="blockwise").sum()
        with torch.no_grad():
            bias += change
        found.append(torch.autograd.grad(loss, (a, bias)))
    assert all(map(torch.equal, *found))


def test_a_link_of_ones_own_that_changed_before_the_backward_is_refused():
    link, a = Cubic(), rows(4).requires_grad_()
    losses = sigmoid_nce(a, rows(4, seed=1), link=link, reduction="none", backend="blockwise")
    with torch.no_grad():
        link.times += 1
    with pytest.raises(RuntimeError, match=r"parameters must be those of the forward"):
        losses.sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_computed_where_none_is_asked_for(mode, monkeypatch):
    link, a, b = LearnableTemperature(0.1), rows(4).requires_grad_(), rows(4, seed=1)
    expected = sigmoid_nce(a, b, link=link, backend="blockwise").detach()
    monkeypatch.delattr(blockwise.BlockwiseEngine, "_gradients")
    with mode():
        assert torch.equal(sigmoid_nce(a, b, link=link, backend="blockwise"), expected)


def test_chunks_of_an_encoder_and_a_learned_bias():
    torch.manual_seed(0)
    encoder, loss = torch.nn.Linear(8, 4), SigmoidNCE(link="learnable", bias="learnable")
    a, b = rows(20), rows(20, seed=1)
    parameters = [*encoder.parameters(), *loss.parameters()]
    expected = torch.autograd.grad(loss(encoder(a), encoder(b)), parameters)
    chunked_backward(loss, (encoder, a), (encoder, b), chunk_size=7)
    for one, other in zip(parameters, expected, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=1e-4, atol=1e-6)


def test_a_calibrated_gain_is_measured_as_for_the_other_losses():
    a, b = rows(300, 64).requires_grad_(), rows(300, 64, seed=1)
    links = CalibratedLogOdds(), CalibratedLogOdds()
    sigmoid_nce(a, b, link=links[0])
    info_nce(a, b, link=links[1])
    assert links[0].gain == links[1].gain > 2
