"""The scripts of benchmarks/: each can be imported, so that no rename leaves one behind; their losses."""

import importlib

import pytest
import torch

from taufree import LogOdds, nt_xent
from tests.support.paths import ROOT

SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "benchmarks").rglob("*.py")
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_can_be_imported(script):
    assert importlib.import_module(script).__doc__


@pytest.mark.slow
def test_few_candidates_are_all_of_them_in_a_small_batch():
    alternatives = importlib.import_module("benchmarks.studies.alternatives")
    a, b = torch.randn(2, 20, 8)
    torch.testing.assert_close(alternatives.FewCandidates()(a, b), nt_xent(a, b))


@pytest.mark.slow
def test_the_prior_weighs_the_positive_by_the_number_of_negatives():
    alternatives = importlib.import_module("benchmarks.studies.alternatives")
    a, b = torch.randn(2, 20, 8, dtype=torch.float64)
    unit = torch.nn.functional.normalize(torch.cat([a, b]), dim=1)
    weight = LogOdds()(unit @ unit.T).exp()
    positive = weight[torch.arange(40), torch.arange(40).roll(20)]
    others = weight.fill_diagonal_(0).sum(1) - positive
    expected = (1 + others / (38 * positive)).log().mean()
    torch.testing.assert_close(alternatives.WithPrior()(a, b), expected)
