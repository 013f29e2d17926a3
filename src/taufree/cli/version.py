"""``taufree --version``, and what ``taufree --help`` says first."""

from __future__ import annotations

from typing import Annotated

import typer


def _show_version(asked: bool) -> None:
    if asked:
        from taufree import __version__

        typer.echo(f"taufree {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Contrastive learning without a temperature: compare, draw, diagnose.

    Start with: taufree run
    """
