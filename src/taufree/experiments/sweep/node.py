"""One run as a task of a Ray cluster: what happens on the machine that trains it.

The run trains in a temporary folder. Its progress goes to the driver's queue, its checkpoints to the shared
storage if there is one, and all other files that it leaves come back with its result.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taufree import __version__
from taufree.experiments.sweep.events import Event, Reporter, ending
from taufree.experiments.sweep.storage import Storage
from taufree.experiments.training.function import FunctionRun
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.files import remove
from taufree.util.machine import choose_device

Files = dict[str, bytes]
"""Files by their paths below the folder of the results."""


@dataclass(frozen=True)
class Task:
    """What a node is asked to do. Attempts are numbered: news of one that is given up are not heard."""

    run: Run
    attempt: int
    threads: int
    storage: str | None
    every: float
    version: str = __version__


def train_task(task: Task, queue: Any) -> tuple[Event, Files]:
    """Train the run as a task of Ray; ``queue`` is the actor of the driver's queue.

    Nothing waits for the queue: Ray would give the CPU of a task that waits to another one.
    """
    return train_run(task, queue.put.remote)


def train_run(task: Task, put: Callable[[Any], object]) -> tuple[Event, Files]:
    """Train the run, put news of it into a queue, and return how it ended, with its files."""
    run = task.run

    def send(news: Event | Files) -> None:
        put((task.attempt, news))

    send(Event(run, "begun"))
    with TemporaryDirectory(prefix="taufree-", ignore_cleanup_errors=True) as folder:
        out = Path(folder)
        event = ending(run, partial(_train, task, out, send))
        if event.kind == "refused":  # the driver has checked its own machine
            event = Event(run, "refused", f"node {platform.node()}: {event.value}")
        return event, _files(out)


def _train(task: Task, out: Path, send: Callable[[Event | Files], None]) -> dict[str, Any]:
    import torch
    from threadpoolctl import threadpool_limits

    from taufree.experiments.training.trainer import train

    run = task.run
    if task.version != __version__:
        raise BadInputError(f"taufree must be {task.version} as on the driver, got {__version__}.")
    choose_device(run.device, run.precision)
    torch.set_num_threads(task.threads)
    checkpoints = out / "checkpoints"
    kind = _OwnFolder if isinstance(run, FunctionRun) else _Saved
    saved = kind(task, checkpoints / run.slug, send)
    tell = Reporter(send, run)

    def watch(epoch: int, loss: float | None) -> None:
        tell.epoch(epoch, loss)
        if saved.pass_on() and (files := _files(out)):
            send(files)

    with threadpool_limits(task.threads, user_api="blas"):
        return train(run, checkpoints, every=task.every, watch=watch, note=tell.note)


class _Saved:
    """The newest checkpoint of a run, here and in the shared storage."""

    def __init__(self, task: Task, folder: Path, send: Callable[[Event | Files], None]) -> None:
        self._folder, self._slug, self._every = folder, task.run.slug, task.every
        self._storage = Storage(task.storage) if task.storage else None
        if self._storage:
            self._storage.check_shared()
            try:
                self._storage.get(self._slug, folder)
            except Exception as error:  # a damaged file can raise anything
                sentence = f"the checkpoint {self._slug} in {task.storage} cannot be read"
                send(Event(task.run, "note", f"{sentence} ({type(error).__name__}); the run starts again."))
                remove(folder)  # what was unpacked of it
        self._passed_on = self._newest()

    def pass_on(self) -> bool:
        """Put the newest checkpoint into the storage; returns whether there was a new one."""
        newest = self._newest()
        if newest is None or newest == self._passed_on:
            return False
        if self._storage:
            self._storage.put(self._slug, newest)
        self._passed_on = newest
        return True

    def _newest(self) -> Path | None:
        return next(self._folder.glob("epoch-[0-9]*"), None)  # the others are removed when it is written


class _OwnFolder(_Saved):
    """The folder of a user's own function, passed on as a whole where the function has yielded."""

    def __init__(self, task: Task, folder: Path, send: Callable[[Event | Files], None]) -> None:
        super().__init__(task, folder, send)
        self._next, self._seen = 0.0, self._look()

    def pass_on(self) -> bool:
        if self._storage is None or time.monotonic() < self._next or (found := self._look()) == self._seen:
            return False
        self._storage.put(self._slug, self._folder, root=self._folder)
        self._next, self._seen = time.monotonic() + self._every, found
        return True

    def _look(self) -> dict[Path, tuple[int, int]]:
        """The files, with when they were written and how long they are."""
        found: dict[Path, tuple[int, int]] = {}
        for path in self._folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # the function may remove files at any time
                if path.is_file():
                    found[path] = path.stat().st_mtime_ns, path.stat().st_size
        return found


def _files(out: Path) -> Files:
    """All that a run has written but checkpoints and drafts."""
    found = (file.relative_to(out) for file in sorted(out.rglob("*")) if file.is_file())
    kept = [path for path in found if path.parts[0] != "checkpoints" and not path.name.endswith(".draft")]
    files: Files = {}
    for path in kept:
        with contextlib.suppress(FileNotFoundError):  # trackers remove files of theirs at any time
            files[path.as_posix()] = (out / path).read_bytes()
    return files
