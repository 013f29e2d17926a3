"""``taufree figures``: draw the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, imports, path, refusing, writing


def figures(
    out: Annotated[
        Path, typer.Option(parser=path, help="Folder to draw into; made if it is not there.")
    ] = Path("figures"),
) -> None:
    """Draw the paper's figures from the closed forms.

    \b
    Example:
      taufree figures --out figures
    """
    with imports():
        from taufree.diagnostics.theory.figures import draw_figures

    with refusing(), writing(out), bar("drawing") as watch:
        paths = draw_figures(out, watch=watch)
    for drawn in paths:
        typer.echo(drawn)
