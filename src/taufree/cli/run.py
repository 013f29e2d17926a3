"""``taufree run``: train a recipe with each link."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taufree.cli.messages import check_data_folder, imports, path, refuse
from taufree.util.optional import require

if TYPE_CHECKING:
    from taufree.experiments.sweep.results import Line


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
        int | None, typer.Option(min=1, max=10_000, help="Seeds of each link.  [default: the preset's]")
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
) -> None:
    """Train with each link side by side, and compare.

    Seeds are paired: every link of a seed starts from the same weights and sees the same batches. Each
    finished run is one line in OUT/results.jsonl and is not run again; an interrupted command, given again,
    goes on where it stopped. At the end: a table, each link that has no fixed temperature minus the best
    temperature, seed by seed, and OUT/report.html. The preset quick is too short for such a verdict.
    Under torchrun all ranks train each run together, with the result of one process; a recipe that cannot do
    so is refused.

    \b
    Examples:
      taufree run                                    all links on digits, about two minutes
      taufree run digits --links free,0.07,0.2 --seeds 5
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

    Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
    """
    # Workers import these, or the report does after the training; say here what is missing.
    for package in ("lightning", "pandas", "plotly", "scipy", "sklearn"):
        require(package, "taufree[cli]")
    # These imports, and what comes before the others below, do without torch, which takes seconds.
    from taufree.experiments.link_names import parse_links
    from taufree.experiments.registry import check_links, find_recipe
    from taufree.experiments.training import ranks
    from taufree.util.errors import BadInputError
    from taufree.util.machine import check_device, choose_device

    console = Console(stderr=True, quiet=ranks.rank() > 0)
    sys.path.append(str(Path.cwd()))  # for links of one's own; last, so that it hides nothing installed
    try:
        check_device(device, "32-true" if precision is None else precision)
        check_data_folder(data)
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
        device = choose_device(device, "32-true" if precision is None else precision)
        precision = precision or (acceleration_of(chosen).precision if device == "cuda" else "32-true")
        ranks.check(chosen, wanted, device, jobs)
    except ValueError as error:
        ranks.wait_for_first()
        refuse(error)
    out = out or Path("runs") / chosen.name
    runs = [
        Run(chosen.name, link, seed, wanted, precision, device, data)
        for seed in range(seeds or usual)
        for link in names
    ]
    try:
        outcome = sweep(runs, out, jobs=jobs, console=console)
    except BadInputError as error:
        ranks.wait_for_first()
        refuse(error)
    if outcome.lines:
        with imports():
            from taufree.experiments.report.page import write_report
            from taufree.experiments.report.verdicts import verdicts

        show = Console(soft_wrap=True)
        for table in _result_tables(outcome.lines, show.width):
            show.print(table)
        for sentence in verdicts(outcome.lines, quick=preset == "quick"):
            show.print(sentence, highlight=False, markup=False)
        # After the table, which a full disk does not keep from being read.
        try:
            report = write_report(outcome.lines, out / "report.html", preset=preset, data=data)
        except OSError as error:
            refuse(f"--out {out} cannot be written to: {error.strerror}.")
        show.print(f"Report: {report}", highlight=False, markup=False)
        if (out / "scores").is_dir():
            show.print(f"Scores: {out / 'scores'}", highlight=False, markup=False)
    if outcome.refused:
        refuse(outcome.refused)
    if outcome.interrupted:
        console.print(
            f"Stopped. {outcome.done} of {len(runs)} runs are in {out / 'results.jsonl'}; "
            "give the same command again to go on.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)
    if outcome.failed:
        console.print(f"{len(outcome.failed)} of {len(runs)} runs failed, see above.", style="red")
        raise typer.Exit(1)


def _result_tables(lines: list[Line], width: int) -> list[Table]:
    """The result table; what is too wide for the terminal goes on in further ones, so that no word is cut."""
    from taufree.experiments.report.tables import result_table

    shown = result_table(lines)
    rows = [*shown.rows, shown.notes] if shown.notes else shown.rows
    first, *names = rows[0]

    def needed(name: str) -> int:
        texts = [name, *(row[name] for row in rows)]
        return max(len(text) for cell in texts for text in (cell.split() if name == "note" else [cell])) + 3

    parts: list[list[str]] = [[]]
    for name in names:
        if parts[-1] and 1 + sum(map(needed, [first, *parts[-1], name])) > width:
            parts.append([])
        parts[-1].append(name)
    tables: list[Table] = []
    for part in parts:
        title = None if tables else f"{lines[0]['recipe']}: mean ± std over seeds, higher is better"
        table = Table(title=title)
        for name in [first, *part]:
            side: Literal["left", "right"] = "left" if name in ("link", "metric", "note") else "right"
            table.add_column(name, justify=side, overflow="fold")  # nothing is cut off
        for number, row in enumerate(rows):
            bold = {name for name in [first, *part] if {number, (number, name)} & shown.stressed}
            table.add_row(*(Text(row[name], "bold" * (name in bold)) for name in [first, *part]))
        tables.append(table)
    return tables
