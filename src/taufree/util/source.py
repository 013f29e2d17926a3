"""Which version of a user's own code is used: a digest of its source."""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType


def source_digest(name: str) -> str | None:
    """A digest of the file of a module and of the user's other files that it imports; None for taufree's own.

    What is installed counts only where it is the module itself: its version is recorded elsewhere.
    """
    if _is_taufree(name):
        return None
    found: dict[str, bytes] = {}
    _collect(importlib.import_module(name), found)
    first, *others = found
    digest = hashlib.sha256()
    for one in (first, *sorted(others)):
        digest.update(found[one])
    return digest.hexdigest()[:12]


def own_files(names: Iterable[str]) -> list[Path]:
    """The files and packages of the user's own that these modules are in, with those that they import."""
    found: dict[str, bytes] = {}
    for name in names:
        if not _is_taufree(name):
            _collect(importlib.import_module(name), found)
    paths = set()
    for top in {name.partition(".")[0] for name in found}:
        module = importlib.import_module(top)
        package = list(getattr(module, "__path__", []))
        paths |= {Path(path) for path in package or [str(module.__file__)]}
    return sorted(path for path in paths if not is_installed(path))


def is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return bool({Path(sysconfig.get_path(kind)) for kind in kinds} & set(path.parents))


def _collect(module: ModuleType, found: dict[str, bytes]) -> None:
    """Add the source of a module, and of those of the user's that it imports."""
    file = getattr(module, "__file__", None)
    found[module.__name__] = Path(file).read_bytes() if file else b""
    if not file or Path(file).suffix != ".py":
        return
    for name in _imported(ast.parse(found[module.__name__]), module.__package__):
        other = sys.modules.get(name)
        file = getattr(other, "__file__", None)
        if other and file and name not in found and not _is_taufree(name) and not is_installed(Path(file)):
            _collect(other, found)


def _imported(tree: ast.Module, package: str | None) -> Iterator[str]:
    """The names of modules that a source imports; some of them may be other things of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_taufree(name: str) -> bool:
    return name.partition(".")[0] == __name__.partition(".")[0]
