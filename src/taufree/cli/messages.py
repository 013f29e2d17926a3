"""What all commands share in talking to their user: paths, progress, Ctrl-C, errors on stderr."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from taufree.util.errors import BadInputError
from taufree.util.files import is_there, writing_to


def path(given: str | Path) -> Path:
    """Parser of an option that is a path. An empty one, as from a shell variable that is not set, is refused:
    as the current folder it would scatter results there."""
    import typer

    if not str(given).strip():
        raise typer.BadParameter('must be a path ("." for the current folder), got an empty one.')
    return Path(given)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, gone when done; gives what to call with how much is done, of how much."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_interactive:  # in a file or a pipe all that is left of a bar is an empty line
        yield lambda done, total: None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def imports() -> Iterator[None]:
    """Around imports that take seconds: Ctrl-C ends the process at once, with exit code 130.

    As an exception it would cross C++ code of torch and NumPy, which aborts then or raises another one.
    """
    usual = signal.getsignal(signal.SIGINT)
    # A process in the background ignores Ctrl-C, and threads cannot set handlers.
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def check_data_folder(data: Path | None) -> None:
    """Raise a ValueError if ``--data`` is not there, before the imports that reading it needs."""
    if data is not None and not is_there(data):
        raise ValueError(f"No such folder: {data}, which --data or TAUFREE_DATA names.")


def writable(out: Path, folder: Path) -> None:
    """Refuse ``--out`` before long work if nothing can be written to this folder of it, made if not there."""
    with writing(out):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


@contextmanager
def refusing(*more: type[Exception]) -> Iterator[None]:
    """End as :func:`refuse` does where the block raises a ValueError, or one of these errors."""
    errors: tuple[type[Exception], ...] = (ValueError, *more)
    try:
        yield
    except errors as error:
        refuse(error)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Refuse ``--out`` where the block cannot write to it."""
    try:
        with writing_to(out):
            yield
    except BadInputError as error:
        refuse(error)


def refuse(reason: object) -> NoReturn:
    """End with one sentence and the exit code of bad input."""
    import typer

    sentence = " ".join(str(reason).split())
    # A command at the end, to be copied, has no full stop.
    raise typer.Exit(complain(sentence if sentence.endswith((".", '"')) else f"{sentence}."))


def complain(sentence: str) -> int:
    """Print the sentence, and return the exit code of bad input."""
    print(f"taufree: {sentence}", file=sys.stderr)
    return 2
