"""Downloads, and what takes long to compute: made once, and kept in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write, draft_of, remove
from taufree.util.optional import needs

with needs("taufree[cli]"):
    from filelock import FileLock

T = TypeVar("T")


def cache_folder() -> Path:
    """Where downloads and decoded images are kept; it may be removed at any time.

    The folder that TAUFREE_CACHE names, or else ``taufree`` in the user's folder for caches, which is
    XDG_CACHE_HOME or ``~/.cache``.
    """
    if own := os.environ.get("TAUFREE_CACHE"):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path is to be ignored: https://specifications.freedesktop.org/basedir-spec
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "taufree"


def cached(path: Path, make: Callable[[Path], object], load: Callable[[Path], T]) -> T:
    """What ``load`` reads from ``path``, which is made first if it is not there or damaged.

    Where several processes ask for it at once, one makes it and the others wait.

    Args:
        path: a file or a folder.
        make: called with the path of a draft; it writes the file or the folder there.
        load: called with ``path``; an error of any kind means that it is to be made.

    Raises BadInputError with one sentence where there can be no folder for it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(
            f"the folder {path.parent} of the cache cannot be made ({error.strerror}); TAUFREE_CACHE must be "
            "a folder that can be written to."
        ) from error
    with FileLock(path.with_suffix(".lock")):
        try:
            return load(path)
        except Exception:  # a damaged file can raise anything
            pass
        for leftover in path.parent.glob(draft_of(path, "*").name):  # of processes that were killed
            remove(leftover)
        with atomic_write(path) as draft:
            make(draft)
        return load(path)


def download(
    path: Path, make: Callable[[Path], object], load: Callable[[Path], T], *, title: str, advice: str
) -> T:
    """:func:`cached`, with one sentence for whatever the network, the file system or the file has to say.

    Args:
        title: what is downloaded, the sentence's subject.
        advice: what the user can do without a network, the sentence's end.
    """
    try:
        return cached(path, make, load)
    except BadInputError:
        raise
    except Exception as error:
        raise ValueError(
            f"{title} could not be downloaded to {path} ({type(error).__name__}); {advice}."
        ) from error
