"""Raw results: a line of JSON for each run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taufree.util.json_lines import read_lines

KEPT_EVERY = 20
"""Epochs from one kept point of a curve to the next."""


def read(path: Path) -> list[dict]:
    """The lines of a file, none if there is no such file; damaged ones are named on stderr and left out."""

    def warn(number: int, raw: bytes, fault: str) -> None:
        print(f"{path}:{number}: {fault} and left out.", file=sys.stderr)

    return read_lines(path, warn)


def thinned(line: dict, whole: Sequence[str] = ()) -> dict:
    """The line with every ``KEPT_EVERY``-th epoch of its curves, to five digits; those in ``whole`` stay."""
    curves = {
        name: [float(f"{value:.5g}") for value in curve[KEPT_EVERY - 1 :: KEPT_EVERY]]
        if isinstance(curve, list) and not name.endswith("histogram") and name not in whole
        else curve
        for name, curve in line["curves"].items()
    }
    return {**line, "curves": curves}
