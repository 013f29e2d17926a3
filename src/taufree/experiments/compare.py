"""``taufree.compare``: a training script of one's own with each link and paired seeds."""

from __future__ import annotations

import inspect
import json
import operator
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from taufree.experiments.link_names import OWN, parse_links
from taufree.experiments.report.page import write_report
from taufree.experiments.report.published import published
from taufree.experiments.report.sweeps import Sweep
from taufree.experiments.report.verdicts import verdicts
from taufree.experiments.settings import Settings, parse_seeds
from taufree.experiments.sweep.driver import sweep
from taufree.experiments.sweep.results import Line
from taufree.experiments.training import ranks
from taufree.experiments.training.function import FunctionRun, asks_for_folder, name_of
from taufree.util.errors import BadInputError
from taufree.util.optional import require
from taufree.util.source import own_files

if TYPE_CHECKING:
    from taufree.experiments.sweep.cluster import Cluster


@dataclass(frozen=True)
class Comparison:
    """What came of :func:`compare`.

    Attributes:
        lines: one dictionary a run, as in ``results.jsonl``.
        report: the page.
        failed: why runs could not be finished, by link and seed.
    """

    lines: list[Line]
    report: Path
    failed: dict[tuple[str, int], str]

    @property
    def verdicts(self) -> list[str]:
        """Each link that has no fixed temperature minus the best temperature, a sentence each."""
        return verdicts(self.lines)

    def table(self, format: str = "markdown", metrics: Iterable[str] = ()) -> str:
        """The results as ``taufree table`` prints them: markdown, latex, csv or html."""
        return published([Sweep(self.lines[0]["recipe"], self.lines)], list(metrics), format)

    def __str__(self) -> str:
        return "\n".join([self.table(), *self.verdicts, f"Report: {self.report}"])

    def _repr_markdown_(self) -> str:
        """For notebooks."""
        return "\n".join([self.table(), *(f"- {sentence}" for sentence in self.verdicts)])


def compare(
    train: Callable[..., Any],
    links: str | Iterable[str | float | type] = "free,fitted,0.05,0.1,0.2,0.5",
    seeds: int | str | Iterable[int] = 3,
    out: str | Path = "runs/compare",
    *,
    settings: Mapping[str, Any] | None = None,
    workers: int | str = 0,
    storage: str | Path | None = None,
    fresh: bool = False,
) -> Comparison:
    """Train with each link side by side by a function of your own, and compare, as ``taufree run`` does.

    Seeds are paired: before each call all global generators (Python's, NumPy's, PyTorch's) are seeded by the
    seed alone. Each finished run is a line of ``out/results.jsonl`` and is not run again, unless the function
    or something of yours that it uses has changed. At the end ``out/report.html`` is written.

    Args:
        train: called as ``train(link, seed, **settings)`` with a fresh :class:`taufree.Link`, whose
            parameters, if it has any, are for the optimizer. It returns a dictionary of metrics, of which
            higher is better, or is a generator that yields one an epoch; the last one counts, and each
            metric is a curve of the report. ``loss``, ``positive_cosine``, ``negative_cosine``,
            ``gradient_scale`` and ``effective_dimension`` are curves, not metrics. If it has an argument
            ``folder`` without a default, or with None, it gets there a ``Path``: a folder of its own for this
            link and seed, for what an interrupted run goes on from, kept until the run is in the results.
        links: names as ``taufree run --links`` takes them, temperatures, or classes derived from ``Link``.
        seeds: how many, which ("5:10"), or the seeds themselves.
        out: the folder of results and report.
        settings: more arguments of ``train``, which JSON can write; runs with others are other runs. The bar
            of progress reads ``epochs`` there, or its default.
        workers: how many processes train at the same time; 0 trains in this process. The function of a
            process must be defined in a module or a script, which calls ``compare`` below
            ``if __name__ == "__main__":``. A text is the address of a Ray cluster ("auto", "HOST:PORT", or
            "local" for one on this machine alone), as ``taufree run --ray`` takes it; each run has a CPU
            there, and a GPU if the cluster has any.
        storage: where the nodes of a Ray cluster share the folders of the runs: a folder that all of them
            have, ``s3://BUCKET/FOLDER``, ... What a folder holds when the function yields is put there, every
            30 seconds at most. Without it a folder is on its node alone, and an interrupted run begins anew.
        fresh: run again what ``out`` has, which is set aside there.

    Example:
        >>> import tempfile, torch, taufree
        >>> def train(link, seed):
        ...     rows = torch.nn.Parameter(torch.randn(8, 4))
        ...     optimizer = torch.optim.SGD([rows, *link.parameters()], lr=0.1)
        ...     for epoch in range(3):
        ...         loss = taufree.nt_xent(rows, rows + 0.1 * torch.randn(8, 4), link=link)
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        ...         yield {"loss": loss, "spread": -torch.cosine_similarity(rows[:4], rows[4:]).mean()}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = taufree.compare(train, "free,0.5", seeds=3, out=folder)
        >>> len(found.lines)
        6
    """
    settings = settings or {}
    if not isinstance(out, str | os.PathLike):
        raise BadInputError(f"out must be the path of a folder, got {type(out).__name__}.")
    folder = Path(out).absolute()  # train may change the current folder
    runs = _runs(train, links, seeds, settings)
    if isinstance(workers, bool) or not isinstance(workers, int | str):
        raise BadInputError(f"workers must be a number or an address of Ray, got {type(workers).__name__}.")
    if isinstance(workers, int) and workers < 0:
        raise BadInputError(f"workers must be at least 0, got {workers}.")
    if ranks.world() > 1:
        raise BadInputError("compare must be called by one process, without torchrun.")
    with_folder = asks_for_folder(train, settings)
    if storage is not None and not (with_folder and isinstance(workers, str)):
        raise BadInputError(
            "storage needs the address of a Ray cluster as workers and a train with a folder."
        )
    console = Console(stderr=True)
    cluster, jobs = None, 1
    if isinstance(workers, str):
        if with_folder and storage is None:
            console.print(
                "Without storage a run's folder is on its node alone: an interrupted run begins anew.",
                style="yellow",
                soft_wrap=True,
            )
        with _own_words():
            cluster, device = _connect(workers, train, runs, None if storage is None else str(storage))
        runs = [replace(run, device=device) for run in runs]
    elif workers:
        _check_processes(train)
        jobs = workers
    else:
        jobs = 0
    with _own_words():
        outcome = sweep(runs, folder, jobs=jobs, cluster=cluster, console=console, fresh=fresh)
        if outcome.refused:
            raise BadInputError(outcome.refused)
    if outcome.interrupted:
        raise KeyboardInterrupt
    failed = {(run.link, run.seed): reason for run, reason in outcome.failed.items()}
    if not outcome.lines:
        (link, seed), reason = next(iter(failed.items()))
        raise RuntimeError(f"all {len(runs)} runs failed; {link}, seed {seed}: {reason}")
    try:
        report = write_report(outcome.lines, folder / "report.html")
    except OSError as error:
        raise BadInputError(f"out {folder} cannot be written to: {error.strerror}.") from error
    return Comparison(outcome.lines, report, failed)


def _runs(
    train: Callable[..., Any],
    links: str | Iterable[str | float | type],
    seeds: int | str | Iterable[int],
    settings: Mapping[str, Any],
) -> list[FunctionRun]:
    """The runs, or a BadInputError about the arguments."""
    if not callable(train):
        raise BadInputError(f"train must be a function of a link and a seed, got {type(train).__name__}.")
    try:
        signature = inspect.signature(train)
        given = {"folder": None} if asks_for_folder(train, settings) else {}
        signature.bind(None, 0, **settings, **given)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"train must take a link, a seed and the settings, but {error}.") from error
    try:
        options = json.dumps(dict(settings), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"settings must be what JSON can write, but {error}.") from error
    if isinstance(links, int | float | type):
        links = [links]
    if not isinstance(links, Iterable):
        raise BadInputError(f"links must be names, temperatures or classes, got {links!r}.")
    named = links if isinstance(links, str) else ",".join(map(_link_name, links))
    epochs = settings.get("epochs", getattr(signature.parameters.get("epochs"), "default", None))
    shown = Settings(epochs=epochs if isinstance(epochs, int) and epochs > 0 else 1)
    return [
        FunctionRun(name_of(train), link, seed, shown, function=train, options=options)
        for seed in _seeds(seeds)
        for link in parse_links(named)
    ]


def _seeds(seeds: int | str | Iterable[int]) -> Iterable[int]:
    """NumPy's integers are integers too."""
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    wrong = BadInputError(f"seeds must be a number of them or integers of at least 0, got {seeds!r}.")
    try:
        if not isinstance(seeds, Iterable):
            return parse_seeds(str(operator.index(seeds)))
        given = list(seeds)
        numbers = list(dict.fromkeys(map(operator.index, given)))
    except TypeError:
        raise wrong from None
    if not numbers or min(numbers) < 0 or any(isinstance(seed, bool) for seed in given):
        raise wrong
    return numbers


def _connect(
    address: str, train: Callable[..., Any], runs: Iterable[FunctionRun], storage: str | None
) -> tuple[Cluster, str]:
    """The cluster, and the device of its runs."""
    require("ray", "taufree[ray]")
    from taufree.experiments.sweep.cluster import connect

    modules = {getattr(getattr(train, "func", train), "__module__", "__main__")}
    modules |= {run.link.partition(OWN)[0] for run in runs if OWN in run.link}
    own = own_files(modules - {"__main__"})  # what a script itself defines is sent with the run
    return connect(address, cpus=1, gpus=None, storage=storage, device="auto", own_files=own)


@contextmanager
def _own_words() -> Iterator[None]:
    """Name the arguments of :func:`compare` where a sentence names the options of ``taufree run``."""
    try:
        yield
    except BadInputError as error:
        sentence = re.sub(r"--(out|storage)\b", r"\1", re.sub(r"--ray\b", "workers", str(error)))
        raise BadInputError(sentence) from error


def _link_name(link: str | float | type) -> str:
    if isinstance(link, type):
        return f"{link.__module__}{OWN}{link.__qualname__}"
    if isinstance(link, str | int | float):
        return str(link)
    raise BadInputError(f"links must be names, temperatures or classes, got {link!r}.")


def _check_processes(train: Callable[..., Any]) -> None:
    """Refuse what another process cannot find by its name."""
    try:
        pickle.dumps(train)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise BadInputError(
            "train must be a function of a module or a script to train in processes of its own; "
            "workers=0 trains it in this one."
        ) from None
