"""The results on disk: one run is one line of JSON in ``results.jsonl``.

One process at a time writes to a folder (it holds the lock), one write per line, flushed to the disk. A line
that a crash left damaged is named and moved to ``results.damaged.jsonl``, so that its run is done again and
nothing is lost in silence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from taufree.experiments.link_names import temperature_of
from taufree.experiments.training.run import run_key
from taufree.util.errors import BadInputError

KEYS = ("recipe", "link", "seed", "settings", "metrics", "seconds", "date", "versions", "hardware", "curves")
OBJECTS = ("settings", "metrics", "versions", "hardware", "curves")
Line = dict[str, Any]


class Results:
    """The results in the folder ``out``; use as a context manager to hold the folder's lock.

    Args:
        out: the folder, made if it is not there.
        warn: is told of each damaged line, in one sentence.
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
        if not self.path.exists():
            return []
        with self._writing():
            return self._repaired()

    def _repaired(self) -> list[Line]:
        good: dict[str, Line] = {}
        kept: list[bytes] = []
        broken: list[bytes] = []
        for number, raw in enumerate(self.path.read_bytes().splitlines(), start=1):
            if not raw.strip():
                continue
            try:
                line = parse(raw)
            except ValueError as error:
                broken.append(raw)
                self._warn(f"{self.path}:{number}: {error}; it is set aside in {self.damaged}.")
            else:
                kept.append(raw)
                good[line_key(line)] = line
        if broken:
            _append(self.damaged, broken)
            draft = self.path.with_suffix(".draft")
            draft.unlink(missing_ok=True)
            _append(draft, kept)
            os.replace(draft, self.path)
        return list(good.values())

    def append(self, line: Line) -> None:
        """Add one run; when this returns, the line is on the disk."""
        if set(line) != set(KEYS):
            raise ValueError(f"line must have the keys {', '.join(KEYS)}, got {', '.join(line)}.")
        with self._writing():
            _append(self.path, [json.dumps(line, allow_nan=False).encode()])

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
    try:
        line = json.loads(raw, parse_constant=_refuse)
    except ValueError:
        raise ValueError("this line is not whole JSON") from None
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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")  # and append never writes it


def _listed(curve: Any) -> list[Any]:
    return curve if isinstance(curve, list) else [curve]


def _append(path: Path, lines: list[bytes]) -> None:
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            # A crash may have cut the last line's end off; the new line must not join it.
            lines = lines if file.read() == b"\n" else [b"", *lines]
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
