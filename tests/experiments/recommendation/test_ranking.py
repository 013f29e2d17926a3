"""Negatives and ranks: what may be a negative, and who wins a tie."""

import math

import pytest
import torch

from taufree.experiments.recommendation.interactions import Histories
from taufree.experiments.recommendation.ranking import (
    draw_negatives,
    full_ranks,
    ranking_metrics,
    sampled_ranks,
)


def some_rows(users=200, items=50, longest=6):
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (users,), generator=draw)
    table = (items * torch.rand(users, longest + 1, generator=draw) ** 2).long()
    return Histories(table.where(torch.arange(longest + 1) <= lengths[:, None], items), lengths)


def test_negatives_are_new_to_the_user_and_popular():
    rows = some_rows()
    popularity = torch.bincount(rows.items[rows.known], minlength=50)
    drawn = draw_negatives(rows, popularity, 100, torch.Generator().manual_seed(1))
    assert drawn.shape == (200, 100)
    for row, (negatives, items) in enumerate(zip(drawn.tolist(), rows.items.tolist(), strict=True)):
        assert not set(negatives) & set(items[: int(rows.lengths[row]) + 1])
    share = torch.bincount(drawn.flatten(), minlength=50).double()
    assert torch.corrcoef(torch.stack([popularity.double(), share]))[0, 1] > 0.95
    assert (share[popularity == 0] == 0).all()
    assert torch.equal(drawn, draw_negatives(rows, popularity, 100, torch.Generator().manual_seed(1)))


def test_who_has_seen_everything_popular_gets_what_is_left_and_who_has_seen_all_is_refused():
    rows = Histories(torch.tensor([[0, 1, 2]]), torch.tensor([2]))
    known = torch.tensor([1, 1, 0, 0, 0])
    assert draw_negatives(rows, known, 30, torch.Generator().manual_seed(0)).unique().tolist() == [3, 4]
    with pytest.raises(ValueError, match="must have items left to rank against, but user 0 has all 3"):
        draw_negatives(rows, known[:3], 30, torch.Generator())


def test_who_has_seen_nearly_everything_popular_gets_the_rest_by_popularity():
    rows = Histories(torch.tensor([[0, 1]]), torch.tensor([1]))
    popularity = torch.tensor([9000, 1000, 9, 1, 0])
    drawn = draw_negatives(rows, popularity, 5000, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn[0], minlength=5) / 5000
    assert share[2].item() == pytest.approx(0.9, abs=0.02)
    assert share[3].item() == pytest.approx(0.1, abs=0.02)


def test_what_was_cut_off_a_history_is_no_negative():
    rows = Histories(
        torch.tensor([[0, 1], [2, 3]]), torch.tensor([1, 1]), [torch.tensor([4, 5]), torch.tensor([])]
    )
    drawn = draw_negatives(rows, torch.ones(7), 200, torch.Generator().manual_seed(0))
    assert [row.unique().tolist() for row in drawn] == [[2, 3, 6], [0, 1, 4, 5, 6]]


def test_ranks_leave_out_history_and_count_ties_against_the_target():
    scores = torch.tensor([[9.0, 5, 5, 7, 1, 8]])
    target, negatives = torch.tensor([1]), torch.tensor([[2, 4, 4, 3]])
    one = torch.ones(1, 1)
    assert sampled_ranks(one, scores.T, target, negatives).item() == 2  # items 2 (a tie) and 3
    assert full_ranks(scores.clone(), target, seen=torch.tensor([[0, 0]])).item() == 3  # 0 was seen
    lost = torch.full((1, 6), math.nan)
    assert sampled_ranks(one, lost.T, target, negatives).item() == 4
    assert full_ranks(lost, target, torch.tensor([[0]])).item() == 6


def test_items_with_the_same_vector_tie_whatever_their_number():
    """A network that has learnt nothing ranks every target last."""
    draw = torch.Generator().manual_seed(0)
    items = torch.randn(1, 64, generator=draw).expand(500, 64)
    wanted = torch.randn(30, 64, generator=draw)
    negatives = torch.randint(1, 500, (30, 100), generator=draw)
    assert (sampled_ranks(wanted, items, torch.zeros(30).long(), negatives) == 100).all()


def test_figures_are_percentages():
    found = ranking_metrics(torch.tensor([0, 4, 9, 50]))
    assert (found["hr1"], found["hr5"], found["hr10"]) == (25, 50, 75)
    assert found["ndcg10"] == pytest.approx(25 * (1 + 1 / math.log2(6) + 1 / math.log2(11)))
