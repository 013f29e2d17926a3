"""What to install for the parts of the library that need more than torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from taufree.util.errors import MissingPackageError


@contextmanager
def needs(install: str, module: str | None = None) -> Iterator[None]:
    """Around imports of optional packages: says how to install one that is missing.

    Args:
        install: what pip installs to get the packages, an extra of taufree or a package. An extra is right
            for an installed clone too: pip leaves that alone and adds what the extra needs.
        module: the module that ``install`` brings. Another one that is missing is a dependency that a library
            does not declare; pip is then to install that one. None: ``install`` brings all of them.

    >>> with needs("taufree[cli]"):
    ...     import no_such_module
    Traceback (most recent call last):
    taufree.util.errors.MissingPackageError: this part of taufree needs no_such_module:
    pip install "taufree[cli]"
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "taufree").partition(".")[0]
        if missing == "taufree":  # a mistake in the library, which no installation mends
            raise
        wanted = install if module in (None, missing) else missing
        wanted = f'"{wanted}"' if "[" in wanted else wanted  # a shell would read brackets as a pattern
        sentence = f"this part of taufree needs {missing}: pip install {wanted}"
        raise MissingPackageError(sentence, name=missing) from error


def require(module: str, install: str) -> None:
    """Raise now what the import of ``module`` would raise later, in another process; it is not imported."""
    with needs(install):
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
