"""``taufree demo``: both purposes from one command."""

import json

import pytest

from taufree.cli import demo
from tests.support.command import invoke


@pytest.mark.slow
def test_both_purposes_are_trained_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LINKS", ("free", "fitted", "0.1"))
    found = invoke("demo", "--preset", "quick", "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert {(line["recipe"], line["link"], line["seed"]) for line in lines} == {
        (recipe, link, seed)
        for recipe in ("digits", "halves")
        for link in ("free", "fitted", "0.1")
        for seed in (0, 1)
    }
    assert found.stdout.index("Representation. ") < found.stdout.index("Matching. ")
    assert found.stdout.count("Too short to compare") == 2
    assert f"Both on one page: {tmp_path / 'out' / 'report.html'}" in found.stdout
    again = invoke("demo", "--preset", "quick", "--out", tmp_path / "out")
    assert "12 of 12 runs are already in" in again.stderr
    assert again.stdout == found.stdout


def test_another_preset_is_refused_before_anything_is_written(tmp_path):
    found = invoke("demo", "--preset", "slow", "--out", tmp_path / "out")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "taufree: preset must be one of full, quick, got 'slow'.\n"
    assert not (tmp_path / "out").exists()
