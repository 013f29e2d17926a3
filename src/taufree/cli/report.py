"""``taufree report``: the table and the page of results that are there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from taufree.cli.messages import imports, path, refuse, refusing
from taufree.cli.result_tables import show_results


def report(
    outs: Annotated[
        list[Path],
        typer.Argument(
            parser=path, metavar="OUT...", help="Folders of results, also of runs under way, or their files."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Show the runs with this setting; may be repeated.  [default: the newest settings]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path, help="The page.  [default: report.html in OUT, comparison.html of several sweeps]"
        ),
    ] = None,
) -> None:
    """Show the results of a folder, at any time.

    Trains nothing and changes no results, so it can be called while taufree run is under way there. Folders
    with runs of the same settings are shown as one sweep, those with others are compared on one page.

    \b
    Examples:
      taufree report runs/digits
      taufree report runs/small runs/large           two sweeps on one page
      taufree report runs/digits --set epochs=5      runs of other settings in the same folder
    """
    from taufree.experiments.sweep.results import results_file

    with refusing():  # before the imports below, which take seconds
        folders = [results_file(one).parent for one in outs]
    with imports():
        from taufree.experiments.report.comparison import write_comparison
        from taufree.experiments.report.page import write_report
        from taufree.experiments.report.sweeps import find_sweeps

    sys.path.append(str(Path.cwd()))  # for recipes and links of one's own, as taufree run does
    with refusing():
        sweeps = find_sweeps(outs, settings or (), lambda sentence: print(sentence, file=sys.stderr))
    several = len(sweeps) > 1
    page = out or (Path("comparison.html") if several else folders[0] / "report.html")
    show = Console(soft_wrap=True)
    for sweep in sweeps:
        show_results(sweep.lines, show, name=sweep.name)
    try:
        if several:
            write_comparison(sweeps, page)
        else:
            write_report(sweeps[0].lines, page, folders=folders)
    except OSError as error:
        refuse(f"{page} cannot be written: {error.strerror}.")
    show.print(f"Report: {page}", highlight=False, markup=False)
