"""The backends that run anywhere give on a GPU what they give on the CPU."""

from dataclasses import replace

import pytest
import torch

from taufree import LearnableTemperature, info_nce, nt_xent
from taufree.backends import moments
from tests.support.comparison import rows
from tests.support.contrasts import contrasts
from tests.support.devices import require_gpu

pytestmark = require_gpu()


@pytest.mark.parametrize("loss", [lambda *x, **y: info_nce(*x, symmetric=True, **y), nt_xent])
@pytest.mark.parametrize("backend", ["auto", "blockwise"])
def test_losses_and_gradients_are_those_of_the_cpu(loss, backend):
    a, b = rows(700, 64).detach(), rows(700, 64, seed=1).detach()
    b[:5] = a[:5] + 1e-4
    results = []
    for device in ("cpu", "cuda"):
        leaf = a.to(device).requires_grad_()
        value = loss(leaf, b.to(device), backend=backend)
        results.append((value.cpu(), torch.autograd.grad(value, leaf)[0].cpu()))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_link_may_be_left_on_the_cpu(backend, reduction):
    a, b = rows(300, 64).detach(), rows(300, 64, seed=1).detach()
    grads = []
    for device in ("cpu", "cuda"):
        link = LearnableTemperature()
        loss = info_nce(a.to(device), b.to(device), link=link, backend=backend, reduction=reduction)
        grads += torch.autograd.grad(loss.mean(), link.log_scale)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", contrasts(4, 4))
def test_the_moment_of_the_negatives_is_that_of_the_cpu(name):
    contrast = contrasts(300, 40)[name]
    expected = moments.measure(contrast)
    moved = {part: x.cuda() for part, x in vars(contrast).items() if isinstance(x, torch.Tensor)}
    moved = {part: x.float() if x.is_floating_point() else x for part, x in moved.items()}
    for found, wanted in zip(moments.measure(replace(contrast, **moved)), expected, strict=True):
        assert found.item() == pytest.approx(wanted.item(), rel=1e-4)
