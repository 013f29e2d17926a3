import torch

from taufree.contrast import Contrast

X = torch.zeros(6, 2)


def test_a_tile_is_a_part_of_the_whole_mask():
    ids = torch.tensor([0, 1, 1, 2, 0, 3])
    for contrast in (
        Contrast(X, X),
        Contrast(X, shift=3),
        Contrast(X, X, ids=ids),
        Contrast(X, shift=3, ids=ids),
        Contrast(X, labels=ids),
    ):
        whole = contrast.left_out(range(6), range(6))
        for rows in (range(0, 2), range(2, 5), range(4, 6)):
            for cols in (range(0, 3), range(3, 6), range(1, 5)):
                part = contrast.left_out(rows, cols)
                expected = whole[rows.start : rows.stop, cols.start : cols.stop]
                assert (part is None and not expected.any()) or torch.equal(part, expected)


def test_what_is_left_out():
    eye = torch.eye(6, dtype=torch.bool)
    assert torch.equal(Contrast(X, X).left_out(range(6), range(6)), eye)
    views = Contrast(X, shift=3).left_out(range(6), range(6))
    assert torch.equal(views, eye | eye.roll(3, 1))
    labels = Contrast(X, labels=torch.zeros(6, dtype=torch.long))
    assert torch.equal(labels.left_out(range(6), range(6)), eye)
    assert torch.equal(labels.same_label(range(6), range(6)), ~eye)
    assert Contrast(X, X).left_out(range(0, 2), range(2, 6)) is None


def test_positives_are_counted_without_a_matrix():
    labels = torch.tensor([5, 5, -1, 5, 7, 7])
    assert Contrast(X, labels=labels).positive_count().tolist() == [2, 2, 0, 2, 1, 1]
    assert Contrast(X, X).positive_count().tolist() == [1] * 6


def test_integers_of_any_dtype_are_counted():
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.uint16, torch.uint32, torch.uint64):
        labels = torch.tensor([5, 5, 1, 5, 7, 7]).to(dtype)
        assert Contrast(X, labels=labels).positive_count().tolist() == [2, 2, 0, 2, 1, 1]
