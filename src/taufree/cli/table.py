"""``taufree table``: results as people publish them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import imports, path, refusing, writing


def table(
    outs: Annotated[
        list[Path], typer.Argument(parser=path, metavar="OUT...", help="Folders of results, or their files.")
    ],
    format: Annotated[str, typer.Option(help="markdown, latex, csv or html.")] = "markdown",
    metric: Annotated[str | None, typer.Option(help="Metrics, comma-separated.  [default: all]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Take the runs with this setting; may be repeated.  [default: the newest settings]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, help="Write it to this file.  [default: to the terminal]")
    ] = None,
) -> None:
    """Print results as a table to publish.

    Mean over seeds ± half of its 95 % interval, the best bold, and of each link that has no fixed
    temperature the difference from the best one, paired by seed. Folders with other settings become columns
    of the same table. CSV has a line for each figure, with numbers that are not rounded.

    \b
    Examples:
      taufree table runs/digits
      taufree table runs/digits --format latex --metric knn --out digits.tex
      taufree table runs/small runs/large --metric knn
    """
    from taufree.experiments.sweep.results import results_file

    with refusing():  # before the imports below, which take seconds
        for one in outs:
            results_file(one)
    with imports():
        from taufree.experiments.report.published import published
        from taufree.experiments.report.sweeps import find_sweeps
        from taufree.util.files import write_text

    sys.path.append(str(Path.cwd()))  # for recipes and links of one's own, as taufree run does
    with refusing():
        sweeps = find_sweeps(outs, settings or (), lambda sentence: print(sentence, file=sys.stderr))
        metrics = [name.strip() for name in metric.split(",")] if metric is not None else []
        text = published(sweeps, metrics, format)
    if out is None:
        typer.echo(text, nl=False)
        return
    with writing(out):
        typer.echo(f"Table: {write_text(out, text)}")
