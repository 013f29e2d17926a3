"""The drop-ins for lightly, beside the real ones."""

import copy

import lightly.loss as original
import pytest
import torch
from torch.nn.functional import normalize

from taufree import info_nce, nt_xent, temperature_free
from taufree.integrations.lightly import DCLLoss, DCLWLoss, NTXentLoss
from tests.support.comparison import agree, rows
from tests.support.largest import Largest

A, B = rows(9, 6), rows(9, 6, seed=1)


def distance(a, b):
    return 1 + (a - b).square().sum(1)


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_nt_xent_with_a_temperature_is_lightlys(tau):
    agree(NTXentLoss(tau)(A, B), original.NTXentLoss(tau)(A, B), A, B)
    torch.testing.assert_close(NTXentLoss(tau)(A, B), NTXentLoss(tau)(B, A))


def test_nt_xent_without_is_free():
    torch.testing.assert_close(NTXentLoss()(A, B), nt_xent(A, B))
    bank = NTXentLoss(memory_bank_size=(7, 6))
    negatives = bank.memory_bank.bank.clone()
    torch.testing.assert_close(bank(A, B), info_nce(A, B, negatives))


def test_balanced_is_that_of_taufree_with_a_bank_too():
    torch.testing.assert_close(NTXentLoss(balanced=True)(A, B), nt_xent(A, B, balanced=True))
    bank = NTXentLoss(memory_bank_size=(7, 6), balanced=True)
    negatives = bank.memory_bank.bank.clone()
    torch.testing.assert_close(bank(A, B), info_nce(A, B, negatives, balanced=True))
    assert temperature_free(bank).balanced
    with pytest.raises(TypeError, match=r"^balanced must be True or False, got str\.$"):
        NTXentLoss(balanced="yes")


def test_the_memory_bank_is_lightlys():
    theirs = original.NTXentLoss(0.2, memory_bank_size=(20, 6))
    ours = NTXentLoss(0.2, memory_bank_size=(20, 6))
    assert type(ours.memory_bank) is type(theirs.memory_bank)
    assert dict(ours.named_buffers()).keys() == dict(theirs.named_buffers()).keys()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.memory_bank = copy.deepcopy(theirs.memory_bank)
    for step in range(4):  # the last batches do not fit, and start anew
        a, b = rows(9, 6, seed=2 * step), rows(9, 6, seed=2 * step + 1)
        agree(ours(a, b), theirs(a, b), a, b)
        torch.testing.assert_close(ours.memory_bank.bank, theirs.memory_bank.bank)
        assert ours.memory_bank.bank_ptr.item() == theirs.memory_bank.bank_ptr.item()
    before = ours.memory_bank.bank.clone()
    ours(A.detach(), B.detach())
    assert ours.memory_bank.bank.equal(before)  # an evaluation leaves no trace


def test_a_bank_in_float64_keeps_every_digit():
    found, expected = (
        kind(0.1, memory_bank_size=(8, 6)).double() for kind in (NTXentLoss, original.NTXentLoss)
    )
    for loss in (found, expected):
        loss(A.double().requires_grad_(), B.double())
    torch.testing.assert_close(found.memory_bank.bank, expected.memory_bank.bank, rtol=1e-14, atol=1e-14)


def test_a_size_alone_takes_the_width_of_the_first_batch():
    loss = NTXentLoss(memory_bank_size=20)
    for _ in range(2):
        loss(A, B)
    assert loss.memory_bank.bank.shape == (20, 6)
    assert loss.memory_bank.bank_ptr.item() == 18
    torch.testing.assert_close(loss.memory_bank.bank[:9], normalize(B.detach()))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"^temperature must be a positive number, got 0"):
        NTXentLoss(temperature=0)
    with pytest.raises(ValueError, match=r"^sigma must be a positive number, got 0"):
        DCLWLoss(sigma=0)
    with pytest.raises(TypeError, match=r"^sigma must be a positive number, got NoneType"):
        DCLWLoss(sigma=None)
    with pytest.raises(ValueError, match="non-negative"):
        NTXentLoss(memory_bank_size=-1)
    with pytest.raises(TypeError, match=r"^memory_bank_size must be an integer or a pair .* got NoneType"):
        NTXentLoss(memory_bank_size=None)


@pytest.mark.parametrize(
    "loss",
    [
        NTXentLoss(),
        NTXentLoss(memory_bank_size=(7, 6)),
        NTXentLoss(memory_bank_size=7),
        DCLLoss(),
        DCLWLoss(),
    ],
    ids=["plain", "bank", "size alone", "dcl", "dclw"],
)
def test_wrong_views_are_named_as_the_user_names_them(loss):
    with pytest.raises(TypeError, match=r"^out0 must be a floating-point tensor, got list\.$"):
        loss(A.tolist(), B)
    with pytest.raises(TypeError, match=r"^out1 must be a floating-point tensor, got ndarray\.$"):
        loss(A, B.detach().numpy())
    with pytest.raises(ValueError, match=r"^out1 must have the shape of out0, \[9, 6\], got \[8, 6\]\.$"):
        loss(A, B[:8])
    with pytest.raises(ValueError, match=r"^out0 must have shape \[N, D\] .* got \[6\]\.$"):
        loss(A[0], B[0])


def test_a_bank_made_by_an_evaluation_can_be_trained_with():
    loss = NTXentLoss(memory_bank_size=12)
    with torch.inference_mode():
        loss(A.detach(), B.detach())
    loss(A, B.detach()).backward()
    assert loss.memory_bank.bank_ptr.item() == 9


def test_keys_that_do_not_fit_leave_the_bank_as_it_is():
    loss = NTXentLoss(memory_bank_size=(20, 6))
    before = loss.memory_bank.bank.clone()
    with pytest.raises(ValueError, match=r"^out1 must have the 6 columns of memory_bank_size, got 4\.$"):
        loss(A[:, :4], B[:, :4])
    with pytest.raises(ValueError, match=r"^out1 must have the shape of out0"):
        loss(A, B[:8])
    assert loss.memory_bank.bank.equal(before)
    assert loss.memory_bank.bank_ptr == 0
    assert torch.isfinite(NTXentLoss(memory_bank_size=(0, 4))(A, B))  # no bank, so nothing to fit


def test_one_weight_for_all_pairs_is_lightlys():
    for weight in (2.0, torch.tensor(2.0)):
        kinds = [kind(0.2, weight_fn=lambda a, b, w=weight: w)(A, B) for kind in (DCLLoss, original.DCLLoss)]
        agree(*kinds, A, B)
    with pytest.raises(ValueError, match=r"^weight_fn must return weights \[9\], got shape \[3\]\.$"):
        DCLLoss(weight_fn=lambda a, b: torch.ones(3))(A, B)


@pytest.mark.parametrize("tau", [0.1, 0.5])
@pytest.mark.parametrize("weight", [None, distance], ids=["plain", "weighted"])
def test_dcl_with_a_temperature_is_lightlys(tau, weight):
    agree(DCLLoss(tau, weight)(A, B), original.DCLLoss(tau, weight)(A, B), A, B)


@pytest.mark.parametrize("tau", [0.02, 0.01, 0.005])
@pytest.mark.parametrize("weight", [None, distance], ids=["plain", "weighted"])
def test_a_low_temperature_is_beyond_float32_and_not_beyond_the_loss(tau, weight):
    near = (A + 0.1 * B).detach().requires_grad_()
    expected = original.DCLLoss(tau, weight)(A.double(), near.double())
    for temperature in (tau, torch.tensor(tau)):
        found = DCLLoss(temperature, weight)(A, near)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
        for one, other in zip(
            torch.autograd.grad(found, (A, near)),
            torch.autograd.grad(expected, (A, near), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("tau", [None, 0.2])
def test_a_zero_row_in_half_precision_has_a_weight(tau):
    half = A.detach().half().clone()
    half[3] = 0
    half.requires_grad_()
    loss = DCLWLoss(tau)(half, B.detach().half())
    assert loss.isfinite()
    assert torch.autograd.grad(loss, half)[0].isfinite().all()


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("sigma", [0.3, 0.5])
def test_dclw_with_a_temperature_is_lightlys(sigma):
    agree(DCLWLoss(0.2, sigma)(A, B), original.DCLWLoss(0.2, sigma)(A, B), A, B)


def odds(u, v, delta=1e-4):
    c = normalize(u, dim=1) @ normalize(v, dim=1).T
    return (1 + c + delta) / (1 - c + delta)


def decoupled(a, b, weight=1.0):
    """The free loss written down: -w log(positive) + log(sum of the negatives), the mean over both views."""
    same = torch.eye(len(a), dtype=torch.bool)
    losses = []
    for one, other in ((a, b), (b, a)):
        across, within = odds(one, other), odds(one, one)
        negatives = across.masked_fill(same, 0).sum(1) + within.masked_fill(same, 0).sum(1)
        losses.append(negatives.log() - weight * across.diagonal().log())
    return torch.cat(losses).mean()


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4], ids=["far", "near", "almost equal"])
def test_dcl_without_is_free(spread):
    a = rows(9, 64).double().detach().requires_grad_()
    b = (a + spread * rows(9, 64, seed=1)).detach().requires_grad_()
    expected = decoupled(a, b)
    agree(DCLLoss()(a, b), expected, a, b)
    half = DCLLoss(weight_fn=lambda x, y: x.new_full((9,), 0.5))
    agree(half(a, b), decoupled(a, b, 0.5), a, b)
    single = DCLLoss()(a.float(), b.float())
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-5)


def test_dcl_is_finite_where_lightlys_is_not():
    a, b = rows(1, 6), rows(1, 6, seed=1)
    assert original.DCLLoss()(a, b) == -torch.inf
    loss = DCLLoss(weight_fn=distance)(a, b)
    assert loss == 0
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss, (a, b)))
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    loss = DCLLoss()(opposite, opposite.detach().clone())
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, opposite)[0]).all()
    assert torch.isnan(DCLLoss()(a.repeat(2, 1) * torch.nan, b.repeat(2, 1)))


@pytest.mark.parametrize("kind", [NTXentLoss, DCLLoss, DCLWLoss])
def test_memory_is_linear_in_the_batch(kind):
    n = 2048
    a, b = rows(n, 6), rows(n, 6, seed=1)
    kind()(a, b)  # whatever is made once and for all
    with Largest() as most:
        kind()(a, b).backward()
    assert most.numel < n * n / 2
