"""The command ``taufree``: in this process, or in one of its own as from a shell."""

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import taufree
from taufree.cli import build

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(taufree.__file__).parents[1]), "COLUMNS": "120"}
MAIN = "from taufree.cli import main; main()"


def invoke(*arguments, columns=120):
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(build(), words, prog_name="taufree", env={"COLUMNS": str(columns)})


def shell(*arguments, before="pass", **options):
    """In a process that executes ``before`` first; ``options`` are those of ``subprocess.run``."""
    command = [sys.executable, "-c", f"import sys; {before}; {MAIN}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **{"env": ENVIRONMENT, **options})
