"""A Ray cluster that trains the runs of a sweep, as many at a time as it has room for."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taufree.experiments.sweep.events import ENVIRONMENT, Event
from taufree.experiments.sweep.storage import Storage
from taufree.experiments.sweep.tasks import Tasks, sentence_of
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError

PASSED_ON = (
    "WANDB_MODE",
    "WANDB_PROJECT",
    "WANDB_ENTITY",
    "WANDB_BASE_URL",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME",
)
"""Variables of the driver that the nodes get too; no keys, since Ray's dashboard shows them."""
CONNECT_SECONDS = 10.0
"""What is not there after so many seconds is not reached."""


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
            with contextlib.closing(Tasks(self, out, every).work(runs)) as events:
                yield from events
        except (ray.exceptions.RaySystemError, ray.exceptions.RayActorError, ConnectionError) as error:
            raise BadInputError(f"the Ray cluster {self.address} is gone: {sentence_of(error)}") from error
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
            sentence = f"no Ray cluster can be reached at {address}: {sentence_of(error)}"
            if "RAY_AUTH_MODE" not in os.environ:  # Ray's error does not say what was wrong
                sentence += " If it asks for a token, set RAY_AUTH_MODE=token for this command too."
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
