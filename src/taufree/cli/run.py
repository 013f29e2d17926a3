"""``taufree run``: train a recipe with each link."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from taufree.cli.messages import check_data_folder, imports, path, refuse, writing
from taufree.cli.result_tables import show_results
from taufree.util.optional import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taufree.experiments.training.run import Run


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="One that taufree recipes lists, or a file of your own: mine.py, or mine."
        ),
    ] = "digits",
    links: Annotated[
        str,
        typer.Option(
            help="Comma-separated: free, fitted, calibrated, learnable, gain=2, a temperature, a scheme of "
            "taufree.baselines (macl, dystress, schedule, dual, tau-net, isogclr, pps, vmf, adap-tau, "
            "cauchy; with settings macl:tau0=0.1:alpha=0.5), or MODULE:CLASS, a taufree.Link of your own, "
            "also from the current folder."
        ),
    ] = "free,0.1,0.25,0.5,1,learnable",
    preset: Annotated[str, typer.Option(help="full, or quick for a look in a minute.")] = "full",
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many seeds of each link, or which: 5:10 are 5, 6, 7, 8 and 9.  [default: the preset's]"
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [default: the preset's]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs in a batch.  [default: the recipe's]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the recipe, as taufree recipes RECIPE lists them; may be repeated.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(
            help="32-true, bf16-mixed, 16-mixed, 64-true, ...  [default: 32-true; on CUDA the recipe's]"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            envvar="TAUFREE_DATA",
            help="Folder of the recipe's data; taufree recipes RECIPE says what it holds.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, help="Folder of results and report.  [default: runs/RECIPE]")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; they share the cores.")] = 1,
    save_model: Annotated[
        bool, typer.Option("--save-model", help="Keep each trained network in OUT/models.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run again what OUT has, which is set aside there.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Comma-separated: csv and tensorboard, which write into OUT/logs, wandb, mlflow.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train on a Ray cluster: its address, or auto for the one this machine belongs to.",
        ),
    ] = None,
    cpus_per_run: Annotated[
        int | None, typer.Option(min=1, help="CPUs of a run on the cluster.  [default: 1]")
    ] = None,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="GPU of a run on the cluster; 0.25: four share one.  [default: 1 on CUDA]"
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Where the nodes share checkpoints: a folder, s3://BUCKET/FOLDER, ...  [default: nowhere]",
        ),
    ] = None,
) -> None:
    """Train with each link side by side, and compare.

    Seeds are paired: every link of a seed starts from the same weights and sees the same batches. Each
    finished run is one line in OUT/results.jsonl and is not run again; an interrupted command, given again,
    goes on where it stopped. At the end: a table, each link that has no fixed temperature minus the best
    temperature, seed by seed, and OUT/report.html. The preset quick is too short for such a verdict.
    Under torchrun all ranks train each run together, with the result of one process; a recipe that cannot do
    so is refused. With --ray the runs are tasks of a Ray cluster, and one whose node dies is run again.

    \b
    Examples:
      taufree run                                    all links on digits, about two minutes
      taufree run digits --links free,0.07,0.2 --seeds 5
      taufree run digits --seeds 5:10 --out runs/more    on another machine; then taufree merge
      taufree run digits --epochs 200 --set noise=0.1 --jobs 2 --out runs/long
      taufree run digits --links free,mine:Cubic     a link of your own: the class Cubic in mine.py
      taufree run digits --links free,macl,schedule:periods=2      temperature schemes of the field
      taufree run citeseer --preset quick            a graph; without the preset as in the paper
      taufree run imagenette --preset quick          images; without the preset 800 epochs, for a GPU
      taufree run images --data FOLDER --links free,0.5
      taufree run msc --data FOLDER --set normal=CLASS   anomaly detection: a score for each test image
      taufree run dcrec --preset quick --data FOLDER --set dataset=beauty
      taufree run mine --set width=64                a recipe of your own: the file mine.py
      torchrun --nproc-per-node 8 --no-python taufree run imagenette
      taufree run digits --ray auto --storage /shared/checkpoints    on all machines of a Ray cluster

    Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
    """
    # Workers import these, or the report does after the training; say here what is missing.
    for package in ("lightning", "pandas", "plotly", "scipy", "sklearn"):
        require(package, "taufree[cli]")
    # These imports, and what comes before the others below, do without torch, which takes seconds.
    from taufree.experiments.link_names import parse_links
    from taufree.experiments.registry import check_links, find_recipe
    from taufree.experiments.settings import parse_seeds
    from taufree.experiments.training import ranks
    from taufree.experiments.training.trackers import check_trackers, parse_trackers
    from taufree.util.errors import BadInputError
    from taufree.util.machine import check_device, choose_device
    from taufree.util.source import own_files

    console = Console(stderr=True, quiet=ranks.rank() > 0)
    sys.path.append(str(Path.cwd()))  # for links of one's own; last, so that it hides nothing installed
    cluster = None
    try:
        check_device(device, "32-true" if precision is None else precision)
        _check_cluster_options(ray, jobs, cpus_per_run, gpus_per_run, storage)
        check_data_folder(data)
        numbers = parse_seeds(seeds) if seeds is not None else None
        trackers = () if log is None else parse_trackers(log)
        with imports():
            names = parse_links(links)
            chosen = find_recipe(recipe)
            check_links(chosen, names)
            from taufree.experiments.acceleration import acceleration_of
            from taufree.experiments.recipe import choose_settings
            from taufree.experiments.sweep.driver import sweep
            from taufree.experiments.training.run import Run
        given = {"epochs": epochs, "batch_size": batch_size}
        wanted, usual = choose_settings(chosen, preset, given, settings or ())
        if ray is not None:
            from taufree.experiments.sweep.cluster import connect

            own = own_files([chosen.__module__, *(link.partition(":")[0] for link in names if ":" in link)])
            cluster, device = connect(
                ray,
                cpus=cpus_per_run or 1,
                gpus=gpus_per_run,
                storage=storage,
                device=device,
                own_files=own,
            )
        if device != "cuda" or cluster is None:  # there may be a GPU on the nodes alone
            device = choose_device(device, "32-true" if precision is None else precision)
        precision = precision or (acceleration_of(chosen).precision if device == "cuda" else "32-true")
        ranks.check(chosen, wanted, device, jobs)
        check_trackers(trackers)
    except ValueError as error:
        ranks.wait_for_first()
        refuse(error)
    out = out or Path("runs") / chosen.name
    runs = [
        Run(chosen.name, link, seed, wanted, precision, device, data, log=trackers, save_model=save_model)
        for seed in numbers or range(usual)
        for link in names
    ]
    try:
        outcome = sweep(runs, out, jobs=jobs, cluster=cluster, console=console, fresh=fresh)
    except BadInputError as error:
        ranks.wait_for_first()
        refuse(error)
    if outcome.lines:
        with imports():
            from taufree.experiments.report.page import write_report

        show = Console(soft_wrap=True)
        show_results(outcome.lines, show, quick=preset == "quick")
        # After the table, which a full disk does not keep from being read.
        with writing(out):
            report = write_report(outcome.lines, out / "report.html", preset=preset, data=data)
        show.print(f"Report: {report}", highlight=False, markup=False)
        if (out / "scores").is_dir():
            show.print(f"Scores: {out / 'scores'}", highlight=False, markup=False)
        if save_model:
            _show_models(runs, out, show, console)
        if set(trackers) & {"csv", "tensorboard"}:
            show.print(f"Logs: {out / 'logs'}", highlight=False, markup=False)
    if outcome.refused:
        refuse(outcome.refused)
    if outcome.interrupted:
        advice = "; give the same command again to go on" * (outcome.done < len(runs))
        console.print(
            f"Stopped. {outcome.done} of {len(runs)} runs are in {out / 'results.jsonl'}{advice}.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)
    if outcome.failed:
        console.print(f"{len(outcome.failed)} of {len(runs)} runs failed, see above.", style="red")
        raise typer.Exit(1)


def _check_cluster_options(
    ray: str | None, jobs: int, cpus: int | None, gpus: float | None, storage: str | None
) -> None:
    """Raise a ValueError for what goes with a cluster alone, or not with one."""
    from taufree.experiments.training import ranks

    if ray is None:
        given = {"--cpus-per-run": cpus, "--gpus-per-run": gpus, "--storage": storage}
        for option in (option for option, value in given.items() if value is not None):
            raise ValueError(f"{option} needs --ray, without which runs train on this machine.")
        return
    require("ray", "taufree[ray]")
    if not ray.strip():
        raise ValueError("--ray must be an address or auto, got an empty one.")
    if jobs > 1:
        raise ValueError(f"--jobs must be 1 with --ray, where --cpus-per-run decides, got {jobs}.")
    if ranks.world() > 1:
        raise ValueError("--ray must be given without torchrun: a run on a cluster trains in one process.")


def _show_models(runs: Sequence[Run], out: Path, show: Console, console: Console) -> None:
    """Say where the networks are, and how many runs of an earlier command have left none."""
    from taufree.experiments.training.saved_model import model_file

    show.print(f"Models: {out / 'models'}", highlight=False, markup=False)
    if absent := sum(not model_file(out, run).exists() for run in runs):
        console.print(
            f"{absent} of {len(runs)} runs have no model there, since they were trained without --save-model "
            "or have failed; --fresh trains all again.",
            markup=False,
            soft_wrap=True,
        )
