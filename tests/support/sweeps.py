"""Real results of a sweep, as files that a test may change."""

import json

from tests.support.paths import ROOT


def digits(**changes):
    """The lines of the sweep on digits, with other settings where they are given."""
    text = (ROOT / "benchmarks" / "results" / "digits.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line | {"settings": {**line["settings"], **changes}} for line in lines]


def write(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def read(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
