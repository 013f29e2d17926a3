"""Reading .inter files: what becomes a table, what is left out and named, what is refused."""

import pytest
import torch

from taufree.experiments.recommendation.interactions import read_interactions

HEADER = "session_id:token\titem_id_list:token_seq\titem_id:token\n"


def write(folder, train, test, header=HEADER):
    (folder / "shop.train.inter").write_text(header + train, encoding="utf-8")
    (folder / "shop.test.inter").write_text(header + test, encoding="utf-8")
    return folder


def test_rows_are_numbers_with_the_target_after_the_history(tmp_path):
    data = read_interactions(write(tmp_path, "a\t7 9\t7\nb\t8\t9\n", "a\t7 9 7\t8\nb\t8 9\t30\n"))
    assert data.item_count == 4
    assert data.train.items.tolist() == [[0, 1, 0], [2, 1, 4]]  # 7, 9, 8, 30 in this order; 4 is no item
    assert data.train.lengths.tolist() == [2, 1]
    assert data.train.targets.tolist() == [0, 1]
    assert data.test.targets.tolist() == [2, 3]
    assert data.test.known.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert data.notes == ()


def test_a_file_may_begin_with_the_mark_that_windows_gives_it(tmp_path):
    data = read_interactions(write(tmp_path, "a\t7 9\t7\n", "a\t7 9 7\t8\n", header="\ufeff" + HEADER))
    assert data.item_count == 3


def test_the_last_items_and_the_longest_users_are_kept(tmp_path):
    train = "a\t1 2 3 4\t5\nb\t1\t2\nc\t1 2 3\t4\n"
    test = "a\t1 2 3 4 5\t6\nb\t1 2\t3\nc\t1 2 3 4\t5\n"
    data = read_interactions(write(tmp_path, train, test), longest=2, users=2)
    assert len(data.train.lengths) == len(data.test.lengths) == 2
    # Users a and c: 3 4 and then 5, 2 3 and then 4.
    assert data.item_count == 5
    assert data.train.items.tolist() == [[0, 1, 2], [3, 0, 1]]
    # What was cut off is no negative either, as far as it has a number: 1 has none, c's 2 is in the history.
    assert [set(row) for row in data.train.seen(torch.arange(2)).tolist()] == [{3, 0, 1, 2}, {3, 0, 1}]
    assert set(data.test.seen(torch.tensor([0])).flatten().tolist()) == {3, 0, 1, 2, 4}


def test_a_long_history_takes_no_more_room_than_there_are_items(tmp_path):
    """All rows of a chunk are as wide as its widest."""
    robot = " ".join("12" * 5000)
    data = read_interactions(write(tmp_path, f"a\t{robot}\t3\nb\t1 2\t3\n", f"a\t{robot}\t3\n"), longest=4)
    assert data.train.seen(torch.arange(2)).tolist() == [[0, 1, 0, 1, 2, 0, 1], [0, 1, 2, 2, 2, 2, 2]]


def test_malformed_rows_are_named_with_their_lines_and_left_out(tmp_path):
    train = "a\t1 2\t3\nb\t1 2\n\nc\t\t3\nd\t1\t3 4\ne\t1\t2\t3\nf\t2\t1\n"
    data = read_interactions(write(tmp_path, train, "a\t1 2 3\t1\n"))
    assert len(data.train.lengths) == 2
    (note,) = data.notes
    assert (
        note
        == f"4 of 6 rows of {tmp_path / 'shop.train.inter'} are malformed and left out: lines 3, 5, 6, 7."
    )


@pytest.mark.parametrize(
    ("train", "test", "header", "sentence"),
    [
        ("", "a\t1\t2\n", HEADER, "shop.train.inter must hold rows of a user, a list of items and an item"),
        ("a\t1\t2\n", "a\t1\n", HEADER, "shop.test.inter must hold rows"),
        (
            "a\t1\t2\n",
            "a\t1 2\t3\n",
            "x\ty\n",
            "must begin with the columns session_id, item_id_list, item_id, got x, y",
        ),
    ],
)
def test_an_empty_data_set_and_other_columns_are_refused(tmp_path, train, test, header, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_interactions(write(tmp_path, train, test, header))


def test_a_folder_without_the_files_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must hold one file \*\.train\.inter, found 0\."):
        read_interactions(tmp_path)
