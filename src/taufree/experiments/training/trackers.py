"""What is logged of a run for the tools that people watch trainings with, by Lightning's loggers.

Files (CSV, TensorBoard) are written anew when a run goes on from a checkpoint, so that no epoch is missing or
there twice. Services (Weights & Biases, MLflow) go on with the run that the checkpoint names. A tracker that
fails is named and left out: the training does not depend on it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from taufree.experiments.link_names import describe
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.files import remove
from taufree.util.optional import require

TRACKERS = ("csv", "tensorboard", "wandb", "mlflow")
FILES = ("csv", "tensorboard")
"""Those that write into the folder of the run's log."""
MLFLOW_ADVICE = "see MLFLOW_TRACKING_URI; sqlite:///FILE needs pip install mlflow, not its client alone"
Values = Mapping[str, float]


def parse_trackers(text: str) -> tuple[str, ...]:
    """The names in ``--log``, whose packages are there; a :class:`BadInputError` says what is wrong.

    >>> parse_trackers("csv, tensorboard")
    ('csv', 'tensorboard')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names or [text]:
        if name not in TRACKERS:
            raise BadInputError(f"--log must be some of {', '.join(TRACKERS)}, got {name!r}.")
        if name != "csv":
            require(name, "taufree[trackers]")
    return names


def check_trackers(names: Sequence[str]) -> None:
    """Raise a :class:`BadInputError` if a service cannot be reached."""
    if "wandb" in names and os.environ.get("WANDB_MODE", "online") == "online":
        import wandb

        advice = "log in by wandb login or set WANDB_MODE=offline"
        with _service("wandb", advice):
            try:
                logged_in = wandb.login(prompt=False)
            except TypeError:  # older versions have no such argument: they ask
                logged_in = wandb.api.api_key is not None
        if not logged_in:
            raise BadInputError(f"wandb has no key here, {advice}.")
    if "mlflow" in names:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            raise BadInputError("--log mlflow needs MLFLOW_TRACKING_URI, such as http://HOST:5000.")
        from mlflow import MlflowClient

        name = _project("MLFLOW_EXPERIMENT_NAME")
        with _service("mlflow", MLFLOW_ADVICE), _few_retries():
            client = MlflowClient()
            if client.get_experiment_by_name(name) is None:  # runs that begin at once would all make it
                client.create_experiment(name)


class Trackers:
    """The log of one run.

    Args:
        run: what is followed.
        names: the trackers; other ranks than the first have none.
        folder: that of all logs.
        ids: what the services know the run by, for its checkpoint; new ones are added.
        note: called with a sentence about each tracker that fails.
    """

    def __init__(
        self,
        run: Run,
        names: Sequence[str],
        folder: Path,
        ids: dict[str, str],
        note: Callable[[str], None],
    ) -> None:
        self._run, self._names, self._folder, self._ids, self._note = run, names, folder, ids, note
        self._loggers: dict[str, Any] = {}
        self._settings = {
            "recipe": run.recipe, "link": run.link, "seed": run.seed, "device": run.device,
            **run.recorded_settings,
        }  # fmt: skip

    @contextmanager
    def following(self, past: Sequence[Values]) -> Iterator[Trackers]:
        """Begin the log with the epochs ``past``, and end it when the run ends or fails."""
        for name in self._names:
            self._try(name, partial(self._add, name))
        self._each(lambda logger: logger.log_hyperparams(self._settings), but=["tensorboard"])
        for epoch, values in enumerate(past, start=1):
            for name in FILES:
                if logger := self._loggers.get(name):
                    self._try(name, partial(logger.log_metrics, values, epoch))
        try:
            yield self
        except BaseException:
            self._end("failed")
            raise
        self._end("success")

    def log(self, values: Values, epoch: int) -> None:
        """The values of an epoch."""
        self._each(lambda logger: logger.log_metrics(values, epoch))

    def log_metrics(self, metrics: Values, epoch: int) -> None:
        """The metrics of the trained model."""
        final = {f"final/{name}": value for name, value in metrics.items()}
        self._each(lambda logger: logger.log_metrics(final, epoch), but=["tensorboard"])
        if logger := self._loggers.get("tensorboard"):  # its table of settings has the metrics beside them
            self._try("tensorboard", lambda: logger.log_hyperparams(self._settings, final))

    def _add(self, name: str) -> None:
        self._loggers[name] = self._make(name)

    def _make(self, name: str) -> Any:
        from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger

        run = self._run
        title, slug = f"{run.recipe}, {describe(run.link)}, seed {run.seed}", run.slug
        if name in FILES and not self._loggers.keys() & set(FILES):
            remove(self._folder / slug)  # what the run logged before its last checkpoint
        if name == "csv":
            return CSVLogger(self._folder, name="", version=slug, flush_logs_every_n_steps=1)
        if name == "tensorboard":
            from lightning.fabric.loggers import TensorBoardLogger

            return TensorBoardLogger(self._folder, name="", version=slug)
        if name == "wandb":
            os.environ.setdefault("WANDB_SILENT", "true")  # it would print between the progress bars
            self._folder.mkdir(parents=True, exist_ok=True)
            return WandbLogger(
                project=_project("WANDB_PROJECT"),
                name=title,
                group=run.recipe,
                version=self._ids.setdefault(name, uuid.uuid4().hex[:12]),
                save_dir=self._folder,
            )
        logger = MLFlowLogger(
            _project("MLFLOW_EXPERIMENT_NAME"),
            run_name=title,
            run_id=self._ids.get(name),
            tracking_uri=os.environ["MLFLOW_TRACKING_URI"],
        )
        self._ids[name] = logger.run_id
        return logger

    def _end(self, status: str) -> None:
        self._each(lambda logger: logger.finalize(status))
        if "wandb" in self._loggers:  # the next run of this process has another one
            import wandb

            self._try("wandb", lambda: wandb.finish(exit_code=int(status == "failed")))

    def _each(self, action: Callable[[Any], None], but: Sequence[str] = ()) -> None:
        for name, logger in list(self._loggers.items()):
            if name not in but:
                self._try(name, partial(action, logger))

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # trackers raise errors of all kinds
            self._loggers.pop(name, None)
            self._note(f"{name} failed ({_reason(error)}); the runs go on without it.")


def _project(variable: str) -> str:
    """Under which name a service files the runs: as its own variable says."""
    return os.environ.get(variable) or "taufree"


@contextmanager
def _few_retries() -> Iterator[None]:
    """MLflow asks a server that does not answer for minutes, which is right for a run, but not before."""
    variable = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


@contextmanager
def _service(name: str, advice: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise BadInputError(f"{name} cannot be used ({_reason(error)}), {advice}.") from error


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0].rstrip('.')}" if text else type(error).__name__
