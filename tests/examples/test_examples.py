"""The examples, run as a reader would, for a short time."""

import re
import runpy
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.photographs import write_folder

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"


@pytest.fixture
def scores(monkeypatch, capsys):
    """Runs an example with options; the percentages before and after the training that it prints."""

    def run(name, *options):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return [float(x) for x in re.findall(r"(?:before|after): ([\d.]+) %", capsys.readouterr().out)]

    return run


@pytest.mark.parametrize(
    ("name", "options"),
    [("simclr", ["--epochs", 2]), ("graph", ["--epochs", 60]), ("graph", ["--epochs", 60, "--tau", 0.5])],
)
def test_training_helps(scores, name, options):
    before, after = scores(name, *options)
    assert after > before


def test_every_recommender_is_far_better_than_chance(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["recommender.py", "--users", "600", "--epochs", "6"])
    runpy.run_path(str(EXAMPLES / "recommender.py"), run_name="__main__")
    rates = re.findall(r"hit rate @10: ([\d.]+) \(by chance ([\d.]+)\)", capsys.readouterr().out)
    assert len(rates) == 3
    assert all(float(rate) > 3 * float(chance) for rate, chance in rates)


def test_simclr_reads_folders_of_photographs(scores, tmp_path):
    write_folder(tmp_path / "train", 12)
    write_folder(tmp_path / "val", 4)
    found = scores("simclr", "--data", tmp_path, "--size", 32, "--batch-size", 8, "--epochs", 1)
    assert all(0 <= share <= 100 for share in found)
    assert len(found) == 2
