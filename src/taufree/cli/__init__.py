"""The command ``taufree``: one file for each subcommand.

Torch and all else that is heavy is imported inside the commands, when what can be refused without it has
been, so that ``taufree --help`` answers at once.
Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

from taufree.cli.messages import complain, imports
from taufree.util.errors import MissingPackageError
from taufree.util.optional import needs

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """The command with its subcommands."""
    import typer

    from taufree.cli.bench import bench
    from taufree.cli.bias import bias
    from taufree.cli.demo import demo
    from taufree.cli.diagnose import diagnose
    from taufree.cli.embed import embed
    from taufree.cli.figures import figures
    from taufree.cli.merge import merge
    from taufree.cli.pretrain_mlm import pretrain_mlm
    from taufree.cli.recipes import recipes
    from taufree.cli.report import report
    from taufree.cli.run import run
    from taufree.cli.score import score
    from taufree.cli.sequences import sequences
    from taufree.cli.table import table
    from taufree.cli.version import options

    app = typer.Typer(
        name="taufree",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help is filled to the width of the terminal and can be piped
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    of_results, of_models = (demo, run, report, table, merge), (embed, score)
    others = (recipes, sequences, figures, diagnose, bench, bias, pretrain_mlm)
    for command in (*of_results, *of_models, *others):
        app.command()(command)
    return app


def main() -> None:
    """The console entry."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as on stderr: not all terminals have a plus-minus
    try:
        with needs("taufree[cli]"):
            with imports():
                from typer.main import get_command

                command = get_command(build())
            try:
                command(prog_name="taufree")
            finally:
                if isinstance(sys.stdout, TextIOWrapper):
                    sys.stdout.flush()  # an error here can still be told; that of Python's own flush cannot
    except MissingPackageError as error:
        sys.exit(complain(str(error)))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.ENOSPC:  # a reader that is gone, such as head, has all that it wants
            complain(f"the output cannot be written: {error.strerror}.")
        sys.exit(1)
