"""Gradient scales of anchors: closed forms, and autograd on the loss as it is written."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from taufree import Link, LogOdds, Temperature
from taufree.diagnostics.anchors import blocks, gradients
from taufree.diagnostics.gradient_scale import chance_scale, optimum_scale
from taufree.diagnostics.theory.closed_forms import free_scale, temperature_scale
from tests.support.comparison import noisy_pairs

LINKS = {
    "free": LogOdds(),
    "exact": LogOdds(resolution=1e-9),
    "0.02": Temperature(0.02),
    "0.5": Temperature(0.5),
}


@pytest.mark.parametrize("c", [0.0, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("n", [2, 5, 300])
def test_the_papers_scenario_has_the_closed_forms(c: float, n: int) -> None:
    """Anchor 0 has its positive at C and all n - 1 negatives at -C."""
    height = math.sqrt(1 - c * c)
    first = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(n, 1)
    second = torch.tensor([[-c, height]], dtype=torch.float64).repeat(n, 1)
    second[0, 0] = c
    (block,) = blocks(first, second, torch.arange(n), torch.tensor([0]))
    for tau in (0.05, 0.1, 0.5, 1.0):
        scale, *_ = gradients(Temperature(tau), block)
        assert scale.item() == pytest.approx(temperature_scale(c, tau, n), rel=1e-5)
    scale, *_ = gradients(LogOdds(resolution=1e-9), block)
    assert scale.item() == pytest.approx(free_scale(c, n), rel=1e-4)
    one = torch.tensor([1.0])
    for link in (Temperature(0.1), LogOdds(resolution=1e-9)):
        at_zero = temperature_scale(0.0, 0.1, n) if isinstance(link, Temperature) else free_scale(0.0, n)
        assert chance_scale(link, one, n - one).item() == pytest.approx(at_zero, rel=1e-6)
    assert optimum_scale(Temperature(0.3), one, n - one).item() == pytest.approx(
        temperature_scale(1.0, 0.3, n)
    )


def by_autograd(
    link: Link, cosine: Tensor, positive: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient scales, hardest shares and losses of [A, N] float64 cosines, by the loss as it is written."""
    cosine = cosine.clone().requires_grad_()
    logit = link.logit(cosine, 1 - cosine, 1 + cosine).masked_fill(~(positive | negative), -torch.inf)
    loss = -(logit.log_softmax(1).masked_fill(~positive, 0.0).sum(1) / positive.sum(1))
    (grad,) = torch.autograd.grad(loss.sum(), cosine)
    shares = []
    for row, mask, values in zip(grad, negative, cosine.detach(), strict=True):
        push, hardness = row[mask].abs(), values[mask]
        hard = hardness.topk(math.ceil(len(push) / 100)).indices
        shares.append(push[hard].sum() / push.sum())
    return grad.abs().sum(1), torch.stack(shares), loss.detach()


@pytest.mark.parametrize("contrast", ["pairs", "labels", "labelled pairs"])
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
def test_gradients_are_those_of_autograd(contrast: str, link: Link) -> None:
    first, second = noisy_pairs(rows=250)
    groups = torch.arange(250)
    if contrast != "pairs":
        groups = torch.tensor([0] * 120 + [1] * 90 + [2] * 30 + [3, 3, 4, 4, 5, 5, 6, 6, 7, 7])
        groups = groups[torch.randperm(250, generator=torch.Generator().manual_seed(1))]
    table = None if contrast == "labels" else second
    rows = torch.tensor([0, 3, 4, 77, 200, 249])
    found = list(blocks(first, table, groups, rows))
    scale, share, loss = (
        torch.cat(parts) for parts in zip(*(gradients(link, block) for block in found), strict=True)
    )

    against = first if table is None else table
    cosine = normalize(first.double()) @ normalize(against.double()).T
    same = groups[:, None] == groups
    positive = same & ~torch.eye(250, dtype=torch.bool) if table is None else same
    expected = by_autograd(link, cosine[rows], positive[rows], ~same[rows])
    torch.testing.assert_close(scale.double(), expected[0], rtol=2e-4, atol=1e-12)
    torch.testing.assert_close(share.double(), expected[1], rtol=2e-4, atol=1e-12)
    torch.testing.assert_close(loss.double(), expected[2], rtol=2e-4, atol=1e-5)
