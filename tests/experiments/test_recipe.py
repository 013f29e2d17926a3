"""The registry of recipes, and the settings all recipes share."""

import pytest

from taufree.experiments import recipes
from taufree.experiments.recipe import BatchSettings, Recipe, choose_settings, find_recipe, recipe_names


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
        BatchSettings(**{name: value})


def test_a_preset_yields_to_what_is_given():
    digits = find_recipe("digits")
    settings, seeds = choose_settings(digits, "quick", {"epochs": None, "batch_size": None})
    assert (settings.epochs, settings.batch_size, seeds) == (5, 256, 2)
    settings, seeds = choose_settings(digits, "full", {"epochs": 7, "batch_size": 32})
    assert (settings.epochs, settings.batch_size, seeds) == (7, 32, 3)


@pytest.mark.parametrize(
    ("preset", "given", "sentence"),
    [
        ("slow", {}, "preset must be one of full, quick, got 'slow'."),
        ("full", {"mask": "pygcl"}, "mask is not a setting of the recipe digits."),
    ],
)
def test_what_a_recipe_does_not_have_is_refused(preset, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_settings(find_recipe("digits"), preset, given)
