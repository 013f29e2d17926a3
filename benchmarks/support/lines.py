"""The results files: a line of JSON for each run, written as soon as the run is done; and Markdown tables."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from taufree.experiments.link_names import describe
from taufree.experiments.sweep.driver import sweep
from taufree.experiments.sweep.results import line_key
from taufree.experiments.training.run import Run
from taufree.util.json_lines import append_json, read_lines

EVERY = 20


def read(path: Path) -> list[dict]:
    """The lines of a file, none if it is not there; without what a process left that was killed meanwhile."""

    def warn(number: int, raw: bytes, fault: str) -> None:
        print(f"{path}:{number}: {fault} and left out.", file=sys.stderr)

    return read_lines(path, warn)


def thinned(line: dict, whole: Sequence[str] = ()) -> dict:
    """The line with the last of every ``EVERY`` epochs, to five digits; curves named ``whole`` stay."""
    curves = {
        name: [float(f"{value:.5g}") for value in curve[EVERY - 1 :: EVERY]]
        if isinstance(curve, list) and not name.endswith("histogram") and name not in whole
        else curve
        for name, curve in line["curves"].items()
    }
    return {**line, "curves": curves}


@contextmanager
def stopping(seconds: int) -> Iterator[None]:
    """After so many seconds do as Ctrl-C would; 0 is never."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def say_failed(run: Run, reason: str) -> None:
    print(f"{run.recipe}, {describe(run.link)}, seed {run.seed} failed: {reason}")


def complete(
    runs: Sequence[Run],
    results: Path,
    folder: Path,
    *,
    jobs: int,
    small: Callable[[dict], dict],
    failed: Callable[[Run, str], None] = say_failed,
) -> None:
    """Do the runs that the results lack, all by the same workers, and append the line of each when it ends.

    Args:
        folder: where a run that was broken off goes on.
        small: what is kept of a line; the recipe, link, seed and settings of two runs must stay apart.
        failed: called with each run that could not be finished, and the reason.
    """
    done = {line_key(line) for line in read(results) if "seed" in line}

    def keep(line: dict) -> None:
        line = small(line)
        if line_key(line) not in done:
            done.add(line_key(line))
            append_json(results, line)

    def key(run: Run) -> str:
        about = {"recipe": run.recipe, "link": run.link, "seed": run.seed, "settings": run.recorded_settings}
        return line_key(small({**about, "curves": {}}))

    missing = [run for run in runs if key(run) not in done]
    if not missing:
        return
    outcome = sweep(missing, folder, jobs=jobs, console=Console(stderr=True), on_result=keep)
    for line in outcome.lines:  # also what was in the folder already
        keep(line)
    for run, reason in outcome.failed.items():
        failed(run, reason)
    if outcome.interrupted:
        raise KeyboardInterrupt


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")


def head(*cells: str) -> None:
    row(*cells)
    print("|---" * len(cells) + "|")
