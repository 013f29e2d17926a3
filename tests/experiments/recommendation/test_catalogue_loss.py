"""The cross-entropy in pieces: that of PyTorch, and its gradients, however large the pieces are."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from taufree.experiments.recommendation.catalogue_loss import catalogue_loss


@pytest.mark.parametrize("max_scores", [1, 4 * 23, 2**24])
def test_it_is_the_cross_entropy_of_all_scores(max_scores):
    draw = torch.Generator().manual_seed(0)
    wanted, items = (torch.randn(n, 5, dtype=torch.float64, generator=draw) for n in (10, 23))
    targets = torch.randint(23, (10,), generator=draw)
    leaves = [x.requires_grad_() for x in (wanted, items)]
    found = catalogue_loss(wanted, items, targets, max_scores)
    expected = cross_entropy(wanted @ items.T, targets)
    torch.testing.assert_close(found, expected)
    slopes, true = (torch.autograd.grad(3 * loss, leaves) for loss in (found, expected))
    torch.testing.assert_close(slopes, true)


def test_scores_that_differ_much_stay_finite():
    wanted = torch.tensor([[1e3, 0.0]], requires_grad=True)
    loss = catalogue_loss(wanted, torch.eye(2), torch.tensor([1]))
    loss.backward()
    assert loss.item() == 1e3
    assert wanted.grad.tolist() == [[1.0, -1.0]]


def test_factors_may_differ_in_dtype_and_autocast_does_not_reach_it():
    wanted, items = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3).double().requires_grad_()
    targets = torch.tensor([0, 1, 2, 4])
    with torch.autocast("cpu", torch.bfloat16):
        found = catalogue_loss(wanted, items, targets)
    torch.testing.assert_close(found, cross_entropy(wanted.double() @ items.T, targets))
    found.backward()
    assert (wanted.grad.dtype, items.grad.dtype) == (torch.float32, torch.float64)


def test_a_second_derivative_is_refused():
    wanted = torch.randn(4, 3, requires_grad=True)
    loss = catalogue_loss(wanted, torch.randn(5, 3), torch.tensor([0, 1, 2, 4]))
    (slope,) = torch.autograd.grad(loss, wanted, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        slope.sum().backward()
