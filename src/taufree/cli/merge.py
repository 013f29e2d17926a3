"""``taufree merge``: the results of several folders in one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import imports, path, refusing


def merge(
    outs: Annotated[
        list[Path], typer.Argument(parser=path, metavar="OUT...", help="Folders of results of taufree run.")
    ],
    out: Annotated[
        Path, typer.Option(parser=path, help="Folder that gets them all; made if it is not there.")
    ],
) -> None:
    """Put the results of several folders into one.

    Such as those of the same sweep on several machines, each with seeds of its own. What the folders have
    stays as it is, a run that is in several of them is taken once, and taufree run goes on with what OUT has.

    \b
    Examples:
      taufree run digits --seeds 0:5 --out runs/a      on one machine
      taufree run digits --seeds 5:10 --out runs/b     on another
      taufree merge runs/a runs/b --out runs/digits
      taufree report runs/digits
    """
    with imports():
        from taufree.experiments.sweep.merging import merge as merged

    with refusing():
        added, total = merged(outs, out, lambda sentence: print(sentence, file=sys.stderr))
    typer.echo(f"{added} runs were added to {out / 'results.jsonl'}, which has {total} now.")
