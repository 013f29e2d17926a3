"""Files and folders that are whole or not there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from taufree.util.errors import BadInputError


@contextmanager
def atomic_write(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Give the path of a draft, which becomes ``path`` when the block ends and is removed when it fails.

    Who reads ``path`` meanwhile finds the old one or the new one. The draft lies beside ``path``, may be a
    file or a folder, and is not made here; the folder around it is.

    Args:
        sync: flush the draft to the disk first, so that a power failure cannot keep its name and lose its
            contents.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path, str(os.getpid()))
    try:
        yield draft
        if sync:
            for file in draft.rglob("*") if draft.is_dir() else [draft]:
                if file.is_file():
                    with file.open("rb+") as handle:
                        os.fsync(handle.fileno())
        if draft.is_dir() and path.is_dir():  # a folder takes the place of an empty one only
            shutil.rmtree(path)
        draft.replace(path)
    finally:
        remove(draft)


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Raise a :class:`BadInputError` about ``--out`` where the block cannot write to it."""
    try:
        yield
    except OSError as error:
        raise BadInputError(f"--out {out} cannot be written to: {error.strerror}.") from error


def write_text(path: Path, text: str) -> Path:
    """Write ``text`` to ``path``, whole or not at all, and return ``path``."""
    path = Path(path)
    with atomic_write(path) as draft:
        # A file's name in the text need not be valid UTF-8; what is not is written as \udc..
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def digest_of_files(paths: Iterable[Path]) -> str:
    """A text that changes with what is in the files, read one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()[:16]


def check_file(path: Path, content: str) -> None:
    """Raise a ValueError unless ``path`` is a file; ``content`` says what it must hold."""
    if not is_there(path):
        raise ValueError(f"No such file: {path}, which must hold {content}.")
    if not path.is_file():
        found = "a folder" if path.is_dir() else "a device or a pipe"
        raise ValueError(f"{path} must be a file that holds {content}, got {found}.")


def check_folder(path: Path, content: str) -> None:
    """Raise a ValueError unless ``path`` is a folder; ``content`` says what it must hold."""
    if not is_there(path):
        raise ValueError(f"No such folder: {path}, which must hold {content}.")
    refuse_file(path, content)


def refuse_file(path: Path, content: str) -> None:
    """Raise a ValueError if ``path`` is a file in place of a folder; ``content`` says what that must hold."""
    if is_there(path) and not path.is_dir():
        raise ValueError(f"{path} must be a folder that holds {content}, got a file.")


def is_there(path: Path) -> bool:
    """``path.exists()``, with a ValueError where the system cannot say: no permission, too long a name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    return True


def draft_of(path: Path, writer: str) -> Path:
    """The draft of ``path`` by this writer; ``*`` gives the pattern of all of them."""
    return path.with_name(f".{path.name}.{writer}.draft")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
