"""Runs of a user's own function one after the other in this process, as notebooks and closures need it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from taufree.experiments.sweep.events import Event, reason
from taufree.experiments.training.function import FunctionRun
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError


def work_here(runs: Sequence[Run], checkpoints: Path) -> Generator[Event, None, None]:
    """Train all runs and yield what happens, as :func:`taufree.experiments.sweep.local.work` does."""
    for run in runs:
        assert isinstance(run, FunctionRun)
        yield Event(run, "begun")
        training = run.train(checkpoints / run.slug)
        while True:
            try:
                yield Event(run, "epoch", next(training))
            except StopIteration as end:
                yield Event(run, "done", end.value)
            except BadInputError as error:
                yield Event(run, "refused", str(error))
            except FloatingPointError as error:
                yield Event(run, "failed", str(error))
            except Exception as error:
                yield Event(run, "failed", reason(error, run.device))
            else:
                continue
            break
