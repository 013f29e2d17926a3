"""What is observed of a step: against autograd, and against the paper's closed forms."""

import pytest
import torch
from torch.nn.functional import normalize

from taufree import LearnableTemperature, Link, LogOdds, Temperature, nt_xent
from taufree.diagnostics.theory.closed_forms import free_scale, temperature_scale
from taufree.experiments.evaluation.pair_statistics import (
    BINS,
    Tally,
    observe_pairs,
    observe_views,
    temperature_at_zero,
)


@pytest.fixture
def views():
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(12, 5, generator=generator)
    return a, a + 0.5 * torch.randn(12, 5, generator=generator)


@pytest.mark.parametrize("link", [LogOdds(), Temperature(0.2), LearnableTemperature()])
def test_gradient_scale_is_the_sum_of_absolute_derivatives(views, link):
    a, b = (normalize(view.double(), dim=-1) for view in views)
    scales = []
    for row in range(len(a)):
        rest = [other for other in range(len(a)) if other != row]
        cosine = torch.cat([(a[row] @ b[row])[None], a[rest] @ a[row], b[rest] @ a[row]]).requires_grad_()
        loss = -link(cosine).log_softmax(0)[0]
        scales.append(torch.autograd.grad(loss, cosine)[0].abs().sum())
    seen = observe_views(*views, link)
    assert seen.gradient_scale.item() == pytest.approx(torch.stack(scales).mean().item(), rel=1e-5)
    assert seen.candidates == 23
    assert seen.positive == pytest.approx((a * b).sum(-1).float(), abs=1e-6)


def test_scale_of_equal_negatives_matches_the_closed_forms():
    # Six orthogonal vectors: all cosines are 0, which is the paper's scenario at C = 0 with 5 candidates.
    a, b = torch.eye(6)[:3], torch.eye(6)[3:]
    assert observe_views(a, b, Temperature(0.5)).gradient_scale.item() == pytest.approx(
        float(temperature_scale(0.0, 0.5, 5)), rel=1e-6
    )
    assert observe_views(a, b, LogOdds(resolution=0.0)).gradient_scale.item() == pytest.approx(
        float(free_scale(0.0, 5)), rel=1e-6
    )


def test_observing_leaves_no_trace_in_the_graph(views):
    a, b = (view.requires_grad_() for view in views)
    nt_xent(a, b).backward()
    gradient = a.grad.clone()
    assert not observe_views(a, b, LogOdds()).gradient_scale.requires_grad
    assert torch.equal(a.grad, gradient)


def test_few_anchors_stand_for_many(views):
    seen = observe_views(*views, LogOdds(), anchors=4)
    whole = observe_views(*views, LogOdds())
    assert torch.equal(seen.positive, whole.positive[:4])
    assert seen.negative == pytest.approx(whole.negative[:4], abs=1e-6)


def test_identical_and_opposite_rows_are_finite():
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    assert observe_views(a, a, LogOdds()).gradient_scale.isfinite()


def test_tally_counts_every_pair(views):
    tally = Tally()
    for _ in range(3):
        tally.add(observe_views(*views, LogOdds()))
    found = tally.result()
    assert len(found["positive_histogram"]) == BINS
    assert sum(found["positive_histogram"]) == 3 * 12
    assert sum(found["negative_histogram"]) == 3 * 12 * 22
    assert found["candidates"] == 23


class Cubic(Link):
    def logit(self, cosine, gap, rise):
        return 5 * cosine**3


def test_temperature_at_zero():
    assert temperature_at_zero(Temperature(0.3)) == pytest.approx(0.3)
    assert temperature_at_zero(LogOdds(resolution=0.0)) == pytest.approx(0.5)
    assert temperature_at_zero(LearnableTemperature(init=0.2)) == pytest.approx(0.2, rel=1e-6)
    assert temperature_at_zero(Cubic()) == 0.0


def test_pairs_of_one_direction_leave_out_the_own_key_and_pulls_of_the_same_id():
    query, key = torch.eye(4)[:3], torch.eye(4)[:3]
    key = key + 0.1
    seen = observe_pairs(query, key, Temperature(0.5), anchors=2)
    assert seen.negative.shape == (2, 2)
    alike = observe_pairs(query, key, Temperature(0.5), ids=torch.tensor([1, 1, 1]))
    assert alike.gradient_scale == 0  # no negative is left, so nothing is pulled
    assert seen.gradient_scale > 0
    rows = torch.nn.functional.normalize(key, dim=-1)
    assert torch.allclose(seen.positive, rows.diagonal()[:2])


class Cosine(Link):
    def logit(self, cosine, gap, rise):
        return cosine


def test_a_link_that_returns_its_cosine_leaves_the_cosines_whole():
    query, key, ids = torch.eye(4)[:3], torch.eye(4)[:3] + 0.1, torch.tensor([1, 1, 2])
    seen, same = (observe_pairs(query, key, link, ids=ids) for link in (Cosine(), Temperature(1.0)))
    assert torch.equal(seen.negative, same.negative)
    assert seen.gradient_scale.item() == pytest.approx(same.gradient_scale.item())
