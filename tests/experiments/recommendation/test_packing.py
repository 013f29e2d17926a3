"""Packed histories: every item has one slot, in order and in one row, and few slots are empty."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from taufree.experiments.recommendation.packing import one_a_row, packed


@given(st.lists(st.integers(1, 11), min_size=1, max_size=60), st.integers(11, 24), st.integers(1, 9))
def test_each_history_lies_in_one_row_as_it_was(lengths, width, rows):
    slots = packed(lengths, longest=11, width=width, rows=rows)
    assert slots.shape[1] == width
    assert len(slots) % rows == 0
    wanted = [11 * history + place for history, length in enumerate(lengths) for place in range(length)]
    assert sorted(slots[slots >= 0].tolist()) == wanted
    for history, length in enumerate(lengths):
        row, first = (slots == 11 * history).nonzero()[0].tolist()
        assert slots[row, first : first + length].tolist() == wanted[sum(lengths[:history]) :][:length]


def test_few_slots_are_empty():
    lengths = torch.randint(1, 50, (512,), generator=torch.Generator().manual_seed(0))
    slots = packed(lengths, longest=49, width=49)
    assert (slots < 0).double().mean() < 0.03
    # No more rows than without a history, however many are left over.
    assert len(packed([1] * 48 + [49], longest=49, width=49)) == 2


def test_a_row_each():
    assert one_a_row(torch.tensor([2, 3]), 3).tolist() == [[0, 1, -1], [3, 4, 5]]
