"""The examples, run as a reader would, for a short time: training must help."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("simclr", ["--epochs", "2"]),
        ("graph", ["--epochs", "60"]),
        ("graph", ["--epochs", "60", "--tau", "0.5"]),
    ],
)
def test_training_helps(name, options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    before, after = (float(x) for x in re.findall(r"(?:before|after): ([\d.]+) %", capsys.readouterr().out))
    assert after > before
