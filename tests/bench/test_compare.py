"""`taufree bench` end to end, at tiny sizes."""

import json

import pytest
import torch
from typer.testing import CliRunner

from taufree.bench import methods
from taufree.bench.compare import bench, numbers, remarks, table_row
from taufree.bench.methods import Method
from taufree.cli import build

cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the command would measure the GPU")


def broken(loss):
    raise RuntimeError("needs [another] card")


@pytest.fixture
def two_more(monkeypatch):
    """A peer that fails and one that is not installed."""
    more = [
        Method("broken", "tau", broken),
        Method("absent", "tau", broken, package="absent-peer", module="absent_peer"),
    ]
    monkeypatch.setattr(methods, "PEERS", [*methods.PEERS[:2], *more])


def test_rows_progress_and_what_is_missing(two_more):
    seen = []
    found = bench(
        [32, 48], [8], "float32", "nt-xent", "cpu", lambda *progress: seen.append(progress), ["fitted"]
    )
    names = ["taufree blockwise, fitted", "taufree reference, free"]
    names += ["dense eager, free", "dense eager, tau", "broken"]
    assert [(row["method"], row["n"]) for row in found["rows"]] == [(m, n) for n in (32, 48) for m in names]
    assert seen == [(done, 10) for done in range(11)]
    assert all(row["agrees"] for row in found["rows"] if row["method"] != "broken")
    assert found["not_installed"] == ["absent-peer"]
    assert table_row(found["rows"][4])["note"] == "RuntimeError: needs [another] card"
    floor, missing = remarks(found)
    assert "16 N^2 D" in floor
    assert missing == "Not installed: absent-peer. To add them: pip install absent-peer"


def test_a_method_that_is_off_is_marked():
    off = {"n": 4, "d": 2, "method": "x", "ms": 123.4, "share_of_floor": 0.256, "extra_mib": 9.6}
    off |= {"agrees": False, "loss_error": 0.3, "gradient_error": 1.0}
    assert list(table_row(off).values()) == [
        "4 x 2",
        "x",
        "123",
        "26%",
        "10",
        "off: loss 3e-01, gradient 1e+00",
    ]


def test_rows_that_do_not_fit_leave_the_other_sizes(two_more):
    found = bench([32, 10**13], [8], "float32", "symmetric", "cpu")
    assert ["problem" in row for row in found["rows"]] == [False] * 5 + [True] * 7
    assert {table_row(row)["note"] for row in found["rows"][6:]} == {"out of memory"}


def test_bfloat16():
    found = bench([64], [16], "bfloat16", "symmetric", "cpu")
    assert found["dtype"] == "bfloat16"
    assert {row["method"] for row in found["rows"] if row.get("agrees")} >= {
        "taufree blockwise, free",
        "open_clip, tau",
    }


@cpu_only
def test_the_command(tmp_path, two_more):
    out = tmp_path / "new" / "bench.json"
    arguments = ["bench", "--n", "32,48", "--d", "8", "--links", "fitted, 0.07", "--out", str(out)]
    found = CliRunner().invoke(build(), arguments, env={"COLUMNS": "120"})
    assert found.exit_code == 0, found.output
    result = json.loads(out.read_text())
    assert [row["n"] for row in result["rows"]] == [32] * 6 + [48] * 6
    assert result["hardware"]["device"] == "cpu"
    assert result["matmul_tflops"] > 0
    lines = found.stdout.splitlines()
    assert "symmetric, float32" in lines[0]
    table = [line for line in lines if "48 x 8" in line]
    ours = ("taufree blockwise, fitted", "taufree blockwise, tau", "taufree reference, free")
    names = (*ours, "dense eager, free", "dense eager, tau", "broken")
    assert all(name in line for name, line in zip(names, table, strict=True))
    assert "RuntimeError: needs [another] card" in table[-1]
    assert "pip install absent-peer" in found.stdout
    assert lines[-1] == f"Results: {out}"


@cpu_only
@pytest.mark.parametrize("text", ["", "warm", "-1", "free,,0.1"])
def test_what_is_no_link_is_refused(text, tmp_path):
    found = CliRunner().invoke(build(), ["bench", "--links", text, "--out", str(tmp_path / "bench.json")])
    assert found.exit_code == 2
    assert "link must be" in found.output or "must be a positive number" in found.output


@pytest.mark.parametrize("text", ["", "1", "a", "16,,32", "-4", "2.5"])
def test_sizes_must_be_integers_that_are_large_enough(text):
    with pytest.raises(ValueError, match="n must be integers of at least 2 with commas between them, got"):
        numbers("n", text, 2)
