"""Which version of a user's own function is used: a digest of its source and of what it uses."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, NoneType
from typing import Any

from taufree.util.source import is_installed, source_digest


def function_digest(function: Callable[..., Any]) -> str:
    """A digest of a function with the functions, classes, constants and modules of the user's that it uses.

    The rest of its file does not count: the call that trains it is often there, and may ask for more seeds.
    """
    found: dict[str, str] = {}
    _add(function, found)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]


def _add(thing: Any, found: dict[str, str]) -> None:
    """Add the source of a function or a class, and of what it uses."""
    if isinstance(thing, functools.partial):
        found[f"arguments of {thing.func!r:.40}"] = repr((thing.args, sorted(thing.keywords.items())))
        _add(thing.func, found)
        return
    thing = inspect.unwrap(thing)
    if not isinstance(thing, FunctionType | type):  # an object that can be called, or a method of one
        thing = getattr(thing, "__func__", type(thing))
    name = f"{thing.__module__}.{thing.__qualname__}"
    if name in found or not _is_users(thing):
        return
    found[name] = _source(thing)
    for used, value in _used(thing):
        if isinstance(value, FunctionType | type):
            _add(value, found)
        elif isinstance(value, ModuleType):
            if _is_users(value):
                found[value.__name__] = str(source_digest(value.__name__))
        else:
            if _is_users(type(value)):
                _add(type(value), found)
            found[f"{thing.__module__}.{used}"] = _assigned(thing, used) or _constant(value)


def _used(thing: FunctionType | type) -> Iterator[tuple[str, Any]]:
    """The globals that the code of a function or a class names, and what a function has closed over."""
    if isinstance(thing, type):
        yield from ((base.__name__, base) for base in thing.__bases__)
        for member in vars(thing).values():
            member = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            if isinstance(member, FunctionType):
                yield from _used(member)
        return
    cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != type(cell)())
    for code in _codes(thing.__code__):
        yield from ((name, thing.__globals__[name]) for name in code.co_names if name in thing.__globals__)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _source(thing: FunctionType | type) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # typed into an interpreter
        codes = _codes(thing.__code__) if isinstance(thing, FunctionType) else ()
        return "".join(f"{code.co_code!r}{code.co_names}" for code in codes)


def _assigned(thing: FunctionType | type, name: str) -> str:
    """The lines of a module that give a global its value; a list that training adds to stays the same so."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[thing.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError):  # of a notebook, or typed into an interpreter
        return ""
    lines = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign))
    return "\n".join(
        ast.unparse(line)
        for line in lines
        if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(line))
    )


def _constant(value: Any) -> str:
    """A value of which no source is known, unless training may have changed it meanwhile."""
    try:
        return json.dumps(value) if isinstance(value, str | int | float | tuple | NoneType) else ""
    except TypeError:  # objects in a tuple
        return ""


def _is_users(thing: Any) -> bool:
    """Whether it is neither Python's, nor of an installed package, nor of this one."""
    module = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    try:
        file = inspect.getfile(thing)
    except (OSError, TypeError):
        return module == "__main__"
    return module.partition(".")[0] != __name__.partition(".")[0] and not is_installed(Path(file))
