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
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from taufree.experiments.sweep.events import ENVIRONMENT, SHUTDOWN_SECONDS, Event, Reporter, ending, failed
from taufree.experiments.training import ranks
from taufree.experiments.training.run import Run
from taufree.util.machine import usable_cores


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
                    event = Event(worker.run, failed(), f"its process ended with exit code {code}")
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
    for name, value in ENVIRONMENT.items():
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
            tell = Reporter(pipe.send, run)
            training = partial(train, run, checkpoints, every=every, watch=tell.epoch, note=tell.note)
            pipe.send(ending(run, training))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
