"""The results files: a line of JSON for each run."""

from __future__ import annotations

import json
from pathlib import Path

EVERY = 20


def read(path: Path) -> list[dict]:
    """The lines of a file, none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def thinned(line: dict) -> dict:
    """The line with the last of every ``EVERY`` epochs, to five digits."""
    curves = {
        name: [float(f"{value:.5g}") for value in curve[EVERY - 1 :: EVERY]]
        if isinstance(curve, list) and not name.endswith("histogram")
        else curve
        for name, curve in line["curves"].items()
    }
    return {**line, "curves": curves}
