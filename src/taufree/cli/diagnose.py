"""``taufree diagnose``: what temperatures would do with given embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, imports, path, refuse


def diagnose(
    file: Annotated[
        Path,
        typer.Argument(parser=path, metavar="FILE", help="Embeddings: .npy, .npz, .safetensors or .parquet."),
    ],
    second: Annotated[
        Path | None, typer.Argument(parser=path, metavar="SECOND", help="Their positives, row by row.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(parser=path, help="Integer labels; rows that share one are positives.")
    ] = None,
    out: Annotated[Path, typer.Option(parser=path, help="Folder of the page.")] = Path("diagnosis"),
) -> None:
    """Say whether a temperature hurts given embeddings.

    Shows what each temperature, and none, would do with them.

    FILE may hold two arrays (the two views), or one with SECOND or --labels beside it.

    \b
    Examples:
      taufree diagnose image.npy text.npy
      taufree diagnose embeddings.npy --labels labels.npy --out diagnosis
    """
    from taufree.util.files import check_file

    try:  # before the imports below, which take seconds
        for given in (file, second, labels):
            if given is not None:
                check_file(given, "embeddings or labels")
    except ValueError as error:
        refuse(error)
    with imports():
        from taufree.diagnostics import diagnose as embeddings
        from taufree.diagnostics import diagnosis_page
        from taufree.diagnostics import embedding_files as files

    try:
        first, pairs, groups = files.load_embeddings(file, second, labels)
        with bar("anchors looked at") as watch:
            found = embeddings.diagnose(first, pairs, labels=groups, watch=watch)
    except (ValueError, TypeError, OSError) as error:
        refuse(error)
    try:
        page = diagnosis_page.write_diagnosis(found, out)
    except ValueError as error:
        refuse(error)
    except OSError as error:
        refuse(f"--out {out} cannot be written to: {error.strerror}.")
    for line in found.summary():
        typer.echo(line)
    typer.echo(f"Page: {page}")
