"""``taufree sequences``: interaction logs into data sets for recommenders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import imports, path, refusing, writing


def sequences(
    log: Annotated[
        Path,
        typer.Argument(
            parser=path,
            metavar="LOG",
            help="MovieLens's ratings.csv, ratings.dat or u.data, RecBole's NAME.inter, or a CSV, TSV (also "
            ".gz) or Parquet file; a CSV may have commas, semicolons or tabs.",
        ),
    ],
    out: Annotated[Path, typer.Option(parser=path, help="Folder of the two files; made if it is not there.")],
    user: Annotated[str | None, typer.Option(help="Column of the users.  [default: the usual names]")] = None,
    item: Annotated[str | None, typer.Option(help="Column of the items.  [default: the usual names]")] = None,
    time: Annotated[str | None, typer.Option(help="Column of the times.  [default: the usual names]")] = None,
    core: Annotated[int, typer.Option(help="Leave out users and items with fewer interactions.")] = 5,
) -> None:
    """Make a data set for taufree run dcrec from a log.

    Each user's items in the order of time; the last one is for the test, the one before it for validation.

    \b
    Examples:
      taufree sequences ml-20m/ratings.csv --out data/ml-20m
      taufree run dcrec --set dataset=data/ml-20m
    """
    with imports():
        from taufree.experiments.recommendation.sequences import build_sequences

    with refusing(), writing(out):
        made = build_sequences(log, out, user=user, item=item, time=time, core=core)
    for note in made.notes:
        print(note, file=sys.stderr)
    typer.echo(
        f"{made.kept:,} of {made.rows:,} interactions, of {made.users:,} users with {made.items:,} items, "
        f"are in {out}."
    )
