"""From logs to sequences: every layout gives the same files, and nothing is left out in silence."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taufree
from taufree.cli import build

pl = pytest.importorskip("polars", reason="polars is not installed")

from taufree.experiments.recommendation.interactions import read_interactions  # noqa: E402
from taufree.experiments.recommendation.sequences import build_sequences, k_core  # noqa: E402

# User 1 has items 10, 11, 12, 10 in the order of time, user 2 has 11, 10, 12; user 3 and item 99 are rare.
EVENTS = [(1, 11, 20), (1, 10, 10), (2, 11, 5), (1, 12, 30), (2, 10, 6), (3, 99, 1), (2, 12, 7), (1, 10, 40)]


def rows_of(folder, part):
    return (folder / f"{folder.name}.{part}.inter").read_text().splitlines()[1:]


def check(folder, summary):
    assert rows_of(folder, "train") == ["1\t10 11\t12", "2\t11\t10"]
    assert rows_of(folder, "test") == ["1\t10 11 12\t10", "2\t11 10\t12"]
    assert (summary.rows, summary.kept, summary.users, summary.items) == (8, 7, 2, 3)
    assert read_interactions(folder).item_count == 3


@pytest.mark.parametrize(
    "layout",
    [
        *("ratings.csv", "log.tsv", "LOG.TSV", "log.parquet", "u.data", "ratings.dat", "log.tsv.gz"),
        *("semicolons.csv", "semicolons.csv.gz", "tabs.csv", "log.inter"),
    ],
)
def test_every_layout_gives_the_same_sequences(tmp_path, layout):
    log, out = tmp_path / layout, tmp_path / "made"
    fields = [(user, item, 3.5, time) for user, item, time in EVENTS]
    if layout == "log.parquet":
        pl.DataFrame(EVENTS, schema=["user_id", "item_id", "time"], orient="row").write_parquet(log)
    else:
        between = {"ratings.csv": ",", "ratings.dat": "::"}.get(layout, "\t")
        between = ";" if layout.startswith("semicolons") else between
        names = ("userId", "movieId", "rating", "timestamp")
        if layout == "log.inter":
            names = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
        head = between.join(names) + "\n"
        lines = "".join(between.join(map(str, row)) + "\n" for row in fields)
        text = (lines if layout in ("u.data", "ratings.dat") else head + lines).encode()
        log.write_bytes(gzip.compress(text) if layout.endswith(".gz") else text)
    check(out, build_sequences(log, out, core=2))


def test_a_comma_in_a_name_between_semicolons_separates_nothing(tmp_path):
    log = tmp_path / "log.csv"
    rows = "".join(f"{user};{item};{time};a, b, c, d, e\n" for user, item, time in EVENTS)
    log.write_text('user;item;time;"what, and why"\n' + rows)
    check(tmp_path / "made", build_sequences(log, tmp_path / "made", core=2))


@pytest.mark.parametrize("layout", ["csv", "parquet"])
def test_a_name_with_brackets_is_that_of_one_file(tmp_path, layout):
    frame = pl.DataFrame(EVENTS, schema=["user", "item", "time"], orient="row")
    for name, table in (("log1", frame.head(3)), ("log[1]", frame)):
        path = tmp_path / f"{name}.{layout}"
        table.write_csv(path) if layout == "csv" else table.write_parquet(path)
    check(tmp_path / "made", build_sequences(tmp_path / f"log[1].{layout}", tmp_path / "made", core=2))


def test_columns_can_be_named(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("who,what,when\n" + "".join(f"{a},{b},{c}\n" for a, b, c in EVENTS))
    with pytest.raises(
        ValueError, match=r"must have one column called user or .* for --user, got who, what, when\."
    ):
        build_sequences(log, tmp_path / "made", core=2)
    check(
        tmp_path / "made",
        build_sequences(log, tmp_path / "made", user="who", item="what", time="when", core=2),
    )


def test_malformed_rows_are_named_with_their_lines(tmp_path):
    log = tmp_path / "ratings.csv"
    good = [f"{user},{item},1.0,{time}" for user, item, time in EVENTS]
    log.write_text(
        "\n".join(["userId,movieId,rating,timestamp", *good[:3], "1,,1.0,3", *good[3:], "2,12", ""])
    )
    summary = build_sequences(log, tmp_path / "made", core=2)
    assert summary.notes == (f"2 of 10 rows of {log} are malformed and left out: lines 5, 11.",)
    assert rows_of(tmp_path / "made", "train") == ["1\t10 11\t12", "2\t11\t10"]


@pytest.mark.parametrize("before", [0, 60])
def test_a_word_for_a_time_is_left_out_wherever_it_stands(tmp_path, before):
    """Polars takes the kind of a column from its first hundred rows."""
    log = tmp_path / "log.csv"
    good = [f"{user},{item},{time}" for time in range(8, 68) for user, item in ((1, 10), (2, 11))]
    log.write_text("\n".join(["user,item,time", *good[: 2 * before], "1,12,NULL", *good[2 * before :]]))
    summary = build_sequences(log, tmp_path / "made", core=2)
    line = 2 * before + 2
    assert summary.notes == (f"1 of 121 rows of {log} are malformed and left out: lines {line}.",)
    assert (summary.kept, summary.items) == (120, 2)


def test_ids_may_be_texts_that_begin_like_numbers(tmp_path):
    log = tmp_path / "log.csv"
    rows = [f"{user},{item},{time}" for time in range(60) for user, item in ((1, 10), (2, 11))]
    log.write_text("\n".join(["user,item,time", *rows, "1,B0,98", "2,B0,99", "1,,3"]))
    summary = build_sequences(log, tmp_path / "made", core=2)
    assert summary.notes == (f"1 of 123 rows of {log} are malformed and left out: lines 124.",)
    assert (summary.kept, summary.items) == (122, 3)
    assert [row.split("\t")[2] for row in rows_of(tmp_path / "made", "test")] == ["B0", "B0"]


def test_ids_that_are_written_otherwise_are_others(tmp_path):
    """Read as numbers, 007 and 7 would be one item, and users 01 and 1 one user."""
    log = tmp_path / "log.csv"
    log.write_text("user,item,time\n01,007,1\n01,7,2\n01,7.0,3\n1,7,4\n1,007,5\n1,7.0,6\n")
    build_sequences(log, tmp_path / "made", core=2)
    assert rows_of(tmp_path / "made", "test") == ["01\t007 7\t7.0", "1\t7 007\t7.0"]


@pytest.mark.parametrize("date", ["{}/3/2024 10:00", "2024-03-{:02} 10:00"])
def test_times_may_be_dates(tmp_path, date):
    log = tmp_path / "log.csv"
    days = [(user, item, min(time, 31)) for user, item, time in EVENTS]
    rows = [f"{user},{item},{date.format(day)}" for user, item, day in days]
    log.write_text("\n".join(["user,item,time", *rows]))
    summary = build_sequences(log, tmp_path / "made", core=2)
    check(tmp_path / "made", summary)
    told = "Times such as '20/3/2024 10:00' are read with the day before the month."
    assert summary.notes == ((told,) if date.startswith("{") else ())


def test_times_may_be_whole_at_first_and_not_later(tmp_path):
    later = [(user + 3, item, time / 8) for user, item, time in EVENTS]
    lines = [f"{user},{item},{time}\n" for user, item, time in (*EVENTS * 20, *later)]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "".join(lines))
    summary = build_sequences(tmp_path / "log.csv", tmp_path / "made", core=1)
    assert (summary.kept, summary.notes) == (len(lines) - 1, ())  # user 6 has one interaction alone
    assert rows_of(tmp_path / "made", "test")[3:] == ["4\t10 11 12\t10", "5\t11 10\t12"]


@pytest.mark.parametrize(("item", "dtype"), [("", pl.String), ("", pl.Categorical), (np.nan, pl.Float64)])
def test_what_names_no_item_is_left_out_and_named(tmp_path, item, dtype):
    items = pl.Series("item", [item, *(("a", "b", "c") if dtype != pl.Float64 else (1.0, 2.0, 3.0))])
    pl.DataFrame({"user": [1] * 4, "item": items.cast(dtype), "time": [0, 1, 2, 3]}).write_parquet(
        tmp_path / "log.parquet"
    )
    summary = build_sequences(tmp_path / "log.parquet", tmp_path / "made", core=1)
    assert summary.kept == 3
    assert "1 of 4 rows" in summary.notes[0]


def test_categories_are_texts_and_can_have_no_spaces(tmp_path):
    items = pl.Series("item", ["a b", "c", "d"], pl.Categorical)
    pl.DataFrame({"user": [1] * 3, "item": items, "time": [1, 2, 3]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="must have items without spaces in them for --item, got 'a b'"):
        build_sequences(tmp_path / "log.parquet", tmp_path / "made", core=1)


def test_the_core_is_what_taking_out_one_by_one_leaves():
    draw = np.random.default_rng(0)
    user, item = draw.integers(0, 40, 150), draw.integers(0, 40, 150)
    left = set(range(150))
    while rare := {
        row
        for row in left
        if min(sum(user[row] == user[i] for i in left), sum(item[row] == item[i] for i in left)) < 3
    }:
        left -= rare
    assert 0 < len(left) < 150
    assert set(k_core(user, item, 3, 3).nonzero()[0].tolist()) == left


def test_users_who_are_too_short_in_any_case_do_not_keep_an_item(tmp_path):
    """User 4 has two interactions, which would do for a core of 2; without them items 8 and 9 are rare."""
    log = tmp_path / "log.csv"
    rare = [(4, 8, 1), (4, 9, 2), (1, 8, 50), (2, 9, 50)]
    log.write_text("user,item,time\n" + "".join(f"{a},{b},{c}\n" for a, b, c in (*EVENTS, *rare)))
    summary = build_sequences(log, tmp_path / "made", core=2)
    assert rows_of(tmp_path / "made", "test") == ["1\t10 11 12\t10", "2\t11 10\t12"]
    assert (summary.kept, summary.items) == (7, 3)


def test_a_data_set_that_cannot_be_written_whole_leaves_the_old_one(tmp_path):
    """Training rows of one log beside test rows of another would be trained on what is tested."""
    log, made = tmp_path / "log.csv", tmp_path / "made"
    log.write_text("user,item,time\n1,7,1\n1,8,2\n1,9,3\n")
    build_sequences(log, made, core=1)
    before = rows_of(made, "train")
    (made / "made.test.inter").unlink()
    (made / "made.test.inter").mkdir()
    log.write_text("user,item,time\n1,7,1\n1,8,2\n1,9,3\n1,6,4\n")
    with pytest.raises(OSError, match="directory"):
        build_sequences(log, made, core=1)
    assert rows_of(made, "train") == before
    assert len(list(made.iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent.csv"], "No such file: absent.csv, which must hold interactions: users, items and times."),
        (["ratings.csv", "--core", "0"], "core must be at least 1, got 0."),
        (["ratings.csv", "--core", "9"], "must have users with 9 interactions, but none are left."),
        (
            ["american.csv"],
            "but none are left: 2 of 3 rows of american.csv are malformed and left out: lines",
        ),
        (["empty.csv"], "empty.csv cannot be read as a table"),
        (["header.csv"], "header.csv must have users with 5 interactions, but none are left."),
        (["timeless.csv"], "but none are left: 1 of 1 rows of timeless.csv are malformed and left out"),
        (["damaged.parquet"], "damaged.parquet cannot be read as a table"),
        (["users.csv"], "users without tabs and line breaks in them for --user, got 'a\\tb'."),
        (["lists.parquet"], "must have names, numbers or times in column 'user', got List(Int64)."),
        (["films.csv"], "films.csv must have items without spaces in them for --item, got 'Toy Story'."),
        (["films.csv", "--item", "id", "--time", "when"], "numbers or dates such as 2024-01-31, got 'now'."),
        (["zoned.csv"], "numbers or dates such as 2024-01-31, got '2024-01-31 10:00:00 UTC'."),
    ],
)
def test_the_command_refuses_in_one_sentence_and_writes_nothing(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    Path("ratings.csv").write_text("user,item,time\n" + "".join(f"{a},{b},{c}\n" for a, b, c in EVENTS))
    Path("american.csv").write_text(
        "user,item,time\n" + "".join(f"1,{n},01/{n}/2024\n" for n in (12, 14, 15))
    )
    Path("empty.csv").write_text("")
    Path("header.csv").write_text("user,item,time\n")
    Path("timeless.csv").write_text("user,item,time\n1,7,\n")
    Path("zoned.csv").write_text("user,item,time\n1,7,2024-01-31 10:00:00 UTC\n")
    Path("damaged.parquet").write_bytes(b"nothing")
    Path("films.csv").write_text("user,item,id,time,when\n1,Toy Story,7,3,now\n")
    Path("users.csv").write_text("user,item,time\na\tb,7,3\n")
    pl.DataFrame({"user": [[1]], "item": [7], "time": [3]}).write_parquet("lists.parquet")
    found = CliRunner().invoke(build(), ["sequences", *arguments, "--out", "made"])
    assert found.exit_code == 2
    assert sentence in found.stderr
    assert found.stderr.count("\n") == 1
    assert not Path("made").exists()


def test_the_command_says_what_it_made(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("user,item,time\n" + "".join(f"{a},{b},{c}\n" for a, b, c in EVENTS))
    arguments = ["sequences", str(log), "--out", str(tmp_path / "made"), "--core", "2"]
    found = CliRunner().invoke(build(), arguments)
    assert found.stdout == f"7 of 8 interactions, of 2 users with 3 items, are in {tmp_path / 'made'}.\n"


def test_without_polars_it_says_what_to_install():
    code = "import sys; sys.modules['polars'] = None; from taufree.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code, "sequences", "log.csv", "--out", "made"],
        env={"PYTHONPATH": str(Path(taufree.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2
    assert found.stderr == 'taufree: this part of taufree needs polars: pip install "taufree[rec]"\n'
