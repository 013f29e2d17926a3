"""What happens to the runs of a sweep, wherever they train: here in processes, or on a cluster."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from taufree.experiments.training import ranks
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError

# Variables that libraries read when a process starts; others ignore them.
ENVIRONMENT = {
    # Idle OpenMP threads spin, which made runs 20 times slower where another program used the cores.
    "GOMP_SPINCOUNT": "1000",
    # The process keeps freed memory: asking the kernel for it again took a third of each step.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}

SHUTDOWN_SECONDS = 10.0
"""After so many seconds processes that do not end are killed."""


@dataclass(frozen=True)
class Event:
    """What has happened to a run.

    The value is, for ``note``, a sentence about the data or the machines; for ``epoch``, the epochs done and
    the loss, if there is one; for ``done``, the result's line; for ``failed`` and ``broken``, the reason;
    for ``refused``, a sentence about wrong input; for ``begun``, nothing. A run whose machine dies is begun
    once more. After ``broken`` no other run is begun: another rank may wait for this one forever.
    """

    run: Run
    kind: Literal["begun", "note", "epoch", "done", "failed", "broken", "refused"]
    value: Any = None


class Reporter:
    """Sends the progress of a run, ten times a second at most, since epochs may be short."""

    def __init__(self, send: Callable[[Event], object], run: Run) -> None:
        self._send, self._run, self._next = send, run, 0.0

    def epoch(self, epoch: int, loss: float | None) -> None:
        now = time.monotonic()
        if now >= self._next or epoch == self._run.settings.epochs:
            self._send(Event(self._run, "epoch", (epoch, loss)))
            self._next = now + 0.1

    def note(self, sentence: str) -> None:
        self._send(Event(self._run, "note", sentence))


def ending(run: Run, training: Callable[[], dict[str, Any]]) -> Event:
    """How the training of a run ends: with its line, or with the reason why there is none."""
    try:
        return Event(run, "done", training())
    except BadInputError as error:
        return Event(run, "refused", str(error))
    except FloatingPointError as error:  # all ranks have the same loss
        return Event(run, "failed", str(error))
    except Exception as error:
        return Event(run, failed(), reason(error, run.device))


def failed() -> Literal["failed", "broken"]:
    """The kind of event of a run that was not finished: with other ranks the sweep ends."""
    return "failed" if ranks.world() == 1 else "broken"


def reason(error: Exception, device: str) -> str:
    """Why a run failed: a sentence where it is no mistake in the code, else where in the code it happened."""
    from torch import OutOfMemoryError

    # PyTorch has no class of its own for the CPU's memory.
    if isinstance(error, (MemoryError, OutOfMemoryError)) or "can't allocate memory" in str(error):
        return (
            f"the {device} has too little memory for it, try a smaller --batch-size or fewer runs at a time."
        )
    return "".join(traceback.format_exception(error))
