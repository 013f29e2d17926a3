"""Recipes by name.

A package of :mod:`taufree.experiments` names its recipes in ``RECIPES``, each with the module that has it. A
recipe's module is imported when the recipe is asked for, not before, so that it may import what it needs.
A recipe outside the package is one file: ``mine.py`` is the recipe ``mine`` in the folder that it is in, and
``path/to/mine.py`` everywhere.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, get_origin

from taufree import experiments
from taufree.experiments.link_names import scheme_needs
from taufree.util.errors import MissingPackageError
from taufree.util.files import is_there
from taufree.util.source import is_installed

if TYPE_CHECKING:
    from taufree.experiments.recipe import Recipe


def recipe_names() -> list[str]:
    """The recipes of this package; none of their modules is imported for this."""
    return sorted(_modules())


def find_recipe(name: str) -> type[Recipe]:
    """The recipe of that name, or in that file; its module is imported now.

    >>> find_recipe("digits").name
    'digits'
    """
    if module := _modules().get(name):
        return _recipe_in(importlib.import_module(module))
    file = _own_file(name)
    try:
        module_of_user = importlib.import_module(file.stem)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}.") from error
    recipe = _recipe_in(module_of_user)
    if recipe.name != file.stem:  # worker processes and the results know it by this name alone
        raise ValueError(f"the recipe in {file} must have the name {file.stem!r}, got {recipe.name!r}.")
    return recipe


def check_links(recipe: type[Recipe], links: Iterable[str]) -> None:
    """Raise a ValueError with one sentence where a link is a scheme that the recipe cannot serve."""
    for link in links:
        needs = scheme_needs(link)
        if needs is not None and not _serves(recipe, needs):
            who = ", ".join(name for name in recipe_names() if _serves(_importable(name), needs))
            raise ValueError(f"the recipe {recipe.name} cannot be trained with {link}; these can: {who}.")


def _serves(recipe: type[Recipe] | None, needs: frozenset[str]) -> bool:
    return recipe is not None and recipe.serves is not None and needs <= recipe.serves


def _importable(name: str) -> type[Recipe] | None:
    """The recipe, None where a package that it needs is missing."""
    try:
        return find_recipe(name)
    except MissingPackageError:
        return None


def _modules() -> dict[str, str]:
    """Each recipe's name and its module, from the ``RECIPES`` of the packages."""
    packages = [experiments.__name__]
    packages += [
        f"{experiments.__name__}.{one.name}"
        for one in pkgutil.iter_modules(experiments.__path__)
        if one.ispkg
    ]
    return {
        name: f"{package}.{module}"
        for package in packages
        for name, module in getattr(importlib.import_module(package), "RECIPES", {}).items()
    }


def _own_file(name: str) -> Path:
    """The file of a user's own recipe, importable by its stem.

    Its folder is added to ``sys.path``: worker processes begin with the same one and find it by its stem.
    """
    path = Path(name)
    given = path if path.suffix == ".py" else Path(f"{name}.py")
    if is_there(given) and given.is_file():
        if (folder := str(given.parent.resolve())) not in sys.path:
            sys.path.append(folder)  # last, so that it hides nothing that is installed
    elif path.suffix == ".py":
        raise ValueError(f"No such file: {name}.")
    importlib.invalidate_caches()  # the file may have been written a moment ago
    spec = PathFinder.find_spec(given.stem)
    found = Path(spec.origin) if spec and spec.origin else None
    if given.is_file() and not (found and found.is_file() and found.samefile(given)):
        raise ValueError(f"{given} has the name of another Python module; rename it.")
    if found is None or found.name != given.name or is_installed(found):
        raise ValueError(
            f"no recipe {name!r}, nor a file {given}; the recipes are {', '.join(recipe_names())}."
        )
    return found


def _recipe_in(module: ModuleType) -> type[Recipe]:
    """The recipe that the module names ``RECIPE``, or the only one that it defines."""
    from taufree.experiments.recipe import Recipe  # imports torch; an unknown name is refused before

    chosen: list[type[Recipe]] = [
        one
        for one in vars(module).values()
        if inspect.isclass(one)
        and get_origin(one) is None  # to Python 3.10 dict[str, int] is a class, but not to issubclass()
        and issubclass(one, Recipe)
        and one.__module__ == module.__name__
        and not inspect.isabstract(one)
    ]
    if (named := getattr(module, "RECIPE", None)) is not None:
        chosen = [named]
    if len(chosen) != 1:
        raise ValueError(
            f"{module.__file__} must define one recipe, or name it RECIPE, got {len(chosen)} recipes."
        )
    if missing := [name for name in ("name", "title", "metrics") if not hasattr(chosen[0], name)]:
        raise ValueError(f"the recipe in {module.__file__} must have {' and '.join(missing)}.")
    return chosen[0]
