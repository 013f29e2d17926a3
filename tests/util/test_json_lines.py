"""Lines come back as they went in; damaged ones are named, and the next line is not lost to them."""

import pytest

from taufree.util.json_lines import append_json, read_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "lines.jsonl"


def read(path):
    damaged = []
    return read_lines(path, lambda *fault: damaged.append(fault)), damaged


def test_lines_come_back_as_they_went_in(path):
    assert read(path) == ([], [])
    lines = [{"seed": 0, "text": "τ\u2028\n"}, [1.5, None]]
    for line in lines:
        append_json(path, line)
    assert read(path) == (lines, [])
    assert path.read_bytes().count(b"\n") == 2


def test_a_line_that_was_cut_off_costs_no_other(path):
    append_json(path, 1)
    with path.open("ab") as file:
        file.write(b'\n{"seed": \xff')
    append_json(path, 2)
    assert read(path) == ([1, 2], [(3, b'{"seed": \xff', "this line is not whole JSON")])


def test_what_json_has_no_word_for_is_neither_written_nor_read(path):
    with pytest.raises(ValueError, match="JSON compliant"):
        append_json(path, float("nan"))
    assert not path.exists()
    path.parent.mkdir()
    path.write_text("[NaN]\n")
    assert read(path) == ([], [(1, b"[NaN]", "this line is not whole JSON")])
