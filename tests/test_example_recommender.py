"""The two-tower example runs as it stands, and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import taufree

ROOT = Path(__file__).parent.parent


def test_every_link_is_far_better_than_chance():
    found = subprocess.run(
        [sys.executable, "examples/recommender.py", "--users", "600", "--epochs", "6"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(taufree.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    rates = re.findall(r"hit rate @10: ([\d.]+) \(by chance ([\d.]+)\)", found.stdout)
    assert len(rates) == 3
    assert all(float(rate) > 3 * float(chance) for rate, chance in rates)
