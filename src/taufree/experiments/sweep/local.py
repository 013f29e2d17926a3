"""Runs in processes of their own, some at a time.

Each worker is a spawned process that trains one run after the other and reports its epochs to the parent
through a pipe. A run that fails, or whose process dies, does not affect the others. Workers end when their
parent does, even when that is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from taufree.experiments.training import ranks
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.machine import usable_cores

# Variables that libraries read when a process starts; others ignore them.
_ENVIRONMENT = {
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

    The value is, for ``note``, a sentence about the data; for ``epoch``, the epochs done and the loss; for
    ``done``, the result's line; for ``failed`` and ``broken``, the reason; for ``refused``, a sentence about
    wrong input; for ``begun``, nothing. After ``broken`` no other run is begun: another rank may wait for
    this one forever.
    """

    run: Run
    kind: Literal["begun", "note", "epoch", "done", "failed", "broken", "refused"]
    value: Any = None


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    run: Run | None = None

    def dismiss(self) -> None:
        """Ask an idle process to end, which clears up what compilers have left; a busy one is stopped."""
        if self.run is None:
            with contextlib.suppress(OSError):
                self.pipe.send(None)
        else:
            self.process.terminate()


def work(runs: Sequence[Run], checkpoints: Path, jobs: int, every: float) -> Generator[Event, None, None]:
    """Train all runs, ``jobs`` at a time, and yield what happens; closing the iterator stops the workers."""
    waiting = list(reversed(runs))
    threads = max(1, usable_cores() // (jobs * ranks.here()))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.run for worker in workers):
            while waiting and len(workers) < jobs:
                workers.append(_start(checkpoints, threads, every))
            for worker in workers:
                if worker.run is None and waiting:
                    worker.run = waiting.pop()
                    with contextlib.suppress(OSError):  # of a worker that has ended; recv raises it again
                        worker.pipe.send(worker.run)
                    yield Event(worker.run, "begun")
            for pipe in wait([worker.pipe for worker in workers if worker.run]):
                worker = next(one for one in workers if one.pipe is pipe)
                assert worker.run is not None
                try:
                    event = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    workers.remove(worker)
                    code = worker.process.exitcode
                    event = Event(worker.run, _failed(), f"its process ended with exit code {code}")
                if event.kind not in ("epoch", "note"):
                    worker.run = None
                if event.kind == "broken":
                    waiting.clear()
                yield event
    finally:
        for worker in workers:
            worker.dismiss()
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()


def _start(checkpoints: Path, threads: int, every: float) -> _Worker:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Spawned, not forked: a forked process cannot use CUDA, nor threads that PyTorch has started.
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, checkpoints, threads, every), daemon=True)
    with _undisturbed():
        process.start()
    theirs.close()
    return _Worker(process, mine)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Block Ctrl-C; a process started meanwhile never gets it, not even while it imports its modules."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, checkpoints: Path, threads: int, every: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()
    import torch
    from threadpoolctl import threadpool_limits

    from taufree.experiments.training.trainer import train

    torch.set_num_threads(threads)
    with threadpool_limits(threads, user_api="blas"):
        while True:
            run: Run | None = pipe.recv()
            if run is None:
                return
            try:
                reporter = _Reporter(pipe, run)
                line = train(run, checkpoints, every=every, watch=reporter, note=reporter.note)
            except BadInputError as error:
                pipe.send(Event(run, "refused", str(error)))
            except FloatingPointError as error:  # all ranks have the same loss
                pipe.send(Event(run, "failed", str(error)))
            except Exception as error:
                pipe.send(Event(run, _failed(), reason(error, run.device)))
            else:
                pipe.send(Event(run, "done", line))


def _failed() -> Literal["failed", "broken"]:
    return "failed" if ranks.world() == 1 else "broken"


def reason(error: Exception, device: str) -> str:
    """Why a run failed: a sentence where it is no mistake in the code, else where in the code it happened."""
    from torch import OutOfMemoryError

    # PyTorch has no class of its own for the CPU's memory.
    if isinstance(error, (MemoryError, OutOfMemoryError)) or "can't allocate memory" in str(error):
        return f"the {device} has too little memory for it, try a smaller --batch-size or fewer --jobs."
    return "".join(traceback.format_exception(error))


class _Reporter:
    """Sends the parent the progress of a run, ten times a second at most, since epochs may be short."""

    def __init__(self, pipe: Connection, run: Run) -> None:
        self._pipe, self._run, self._next = pipe, run, 0.0

    def __call__(self, epoch: int, loss: float) -> None:
        now = time.monotonic()
        if now >= self._next or epoch == self._run.settings.epochs:
            self._pipe.send(Event(self._run, "epoch", (epoch, loss)))
            self._next = now + 0.1

    def note(self, sentence: str) -> None:
        self._pipe.send(Event(self._run, "note", sentence))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
