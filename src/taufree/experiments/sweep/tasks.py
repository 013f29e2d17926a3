"""The runs of a sweep as tasks of a Ray cluster.

The driver, which is this process, alone decides what is run again: a run whose node or process dies is begun
once more, from its checkpoint where the storage is shared. Ray ends the tasks when the driver ends, even when
that is killed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taufree import __version__
from taufree.experiments.link_names import describe
from taufree.experiments.sweep.events import SHUTDOWN_SECONDS, Event
from taufree.experiments.sweep.node import Files, Task, train_task
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write, writing_to

if TYPE_CHECKING:
    from taufree.experiments.sweep.cluster import Cluster

MAX_DEATHS = 3
"""A run that loses its node or process so many times in a row, without getting further, has failed."""
MAX_SUBMITTED = 500
"""Tasks that Ray knows of at a time; each step of the loop looks at all of them."""


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


class Tasks:
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
        self._under_way[self._train.remote(task, self._queue.actor)] = attempt

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
            sentence = f"a node of the cluster cannot begin a run: {sentence_of(error)}"
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
        if event.kind == "done" and self._cluster.storage:  # the result is on the disk now
            with contextlib.suppress(Exception):  # any protocol's own; what is left does no harm
                self._cluster.storage.remove(attempt.run.slug)

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
        with writing_to(self._out):
            for path, content in files.items():
                with atomic_write(self._out / path) as draft:
                    draft.write_bytes(content)

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


def sentence_of(error: Exception) -> str:
    """The last line of an error's text that says something, as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[-1].rstrip('.')}." if lines else f"{type(error).__name__}."
