"""results.jsonl: what is written stays, what is damaged is named and set aside."""

import json

import pytest

from taufree.experiments.sweep.results import KEYS, Results, line_key
from taufree.util.errors import BadInputError


def line(seed=0, link="free", **changes):
    settings = {"epochs": 1, "precision": "32-true"}
    base = {key: {} for key in KEYS} | {"recipe": "digits", "link": link, "seed": seed, "settings": settings}
    return base | {"metrics": {"knn": 90.5}, "seconds": 1.5} | changes


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def results(tmp_path, warnings):
    return Results(tmp_path, warnings.append)


def test_lines_come_back_as_they_went_in(results, warnings):
    assert results.read() == []
    for seed in range(3):
        results.append(line(seed))
    assert results.read() == [line(0), line(1), line(2)]
    assert results.path.read_text().count("\n") == 3
    assert not warnings
    assert not results.damaged.exists()


def test_the_last_line_of_a_run_counts(results):
    results.append(line(seconds=1.0))
    results.append(line(seconds=2.0))
    assert [one["seconds"] for one in results.read()] == [2.0]


def test_a_torn_last_line_is_named_and_set_aside(results, warnings):
    results.append(line(0))
    torn = json.dumps(line(1))[:50]
    with results.path.open("a") as file:
        file.write(torn)
    assert results.read() == [line(0)]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{results.path}:2: this line is not whole JSON")
    assert str(results.damaged) in warnings[0]
    assert results.damaged.read_text() == torn + "\n"
    assert results.path.read_text() == json.dumps(line(0)) + "\n"
    results.append(line(1))
    assert results.read() == [line(0), line(1)]
    assert len(warnings) == 1


def test_a_line_appended_to_a_torn_one_is_not_lost(results, warnings):
    results.append(line(0))
    with results.path.open("a") as file:
        file.write('{"recipe": "dig')
    results.append(line(1))
    assert results.read() == [line(0), line(1)]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x00\x00\x00\xff",
        b"[1, 2]",
        b'{"recipe": "digits"}',
        json.dumps(line() | {"metrics": 3}).encode(),
        json.dumps(line() | {"hardware": "a laptop"}).encode(),
    ],
)
def test_every_kind_of_damage_is_set_aside(results, warnings, damaged):
    good = json.dumps(line()).encode()
    results.path.write_bytes(damaged + b"\n" + good + b"\n")
    assert results.read() == [line()]
    assert f"{results.path}:1: " in warnings[0]
    assert results.damaged.read_bytes() == damaged + b"\n"
    results.path.write_bytes(b"more\n" + good + b"\n")
    results.read()
    assert results.damaged.read_bytes() == damaged + b"\nmore\n"


def test_a_line_with_more_keys_is_whole(results, warnings):
    """Another version may have written more."""
    more = line(0) | {"extra": 1}
    results.path.write_text(json.dumps(more) + "\n")
    assert results.read() == [more]
    assert not warnings


def test_a_whole_line_without_its_end_is_kept(results, warnings):
    results.path.write_text(json.dumps(line(0)))
    results.append(line(1))
    assert results.read() == [line(0), line(1)]
    assert not warnings


def test_only_whole_lines_of_numbers_are_written(results):
    with pytest.raises(ValueError, match="line must have the keys"):
        results.append({"recipe": "digits"})
    with pytest.raises(ValueError, match="JSON compliant"):
        results.append(line(seconds=float("nan")))


def test_one_writer_at_a_time(tmp_path, results):
    with results, pytest.raises(BadInputError, match="another run is writing to"), Results(tmp_path, print):
        pass
    with Results(tmp_path, print):
        pass


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BadInputError, match="cannot be written to"),
        Results(tmp_path / "file" / "out", print),
    ):
        pass


def test_keys_tell_runs_apart():
    lines = [line(), line(1), line(link="0.1"), line(recipe="other"), line(settings={"epochs": 2})]
    assert len({line_key(one) for one in lines}) == 5
    assert line_key(line(settings={"a": 1, "b": 2})) == line_key(line(settings={"b": 2, "a": 1}, seconds=9))


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": 4},
        {"seed": [1]},
        {"link": "banana"},
        {"link": 3},
        {"seconds": "long"},
        {"metrics": {"knn": "good"}},
        {"metrics": {"knn": float("nan")}},
        {"curves": {"loss": "falling"}},
        {"curves": {"loss": [1.0, None]}},
    ],
)
def test_a_line_that_no_table_can_show_is_damaged(results, warnings, changes):
    results.path.write_text(f"{json.dumps(line(1) | changes)}\n{json.dumps(line())}\n")
    assert results.read() == [line()]
    assert len(warnings) == 1


def test_a_file_that_cannot_be_written_is_bad_input(results):
    results.path.mkdir()
    for use in (results.read, lambda: results.append(line())):
        with pytest.raises(
            BadInputError, match=f"--out {results.path.parent} cannot be written to: Is a dir"
        ):
            use()
