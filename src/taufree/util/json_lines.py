"""Results as lines of JSON: each is written when its run is done, and a crash can damage the last one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def parse_json(raw: bytes) -> Any:
    """The value of one line, or a ValueError that says what is wrong with it."""
    try:
        return json.loads(raw, parse_constant=_refuse)
    except ValueError:
        raise ValueError("this line is not whole JSON") from None


def read_lines(
    path: Path, damaged: Callable[[int, bytes, str], None], parse: Callable[[bytes], T] = parse_json
) -> list[T]:
    """What ``parse`` makes of each line of a file; an empty list where there is no file.

    Args:
        damaged: called with the number, the bytes and the fault of each line that ``parse`` refuses.
        parse: called with a line; raises a ValueError that says what is wrong with it.
    """
    found = []
    for number, raw in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        if not raw.strip():
            continue
        try:
            found.append(parse(raw))
        except ValueError as error:
            damaged(number, raw, str(error))
    return found


def append_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Add lines to a file, made if need be; when this returns, they are on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":  # a crash has cut the last line's end off; the new one must not join it
                file.write(b"\n")
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


def append_json(path: Path, line: object) -> None:
    """Add one line; a number that JSON has no word for (NaN, infinity) is a ValueError."""
    append_lines(path, [json.dumps(line, allow_nan=False).encode()])


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")  # and append_json never writes it
