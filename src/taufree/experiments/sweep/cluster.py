"""Runs as tasks of a Ray cluster, as many at a time as it has room for.

The driver, which is this process, alone decides what is run again: a run whose node or process dies is begun
once more, from its checkpoint where the storage is shared. Ray ends the tasks when the driver ends, even when
that is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taufree import __version__
from taufree.experiments.link_names import describe
from taufree.experiments.sweep.events import ENVIRONMENT, SHUTDOWN_SECONDS, Event
from taufree.experiments.sweep.node import Files, Task, train_task
from taufree.experiments.sweep.storage import Storage
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write

PASSED_ON = ("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI")
"""Variables of the driver that the nodes get too; no keys, since Ray's dashboard shows them."""
CONNECT_SECONDS = 10.0
"""What is not there after so many seconds is not reached."""
MAX_DEATHS = 3
"""A run that loses its node or process so many times in a row, without getting further, has failed."""
MAX_SUBMITTED = 500
"""Tasks that Ray knows of at a time; each step of the loop looks at all of them."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to.

    Attributes:
        address: as the user gave it.
        cpus: CPUs of a run, and its threads.
        gpus: the share of a GPU that a run has.
        storage: where checkpoints are shared; None: they are nowhere but on the node of the run.
    """

    address: str
    cpus: int = 1
    gpus: float = 0.0
    storage: Storage | None = None

    def work(self, runs: Sequence[Run], out: Path, every: float) -> Generator[Event, None, None]:
        """Train all runs and yield what happens; closing the iterator cancels what is under way.

        Args:
            out: the folder where the files of the runs go, as far as they are no checkpoints.
        """
        import ray

        try:
            with contextlib.closing(_Tasks(self, out, every).work(runs)) as events:
                yield from events
        except (ray.exceptions.RaySystemError, ray.exceptions.RayActorError, ConnectionError) as error:
            raise BadInputError(f"the Ray cluster {self.address} is gone: {_sentence(error)}") from error
        finally:
            ray.shutdown()

    def lacking(self) -> str:
        """A sentence if no node could ever run a task, as the cluster is now; it may grow."""
        import ray

        for node in ray.nodes():
            has = node["Resources"]
            if node["Alive"] and has.get("CPU", 0) >= self.cpus and has.get("GPU", 0) >= self.gpus:
                return ""
        wanted = f"{self.cpus} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        return f"No node of the cluster {self.address} has {wanted}; the runs wait for one."


def connect(
    address: str,
    *,
    cpus: int,
    gpus: float | None,
    storage: str | None,
    device: str,
    own_files: Sequence[Path],
) -> tuple[Cluster, str]:
    """Connect to the cluster, and choose the device of the runs.

    Args:
        address: that of the head, "auto" for the one that this machine belongs to, or "local" for a new one.
        cpus: CPUs of a run.
        gpus: the share of a GPU that a run has; None: a whole one if it trains there.
        storage: where checkpoints are shared, if anywhere.
        device: as the user gave it; "auto" is "cuda" if a run has a share of a GPU, or if there is a GPU.
        own_files: the user's modules, which are sent to the nodes.
    """
    _check_address(address)
    if device == "mps":
        raise BadInputError("--device must be cpu or cuda with --ray, got mps.")
    if gpus is not None and (device, gpus > 0) in (("cpu", True), ("cuda", False)):
        raise BadInputError(f"--gpus-per-run {gpus:g} does not go with --device {device}.")
    shared = Storage(storage) if storage else None
    if shared:
        shared.check()
    # Ray would print the last 20 lines of the log of a node that dies, among the results.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "Raylet is terminated|has been marked dead")
    import ray

    environment: dict[str, Any] = {
        "env_vars": {**ENVIRONMENT, **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}
    }
    if own_files:  # Ray takes an empty list for a module without a name
        environment["py_modules"] = [str(path) for path in own_files]
    try:
        ray.init(address, runtime_env=environment, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and others
        if address == "auto" and isinstance(error, ConnectionError):
            sentence = "this machine is in no Ray cluster, begin one by ray start --head or name another."
        else:
            sentence = f"no Ray cluster can be reached at {address}: {_sentence(error)}"
        raise BadInputError(sentence) from error
    if device == "auto":
        there = ray.cluster_resources().get("GPU", 0) if gpus is None else gpus
        device = "cuda" if there else "cpu"
    return Cluster(
        address, cpus, (1.0 if device == "cuda" else 0.0) if gpus is None else gpus, shared
    ), device


def _check_address(address: str) -> None:
    """Raise a :class:`BadInputError` if nothing answers there; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not host or not port.isdecimal():
        raise BadInputError(f"--ray must be auto, local, HOST:PORT or ray://HOST:PORT, got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"no Ray cluster can be reached at {address}: {reason}.") from error


@dataclass
class _Attempt:
    """A run, how often it was begun, and how far it has come."""

    run: Run
    number: int
    begun: bool = False
    epoch: int = 0
    deaths: int = 0
    """In a row, since a death found the run further than before."""
    epoch_at_death: int = 0


class _Tasks:
    """The tasks of one sweep."""

    def __init__(self, cluster: Cluster, out: Path, every: float) -> None:
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._cluster, self._out, self._every = cluster, out, every
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # Beside the driver, since another node may die.
        self._queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        # Not run again by Ray: the driver would not hear of it.
        options = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_retries": 0}
        self._train = ray.remote(**options)(train_task)
        self._numbers = itertools.count()
        self._under_way: dict[Any, _Attempt] = {}

    def work(self, runs: Sequence[Run]) -> Generator[Event, None, None]:
        import ray

        waiting = [_Attempt(run, 0) for run in reversed(runs)]
        if runs and (sentence := self._cluster.lacking()):
            yield Event(runs[0], "note", sentence)
        news = self._queue.actor.get.remote()
        try:
            while waiting or self._under_way:
                while waiting and len(self._under_way) < MAX_SUBMITTED:
                    self._submit(waiting.pop())
                # The news stand first, so that they are heard before the end of a run.
                (ready,), _ = ray.wait([news, *self._under_way], num_returns=1)
                if ready != news:
                    yield from self._end(ready)
                    continue
                number, item = ray.get(ready)
                news = self._queue.actor.get.remote()
                found = [one for one in self._under_way.values() if one.number == number]
                yield from self._hear(found[0], item) if found else ()
        finally:
            self._cancel()

    def _submit(self, attempt: _Attempt) -> None:
        attempt.number, attempt.begun = next(self._numbers), False
        shared = self._cluster.storage
        task = Task(
            attempt.run, attempt.number, self._cluster.cpus, shared.url if shared else None, self._every
        )
        self._under_way[self._train.remote(task, self._queue)] = attempt

    def _hear(self, attempt: _Attempt, item: Event | Files) -> Iterator[Event]:
        if isinstance(item, dict):
            self._write(item)
            return
        attempt.begun |= item.kind == "begun"
        if item.kind == "epoch":
            attempt.epoch = max(attempt.epoch, item.value[0])
        yield item

    def _end(self, ready: Any) -> Iterator[Event]:
        """A task has ended: with its result, or without one, and then it is run again."""
        import ray

        attempt = self._under_way.pop(ready)
        try:
            event, files = ray.get(ready)
        except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError) as error:
            sentence = f"a node of the cluster cannot begin a run: {_sentence(error)}"
            raise BadInputError(
                f"{sentence} Every node needs taufree {__version__} and its extras."
            ) from error
        except ray.exceptions.TaskCancelledError:
            event, files = Event(attempt.run, "failed", "it was cancelled."), {}
        except (ray.exceptions.RaySystemError, ray.exceptions.RayActorError):
            raise
        except ray.exceptions.RayError as error:
            yield from self._after_death(attempt, error)
            return
        if not attempt.begun:  # the news are still under way
            yield Event(attempt.run, "begun")
        self._write(files)
        yield event
        if event.kind == "done" and self._cluster.storage:
            self._cluster.storage.remove(attempt.run.slug)  # the result is on the disk now

    def _after_death(self, attempt: _Attempt, error: Exception) -> Iterator[Event]:
        import ray

        if not attempt.begun and isinstance(error, ray.exceptions.NodeDiedError):
            self._submit(attempt)  # Ray had a dying node in mind for it
            return
        what = {
            ray.exceptions.NodeDiedError: "its node died",
            ray.exceptions.WorkerCrashedError: "its process died",
            ray.exceptions.OutOfMemoryError: "its node had too little memory",
        }.get(type(error), f"its result was lost ({type(error).__name__})")
        attempt.deaths = 1 if attempt.epoch > attempt.epoch_at_death else attempt.deaths + 1
        attempt.epoch_at_death = attempt.epoch
        if attempt.deaths == MAX_DEATHS:
            if not attempt.begun:
                yield Event(attempt.run, "begun")
            yield Event(attempt.run, "failed", f"{what}, {MAX_DEATHS} times without getting further.")
            return
        begun = attempt.begun
        self._submit(attempt)
        if not begun:  # nothing of it is lost
            return
        name = f"{describe(attempt.run.link)}, seed {attempt.run.seed}"
        where = "its last checkpoint" if self._cluster.storage else "the beginning"
        yield Event(attempt.run, "note", f"{name}: {what}; it is run again from {where}.")

    def _write(self, files: Files) -> None:
        try:
            for path, content in files.items():
                with atomic_write(self._out / path) as draft:
                    draft.write_bytes(content)
        except OSError as error:
            raise BadInputError(f"--out {self._out} cannot be written to: {error.strerror}.") from error

    def _cancel(self) -> None:
        """Interrupt what is under way, which clears up then; what does not end is killed."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
            if tasks := list(self._under_way):
                for task in tasks:
                    ray.cancel(task, force=False)
                _, left = ray.wait(tasks, num_returns=len(tasks), timeout=SHUTDOWN_SECONDS)
                for task in left:
                    ray.cancel(task, force=True)


def _sentence(error: Exception) -> str:
    """The last line of an error's text that says something, as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[-1].rstrip('.')}." if lines else f"{type(error).__name__}."
