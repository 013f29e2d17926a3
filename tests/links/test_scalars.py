"""The step of a measured link is the same in plain numbers, as on a CPU, and in tensors, as on a GPU."""

import math

import pytest
import torch

from taufree import CalibratedLogOdds, FittedLogOdds, info_nce
from taufree.links import scalars


@pytest.mark.parametrize("kind", [CalibratedLogOdds, FittedLogOdds])
@pytest.mark.parametrize("batch", ["random", "alike", "nan"])
def test_numbers_and_tensors_give_the_same_gain(kind, batch, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(20, 16, generator=draw)
    other = {"random": first + torch.randn(20, 16, generator=draw), "alike": first[:1].expand(20, 16)}
    other = other.get(batch, torch.full_like(first, torch.nan))
    first = other if batch == "alike" else first
    found = []
    for known in (scalars.known, lambda x: False):
        monkeypatch.setattr(scalars, "known", known)
        link = kind()
        losses = [info_nce(x, y, link=link) for x, y in ((first, other), (other, first))]
        found.append([*losses, *link.state_dict().values(), link.gain])
        assert isinstance(link.formula_scale(), float) == (known(torch.zeros(())) is True)
    for number, tensor in zip(*found, strict=True):
        torch.testing.assert_close(number, tensor, equal_nan=True)


@pytest.mark.parametrize("x", [-1.0, 0.0, 1.0, math.nan])
@pytest.mark.parametrize("by", [0.0, 2.0, math.nan])
def test_arithmetic_is_that_of_tensors(x, by):
    tensor = torch.tensor(x, dtype=torch.float64)
    for number, expected in (
        (scalars.divide(x, by), scalars.divide(tensor, torch.tensor(by, dtype=torch.float64))),
        (scalars.clamp(x, 0.0, 0.5), scalars.clamp(tensor, 0.0, 0.5)),
        (scalars.exp(x), scalars.exp(tensor)),
    ):
        torch.testing.assert_close(number, expected.item(), equal_nan=True)
