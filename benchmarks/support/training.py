"""Training the runs of a benchmark that its results do not have yet."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.support.lines import read
from taufree.experiments.acceleration import acceleration_of
from taufree.experiments.link_names import describe
from taufree.experiments.recipe import Recipe
from taufree.experiments.sweep.driver import sweep
from taufree.experiments.sweep.results import line_key
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.json_lines import append_json
from taufree.util.machine import choose_device


def device_and_precision(chosen: argparse.Namespace, recipe: type[Recipe]) -> tuple[str, str]:
    """What ``--device`` and ``--precision`` (if there is such an option) stand for."""
    precision = getattr(chosen, "precision", None)
    device = choose_device(chosen.device, precision or "32-true")
    return device, precision or (acceleration_of(recipe).precision if device == "cuda" else "32-true")


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
    """Do the runs that are not in the results, and append the line of each when it ends.

    Args:
        folder: where the runs keep their checkpoints; an interrupted one goes on from there.
        small: what is kept of a line; recipe, link, seed and settings must still distinguish the runs. The
            content of data and models need not: all lines of a benchmark are of the same.
        failed: called with each run that could not be finished, and the reason.
    """
    done = {_key(line) for line in read(results) if "seed" in line}

    def keep(line: dict) -> None:
        line = small(line)
        if _key(line) not in done:
            done.add(_key(line))
            append_json(results, line)

    def key(run: Run) -> str:
        about = {"recipe": run.recipe, "link": run.link, "seed": run.seed, "settings": run.recorded_settings}
        return _key(small({**about, "curves": {}}))

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
    if outcome.refused:
        raise BadInputError(outcome.refused)


def _key(line: dict) -> str:
    settings = {name: value for name, value in line["settings"].items() if name != "content"}
    return line_key({**line, "settings": settings})


def train_missing(runs: Sequence[Run], chosen: argparse.Namespace, small: Callable[[dict], dict]) -> None:
    """:func:`complete` with the options given, until ``--seconds`` are over."""
    try:
        with stopping(chosen.seconds):
            complete(runs, chosen.results, chosen.runs, jobs=chosen.jobs, small=small)
    except KeyboardInterrupt:
        print("Stopped; the same command goes on.")
