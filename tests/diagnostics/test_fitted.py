"""The gain of a fitted link: against a general minimiser of the loss as it is written."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import normalize

from taufree import LogOdds
from taufree.diagnostics.anchors import blocks
from taufree.diagnostics.fitted import fitted_gain
from tests.support.comparison import noisy_pairs


def fitted(first: Tensor, second: Tensor | None, groups: Tensor | None = None) -> float:
    groups = torch.arange(len(first)) if groups is None else groups
    rows = torch.arange(len(first))
    return fitted_gain(partial(blocks, first, second, groups, rows), len(first))


def by_scipy(first: Tensor, second: Tensor | None, groups: Tensor | None = None) -> float:
    """The same from [N, N] matrices, by Brent's method."""
    n = len(first)
    groups = torch.arange(n) if groups is None else groups
    odds = LogOdds()(normalize(first.double()) @ normalize((first if second is None else second).double()).T)
    same = groups[:, None] == groups
    positive = same if second is not None else same & ~torch.eye(n, dtype=torch.bool)
    target = positive * (n + 1) / positive.sum(1, keepdim=True)
    target = (target + ~same / (~same).sum(1, keepdim=True)) / (n + 2)

    def loss(log_gain: float) -> float:
        logits = (np.exp(log_gain) * odds).masked_fill(~(positive | ~same), -torch.inf)
        return -(target * logits.log_softmax(1).masked_fill(target == 0, 0.0)).sum(1).mean().item()

    return float(np.exp(minimize_scalar(loss, bracket=(-1.0, 2.0), options={"xtol": 1e-10}).x))


@pytest.mark.parametrize("noise", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("rows", [3, 90])
def test_pairs(noise: float, rows: int) -> None:
    first, second = noisy_pairs(rows=rows, dimensions=12, noise=noise)
    assert fitted(first, second) == pytest.approx(by_scipy(first, second), rel=1e-3)


@pytest.mark.parametrize("paired", [True, False])
def test_labels(paired: bool) -> None:
    first, second = noisy_pairs(rows=80, dimensions=12)
    groups = torch.arange(80) % 4
    first, second = (view + 2 * torch.eye(12)[groups] for view in (first, second))
    other = second if paired else None
    assert fitted(first, other, groups) == pytest.approx(by_scipy(first, other, groups), rel=1e-3)


def test_a_separable_batch_has_a_finite_gain() -> None:
    first = torch.eye(30)
    second = first + 0.3 * torch.eye(30).roll(1, 1)
    assert fitted(first, second) == pytest.approx(by_scipy(first, second), rel=1e-3)


def test_positives_behind_the_average_have_none() -> None:
    first, second = noisy_pairs()
    assert fitted(first, -second) == 0
    assert fitted(torch.ones(5, 3), torch.ones(5, 3)) == 0


def test_it_is_the_minimum_of_the_smoothed_loss_and_needs_few_passes() -> None:
    first, second = noisy_pairs(rows=60)
    rows, passes = torch.arange(60), []

    def read():  # type: ignore[no-untyped-def]
        passes.append(1)
        return blocks(first, second, rows, rows)

    gain = fitted_gain(read, 60)
    assert gain == pytest.approx(fitted(first * 3, second), rel=1e-4)  # lengths do not matter
    assert len(passes) <= 12
