"""The registry of recipes, and the settings all recipes share."""

import pytest

from taufree.experiments import recipes
from taufree.experiments.recipe import Recipe, Settings, find_recipe, recipe_names


def test_digits_is_found_by_its_name():
    found = find_recipe("digits")
    assert issubclass(found, Recipe)
    assert found.name == "digits"


def test_listing_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "heavy.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path)])
    assert {"digits", "heavy"} <= set(recipe_names())
    assert find_recipe("digits").name == "digits"
    with pytest.raises(RuntimeError, match="imported"):
        find_recipe("heavy")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"recipe must be one of .*digits.*, got 'cifar'\."):
        find_recipe("cifar")


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("batch_size", 1)])
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least .*, got {value}"):
        Settings(**{name: value})
