"""``taufree demo``: both purposes of contrastive learning, with and without a temperature, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from taufree.cli.messages import imports, path, refuse
from taufree.util.optional import require

LINKS = ("free", "fitted", "0.02", "0.05", "0.1", "0.25", "0.5", "1")


def demo(
    preset: Annotated[str, typer.Option(help="full, or quick to see that it works.")] = "full",
    out: Annotated[Path, typer.Option(parser=path, help="Folder of results and page.")] = Path("runs/demo"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; they share the cores.")] = 2,
) -> None:
    """Show both purposes on digits, in three minutes.

    A representation of handwritten digits, and left halves that find their right halves: trains small
    networks with six temperatures and with the two links that have none, prints what came of it and writes
    OUT/report.html. Nothing is downloaded. An interrupted command, given again, goes on.

    \b
    Examples:
      taufree demo
      taufree demo --preset quick --out runs/look
    """
    for package in ("lightning", "pandas", "plotly", "scipy", "sklearn"):
        require(package, "taufree[cli]")
    console = Console(stderr=True)
    with imports():
        from taufree.experiments.recipe import choose_settings
        from taufree.experiments.registry import find_recipe
        from taufree.experiments.report.two_purposes import PURPOSES, rows, summary, write_page
        from taufree.experiments.sweep.driver import sweep
        from taufree.experiments.training.run import Run
    runs = []
    try:
        for purpose in PURPOSES:
            settings, seeds = choose_settings(find_recipe(purpose.recipe), preset)
            runs += [Run(purpose.recipe, link, seed, settings) for seed in range(seeds) for link in LINKS]
        console.print(
            f"{len(runs)} short trainings: each of {len(LINKS)} links, with several seeds, for two purposes.",
            highlight=False,
            soft_wrap=True,
        )
        outcome = sweep(runs, out, jobs=jobs, console=console)
    except ValueError as error:
        refuse(error)
    if outcome.refused:
        refuse(outcome.refused)
    if outcome.interrupted:
        console.print(f"Stopped after {outcome.done} of {len(runs)} runs; give the same command to go on.")
        raise typer.Exit(130)
    if outcome.failed:
        console.print(f"{len(outcome.failed)} of {len(runs)} runs failed, see above.", style="red")
        raise typer.Exit(1)
    show = Console(soft_wrap=True, highlight=False, markup=False)
    for purpose in PURPOSES:
        show.print(f"\n{purpose.title}. {purpose.sentence}")
        found = rows(outcome.lines, purpose)
        table = Table(caption=f"{purpose.metric}: {find_recipe(purpose.recipe).metrics[purpose.metric]}")
        for name in found[0]:
            table.add_column(name, justify="left" if name == "link" else "right")
        for row in found:
            table.add_row(*row.values(), style="bold" if row["link"] == purpose.link else None)
        show.print(table)
        for sentence in summary(outcome.lines, purpose, quick=preset == "quick"):
            show.print(sentence)
    try:
        report = write_page(outcome.lines, out / "report.html", quick=preset == "quick")
    except OSError as error:
        refuse(f"--out {out} cannot be written to: {error.strerror}.")
    show.print(f"\nBoth on one page: {report}")
    show.print("Next: taufree diagnose says what each link would do with embeddings of your own.")
