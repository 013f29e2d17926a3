"""What to install for the parts of the library that need more than torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports that ``pip install "taufree[name]"`` brings: says so where one is missing.

    >>> with extra("cli"):
    ...     import no_such_module
    Traceback (most recent call last):
    ModuleNotFoundError: this part of taufree needs no_such_module: pip install "taufree[cli]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(
            f'this part of taufree needs {package}: pip install "taufree[{name}]"', name=package
        ) from error
