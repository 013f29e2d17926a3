"""The digest of a user's function: it changes with what the function uses, and with nothing else."""

import functools
import importlib
import sys

import pytest

from taufree.util.function_source import function_digest

MINE = """
import math
import numpy as np
import helpers_of_mine
from helpers_of_mine import half

WIDTH = 8
LAYERS = [2, 3]
SEEN = []
UNUSED = 1


class Rate:
    def __call__(self):
        return 0.1


RATE = Rate()


class Model:
    depth = 2

    @staticmethod
    def size():
        return WIDTH * Model.depth


def step(x):
    SEEN.append(x)
    return [half(value) for value in x + LAYERS]


def train(link, seed):
    def inner():
        return step([seed]), RATE(), Model().size(), math.pi, np.pi, helpers_of_mine.CONSTANT
    return inner()


def other():
    return UNUSED
"""
HELPERS = """
CONSTANT = 3


def half(x):
    return x / 2
"""


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of ``train`` with one text of the two files replaced."""
    monkeypatch.syspath_prepend(tmp_path)
    names = ("mine_of_digest", "helpers_of_mine")
    turn = iter(range(1000))

    def made(old="", new=""):
        folder = tmp_path / str(next(turn))  # Python would take an older compiled file for one of its second
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
        for name, text in zip(names, (MINE, HELPERS), strict=True):
            (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return function_digest(importlib.import_module(names[0]).train)

    yield made
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.pi, np", "math.e, np"),  # the function itself
        ("half(value) for", "half(value + 1) for"),  # a function that it calls
        ("WIDTH * Model", "2 * WIDTH * Model"),  # a method of a class
        ("depth = 2", "depth = 3"),
        ("WIDTH = 8", "WIDTH = 9"),  # a constant that a method names
        ("x / 2", "x / 3"),  # a function of another file
        ("[2, 3]", "[2, 4]"),  # a list
        ("return 0.1", "return 0.2"),  # the class of an object
        ("CONSTANT = 3", "CONSTANT = 4"),  # a module that it names
    ],
)
def test_it_changes_with_what_the_function_uses(digest, old, new):
    assert digest() != digest(old, new)


def test_it_does_not_change_with_the_rest_of_the_file(digest):
    assert digest() == digest() == digest("UNUSED = 1", "UNUSED = 2") == digest("return UNUSED", "return 7")


def test_it_does_not_change_by_training(digest):
    before = digest()
    train = sys.modules["mine_of_digest"].train
    train(None, 0)
    assert function_digest(train) == before


def test_closures_partials_and_objects():
    def made(width):
        def train(link, seed):
            return {"width": width}

        return train

    assert function_digest(made(1)) == function_digest(made(1)) != function_digest(made(2))

    def wide(link, seed, width):
        return {"width": width}

    partials = [functools.partial(wide, width=width) for width in (1, 1, 2)]
    first, same, other = map(function_digest, partials)
    assert first == same != other

    class Trainer:
        def __call__(self, link, seed):
            return {"a": 1}

    assert function_digest(Trainer()) == function_digest(Trainer())
