"""Checkpoints where every machine of a cluster finds them: a shared folder, or whatever else fsspec opens.

A run has one file there, its newest checkpoint as a zip archive. It is written beside and then renamed, so
that it is whole or not there; on object stores, which cannot rename, the copy that takes its name is whole.
"""

from __future__ import annotations

import os
import platform
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec

from taufree.util.errors import BadInputError


class Storage:
    """The checkpoints below ``url``, such as a folder or ``s3://bucket/folder``."""

    def __init__(self, url: str) -> None:
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:  # no such protocol, or its package is not installed
            raise BadInputError(f"--storage {url} cannot be opened: {error}.") from error
        self.url = str(self._files.unstrip_protocol(self._root))
        """With the whole path where it is a folder: another machine has another current one."""

    def check(self) -> None:
        """Raise a :class:`BadInputError` if nothing can be written there."""
        probe = f"{self._root}/.{_writer()}.probe"
        with self._writing():
            self._files.pipe_file(probe, b"")
            self._files.rm_file(probe)

    def check_shared(self) -> None:
        """Raise a :class:`BadInputError` on a node that does not have the folder of the driver."""
        if "file" in self._files.protocol and not self._files.exists(self._root):
            raise BadInputError(
                f"--storage {self.url} is not there, it must be a folder that all nodes share."
            )

    def put(self, slug: str, checkpoint: Path, root: Path | None = None) -> None:
        """Make a folder, which holds the newest checkpoint, the one of this run.

        Args:
            root: the folder that :meth:`get` will unpack into; that around the checkpoint by default.
        """
        draft = f"{self._root}/.{slug}.{_writer()}.draft"
        with TemporaryDirectory() as folder:
            archive = Path(folder) / "checkpoint.zip"
            # Not compressed, since weights hardly become smaller; zip archives know no times before 1980.
            with zipfile.ZipFile(archive, "w", strict_timestamps=False) as zipped:
                for file in sorted(checkpoint.rglob("*")):
                    zipped.write(file, file.relative_to(root or checkpoint.parent))
            with self._writing():
                self._files.put_file(str(archive), draft)
                self._files.mv(draft, self._path(slug))

    def get(self, slug: str, folder: Path) -> bool:
        """Unpack the checkpoint of this run into ``folder``, if there is one; returns whether there is."""
        if not self._files.exists(self._path(slug)):
            return False
        with TemporaryDirectory() as temporary:
            archive = Path(temporary) / "checkpoint.zip"
            self._files.get_file(self._path(slug), str(archive))
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
        return True

    def remove(self, slug: str) -> None:
        """Forget the run, with what machines that died have left of it."""
        with self._writing():
            for path in (self._path(slug), *self._files.glob(f"{self._root}/.{slug}.*.draft")):
                if self._files.exists(path):
                    self._files.rm_file(path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._files.makedirs(self._root, exist_ok=True)
            yield
        except Exception as error:  # every protocol raises errors of its own
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise BadInputError(f"--storage {self.url} cannot be written to: {reason}.") from error

    def _path(self, slug: str) -> str:
        return f"{self._root}/{slug}.zip"


def _writer() -> str:
    return f"{platform.node()}-{os.getpid()}"
