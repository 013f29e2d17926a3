"""Every link with every seed, with a progress bar, each result on the disk as soon as it is there."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from taufree import __version__, distributed
from taufree.experiments.link_names import describe
from taufree.experiments.sweep.events import Event
from taufree.experiments.sweep.here import work_here
from taufree.experiments.sweep.local import work
from taufree.experiments.sweep.results import Line, Results, comparable, line_key, sweep_key
from taufree.experiments.training import ranks
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.experiments.training.run import LINK_SOURCE, Run, check_data, share_contents
from taufree.util.errors import BadInputError

if TYPE_CHECKING:
    from taufree.experiments.sweep.cluster import Cluster

SECONDS_BETWEEN_LINES = 60.0
"""Between two lines of a run under way, where there are no bars."""


@dataclass
class Outcome:
    """What a sweep has come to.

    Attributes:
        lines: the lines of the runs asked for, and of other links and seeds with the same settings.
        done: how many of the runs asked for are in the results.
        failed: the runs that could not be finished, with the reason.
        interrupted: whether Ctrl-C ended the sweep early.
        refused: a sentence about bad input or a full disk that ended the sweep early, after some results.
    """

    lines: list[Line]
    done: int
    failed: dict[Run, str]
    interrupted: bool
    refused: str = ""


def sweep(
    runs: Sequence[Run],
    out: Path,
    *,
    jobs: int = 1,
    cluster: Cluster | None = None,
    console: Console,
    every: float = 30.0,
    fresh: bool = False,
    on_result: Callable[[Line], None] = lambda line: None,
) -> Outcome:
    """Do the runs that are not in ``out/results.jsonl`` yet; other ranks than the first only help with them.

    Args:
        runs: of any recipes and settings; workers go on from one to the next.
        out: the folder of the results and, until a run is done, of its checkpoint.
        jobs: how many runs train at the same time; they share the cores evenly. 0: one after the other in
            this process, where they are of a user's own function.
        cluster: trains the runs instead of processes here, as many at the same time as it has room for.
        console: where progress and warnings are shown.
        every: seconds between checkpoints.
        fresh: do all of them again; earlier results are set aside, and checkpoints are forgotten.
        on_result: called with each run's line as soon as it is there.
    """
    share_contents(runs)
    if ranks.rank():
        return _help(runs, out / "checkpoints", every)
    failed: dict[Run, str] = {}
    interrupted, refused = False, ""
    with Results(
        out, lambda text: console.print(text, style="yellow", markup=False, soft_wrap=True)
    ) as results:
        if fresh:
            _forget(runs, results, console)
            if cluster is not None and cluster.storage is not None:
                for run in runs:
                    cluster.storage.remove(run.slug)
        there = {line_key(line): line for line in results.read()}
        missing = [run for run in runs if run.key not in there]
        if ranks.world() > 1:
            distributed.from_first(json.dumps([run.key for run in missing]))
        unseen = ", even if the data have changed" * any(
            run.data and not run.tells_data_apart for run in runs
        )
        if there_already := len(runs) - len(missing):
            console.print(
                f"{there_already} of {len(runs)} runs are already in {results.path}; "
                f"they are not run again{unseen}.{_of_other_versions([there.get(run.key) for run in runs])}",
                markup=False,
                soft_wrap=True,
            )
        check_data(missing)
        checkpoints = out / "checkpoints"
        made: list[Line] = []
        if cluster is not None:
            events = cluster.work(missing, out, every)
        elif jobs == 0:
            events = work_here(missing, checkpoints)
        else:
            events = work(missing, checkpoints, min(jobs, len(missing) or 1), every)
        try:
            # closing() stops the workers before the lock is given back.
            with contextlib.closing(events), Display(missing, console) as display:
                for event in events:
                    if event.kind == "refused":
                        raise BadInputError(event.value)
                    if event.kind == "done":
                        made.append(event.value)
                        results.append(event.value)
                        on_result(event.value)
                        Checkpoint(checkpoints / event.run.slug).remove()
                    if event.kind in ("failed", "broken"):
                        failed[event.run] = event.value
                    display.show(event)
        except KeyboardInterrupt:
            interrupted = True
        except BadInputError as error:
            refused = str(error)
        if checkpoints.is_dir() and not any(checkpoints.iterdir()):
            shutil.rmtree(checkpoints)
        # A disk that took no line may not let the damage be repaired either, as read() does.
        lines = _comparable([*there.values(), *made] if refused else results.read(), runs)
    if refused and not lines:
        raise BadInputError(refused)
    asked = {run.key for run in runs}
    return Outcome(lines, sum(line_key(line) in asked for line in lines), failed, interrupted, refused)


def _forget(runs: Sequence[Run], results: Results, console: Console) -> None:
    """Set the results of the runs aside; the command without ``--fresh`` can go on where this one stops."""
    for run in runs:
        Checkpoint(results.path.parent / "checkpoints" / run.slug).remove()
    if count := results.replace({run.key for run in runs}):
        console.print(
            f"{count} of {len(runs)} runs were in {results.path}; they are set aside in {results.replaced} "
            "and run again.",
            markup=False,
            soft_wrap=True,
        )


def _comparable(lines: Sequence[Line], runs: Sequence[Run]) -> list[Line]:
    """The lines with the settings of any of the runs, and of a link of the user's own the runs' version."""
    keys = {sweep_key(run.recipe, run.recorded_settings) for run in runs}
    return comparable(lines, keys, {run.link: run.recorded_settings.get(LINK_SOURCE) for run in runs})


def _of_other_versions(lines: Sequence[Line | None]) -> str:
    """A sentence about the lines that another version of taufree has written, if there are any."""
    found = Counter(line["versions"].get("taufree", __version__) for line in lines if line)
    del found[__version__]
    if not found:
        return ""
    counts = ", ".join(f"{count} by {version}" for version, count in sorted(found.items()))
    return (
        f" Another version of taufree made {found.total()} of them ({counts}; this is {__version__}), whose "
        "results may differ: give --fresh to run them again."
    )


def _help(runs: Sequence[Run], checkpoints: Path, every: float) -> Outcome:
    """Another rank's part of the runs; the first rank sends which are missing."""
    missing = set(json.loads(distributed.from_first()))
    events = work([run for run in runs if run.key in missing], checkpoints, 1, every)
    outcome = Outcome([], 0, {}, False)
    try:
        with contextlib.closing(events):
            for event in events:
                if event.kind == "refused":
                    raise BadInputError(event.value)
                if event.kind == "broken":
                    outcome.failed[event.run] = event.value
                    print(f"rank {ranks.rank()} failed: {event.value}", file=sys.stderr)
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


class Display:
    """One bar for the sweep, one line for each run under way, and one that stays for each run done.

    In a file or a pipe there are no bars: lines say now and then where a run is.
    """

    def __init__(self, runs: Sequence[Run], console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._all = self._progress.add_task(
            "all runs, epochs", total=sum(run.settings.epochs for run in runs)
        )
        self._tasks: dict[Run, TaskID] = {}
        self._epochs: dict[Run, int] = {}
        self._noted: set[str] = set()
        self._bars = console.is_interactive and bool(runs)
        self._next_line: dict[Run, float] = {}

    def __enter__(self) -> Display:
        if self._bars:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._progress.stop()

    def show(self, event: Event) -> None:
        """Bring the display up to date."""
        run, name = event.run, f"{describe(event.run.link)}, seed {event.run.seed}"
        if event.kind == "begun":
            if run not in self._tasks:  # a run that has lost its machine is begun again
                self._tasks[run] = self._progress.add_task(name, total=run.settings.epochs)
        elif event.kind == "note":
            if event.value not in self._noted:  # every run reads the data
                self._noted.add(event.value)
                self._progress.console.print(event.value, style="yellow", markup=False, soft_wrap=True)
        elif event.kind == "epoch":
            epoch, loss = event.value
            known = epoch <= run.settings.epochs  # unless a function of the user's own does not say
            total = run.settings.epochs if known else None
            self._advance(run, min(epoch, run.settings.epochs))
            shown = [] if loss is None else [f"loss {loss:.3f}"]
            description = ": ".join([name, *shown])
            self._progress.update(self._tasks[run], completed=epoch, total=total, description=description)
            if not self._bars:
                where = f"{name}: epoch {epoch}" + (f" of {total}" if known else "")
                self._say_where(run, ", ".join([where, *shown]))
        else:
            self._advance(run, run.settings.epochs)
            self._progress.remove_task(self._tasks.pop(run))
            if event.kind == "done":
                figures = ", ".join(
                    f"{metric} {value:.2f}" for metric, value in event.value["metrics"].items()
                )
                self._progress.console.print(
                    f"{name}: {figures} ({event.value['seconds']:.1f} s)", highlight=False, soft_wrap=True
                )
            else:
                self._progress.console.print(
                    f"{name} failed: {event.value}", style="red", markup=False, soft_wrap=True
                )

    def _say_where(self, run: Run, line: str) -> None:
        """Print the line unless the run's last one, or its beginning, was a moment ago."""
        now = time.monotonic()
        if now >= self._next_line.setdefault(run, now + SECONDS_BETWEEN_LINES):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
            self._next_line[run] = now + SECONDS_BETWEEN_LINES

    def _advance(self, run: Run, epoch: int) -> None:
        self._progress.advance(self._all, epoch - self._epochs.get(run, 0))
        self._epochs[run] = epoch
