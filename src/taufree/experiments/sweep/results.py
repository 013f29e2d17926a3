"""The results on disk: one run is one line of JSON in ``results.jsonl``.

One process at a time writes to a folder (it holds the lock), one write per line, flushed to the disk. A line
that a crash left damaged is named and moved to ``results.damaged.jsonl``, so that its run is done again and
nothing is lost in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from taufree.experiments.link_names import temperature_of
from taufree.experiments.training.run import LINK_SOURCE, run_key
from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write, check_file, is_there, writing_to
from taufree.util.json_lines import append_json, append_lines, parse_json, read_lines

KEYS = ("recipe", "link", "seed", "settings", "metrics", "seconds", "date", "versions", "hardware", "curves")
OBJECTS = ("settings", "metrics", "versions", "hardware", "curves")
Line = dict[str, Any]


class Results:
    """The results in the folder ``out``; use as a context manager to hold the folder's lock.

    Args:
        out: the folder, made if it is not there.
        warn: called with a sentence for each damaged line.
    """

    def __init__(self, out: Path, warn: Callable[[str], None]) -> None:
        self.path = out / "results.jsonl"
        self.damaged = out / "results.damaged.jsonl"
        self.replaced = out / "results.replaced.jsonl"
        self._warn = warn
        self._lock = FileLock(out / ".lock")

    def __enter__(self) -> Results:
        with writing_to(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise BadInputError(
                    f"another run is writing to {self.path.parent}, wait for it or choose another --out."
                ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def read(self) -> list[Line]:
        """All whole lines, the newest one of each run; damaged ones are named and set aside."""
        broken: list[bytes] = []

        def set_aside(number: int, raw: bytes, fault: str) -> None:
            broken.append(raw)
            self._warn(f"{self.path}:{number}: {fault}; it is set aside in {self.damaged}.")

        with writing_to(self.path.parent):
            found = read_lines(self.path, set_aside, lambda raw: (raw, parse(raw)))
            if broken:
                append_lines(self.damaged, broken)
                with atomic_write(self.path, sync=True) as draft:
                    append_lines(draft, [raw for raw, _ in found])
        return list({line_key(line): line for _, line in found}.values())

    def append(self, line: Line) -> None:
        """Add one run; when this returns, the line is on the disk."""
        if set(line) != set(KEYS):
            raise ValueError(f"line must have the keys {', '.join(KEYS)}, got {', '.join(line)}.")
        with writing_to(self.path.parent):
            append_json(self.path, line)

    def replace(self, keys: Collection[str]) -> int:
        """Move the lines of these runs to ``results.replaced.jsonl``; returns how many there were."""
        lines = self.read()
        old = [line for line in lines if line_key(line) in keys]
        if old:
            with writing_to(self.path.parent):
                append_lines(self.replaced, map(_written, old))
                with atomic_write(self.path, sync=True) as draft:
                    append_lines(draft, [_written(line) for line in lines if line_key(line) not in keys])
        return len(old)


def results_file(out: Path) -> Path:
    """The file of the results in the folder ``out``, or ``out`` itself; ValueError if it is not there."""
    path = out / "results.jsonl" if is_there(out) and out.is_dir() else out
    check_file(path, "results of taufree run")
    return path


def read_results(out: Path, warn: Callable[[str], None]) -> list[Line]:
    """The newest line of each run in a folder, or in a file of such lines, of which nothing is changed.

    No lock is needed: a sweep may be under way there.

    Args:
        warn: called with a sentence for each line that is left out because it is damaged.
    """
    path = results_file(out)

    def leave_out(number: int, raw: bytes, fault: str) -> None:
        warn(f"{path}:{number}: {fault}; it is left out.")

    try:
        found = read_lines(path, leave_out, parse)
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}.") from error
    if not found:
        raise BadInputError(f"{path} has no results yet.")
    return list({line_key(line): line for line in found}.values())


def sweep_key(recipe: str, settings: Mapping[str, Any]) -> str:
    """What lines have in common that can be compared: recipe and settings, but not the code of a link."""
    return run_key(recipe, "", 0, {**settings, LINK_SOURCE: None})


def comparable(
    lines: Sequence[Line], keys: Collection[str], sources: Mapping[str, str | None] | None = None
) -> list[Line]:
    """The lines with one of these sweep keys, of any link and seed.

    Of a link of the user's own, one version: that of ``sources`` or, where they are without it, the newest.
    """
    found = [line for line in lines if sweep_key(line["recipe"], line["settings"]) in keys]
    version = {line["link"]: line["settings"].get(LINK_SOURCE) for line in found} | dict(sources or {})
    return [line for line in found if line["settings"].get(LINK_SOURCE) == version[line["link"]]]


def line_key(line: Line) -> str:
    """What run a line is of; equal to :attr:`taufree.experiments.training.run.Run.key`."""
    return run_key(line["recipe"], line["link"], line["seed"], line["settings"])


def parse(raw: bytes) -> Line:
    """A line of the file, or a ValueError that says what is wrong with it."""
    line = parse_json(raw)
    if not isinstance(line, dict) or not set(line) >= set(KEYS):
        raise ValueError(f"this line has not all the keys {', '.join(KEYS)}")
    if not all(isinstance(line[name], dict) for name in OBJECTS):
        raise ValueError(f"the {', '.join(OBJECTS)} of this line are not all objects")
    if not isinstance(line["recipe"], str) or not isinstance(line["seed"], int) or not _is_link(line["link"]):
        raise ValueError("the recipe, link and seed of this line are not a name, a link and an integer")
    curves = (number for curve in line["curves"].values() for number in _listed(curve))
    numbers = (line["seconds"], *line["metrics"].values(), *curves)
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("the seconds, metrics and curves of this line are not all numbers")
    return line


def _written(line: Line) -> bytes:
    return json.dumps(line, allow_nan=False).encode()


def _is_link(name: Any) -> bool:
    try:
        return isinstance(name, str) and (temperature_of(name) or 1) > 0
    except ValueError:
        return False


def _listed(curve: Any) -> list[Any]:
    return curve if isinstance(curve, list) else [curve]
