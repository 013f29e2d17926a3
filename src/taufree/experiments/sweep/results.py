"""The results on disk: one run is one line of JSON in ``results.jsonl``.

One process at a time writes to a folder (it holds the lock), one write per line, flushed to the disk. A line
that a crash left damaged is named and moved to ``results.damaged.jsonl``, so that its run is done again and
nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from taufree.experiments.link_names import temperature_of
from taufree.experiments.training.run import run_key
from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write
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
        self._warn = warn
        self._lock = FileLock(out / ".lock")

    def __enter__(self) -> Results:
        with self._writing():
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

        with self._writing():
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
        with self._writing():
            append_json(self.path, line)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadInputError(
                f"--out {self.path.parent} cannot be written to: {error.strerror}."
            ) from error


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


def _is_link(name: Any) -> bool:
    try:
        return isinstance(name, str) and (temperature_of(name) or 1) > 0
    except ValueError:
        return False


def _listed(curve: Any) -> list[Any]:
    return curve if isinstance(curve, list) else [curve]
