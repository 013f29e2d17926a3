"""``taufree diagnose``: what links would do with given embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, imports, path, refusing, writing


def diagnose(
    file: Annotated[
        Path,
        typer.Argument(
            parser=path, metavar="FILE", help="Embeddings: .npy, .npz, .safetensors, .parquet or .csv."
        ),
    ],
    second: Annotated[
        Path | None, typer.Argument(parser=path, metavar="SECOND", help="Their positives, row by row.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(parser=path, help="Integer labels; rows that share one are positives.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="What to take of FILE, by name, comma-separated.  [default: all that is there]"),
    ] = None,
    taus: Annotated[
        str, typer.Option(help="Temperatures to compare, comma-separated.")
    ] = "0.05,0.1,0.25,0.5,1",
    out: Annotated[Path, typer.Option(parser=path, help="Folder of the page.")] = Path("diagnosis"),
) -> None:
    """Say what each link would do with given embeddings.

    Whether positives are ahead of negatives, what free, calibrated, fitted and temperatures make of them,
    side by side, and what to try.

    FILE may hold two arrays (the two views), or one with SECOND or --labels beside it.

    \b
    Examples:
      taufree diagnose image.npy text.npy
      taufree diagnose embeddings.npy --labels labels.npy --out diagnosis
      taufree diagnose pairs.parquet --columns query,document --taus 0.01,0.07
    """
    from taufree.util.files import check_file

    with refusing():  # before the imports below, which take seconds
        temperatures = _temperatures(taus)
        for given in (file, second, labels):
            if given is not None:
                check_file(given, "embeddings or labels")
    with imports():
        from taufree.diagnostics import diagnose as embeddings
        from taufree.diagnostics import diagnosis_page
        from taufree.diagnostics import embedding_files as files

    with refusing(TypeError, OSError):
        named = [name.strip() for name in columns.split(",")] if columns is not None else None
        try:
            first, pairs, groups = files.load_embeddings(file, second, labels, named)
        except ValueError as error:
            raise ValueError(str(error).replace("columns says", "--columns says")) from error
        with bar("anchors looked at") as watch:
            found = embeddings.diagnose(first, pairs, labels=groups, taus=temperatures, watch=watch)
    with refusing(), writing(out):
        page = diagnosis_page.write_diagnosis(found, out)
    typer.echo(found)
    typer.echo(f"Page: {page}")


def _temperatures(given: str) -> list[float]:
    try:
        taus = [float(tau) for tau in given.split(",")]
    except ValueError:
        taus = []
    if not taus or not all(1e-6 <= tau <= 1e6 for tau in taus):  # far beyond, logits are infinite or 0
        raise ValueError(f"taus must be numbers from 1e-6 to 1e6 with commas between them, got {given!r}.")
    return taus
