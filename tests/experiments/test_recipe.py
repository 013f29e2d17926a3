"""The contract of recipes: what each says of itself, and its settings with a preset and the user's wishes."""

import inspect

import pytest

from taufree.experiments.acceleration import Accelerated
from taufree.experiments.digits import Digits
from taufree.experiments.recipe import Recipe, choose_settings
from taufree.experiments.registry import check_links, find_recipe, recipe_names
from taufree.experiments.settings import list_settings


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_says_what_it_is(name):
    recipe = find_recipe(name)
    assert recipe.name == name
    assert recipe.title
    assert {"full", "quick"} <= recipe.presets.keys()
    assert recipe.data_source.endswith(".")
    assert recipe.example == "" or recipe.example.startswith(f"taufree run {name} ")
    assert all(setting.sentence.endswith(".") for setting in list_settings(recipe.settings_type))
    for preset in recipe.presets:
        choose_settings(recipe, preset)


def test_the_one_to_copy_needs_the_eight_methods_and_no_acceleration():
    assert not issubclass(Digits, Accelerated)
    methods = {name for name, _ in inspect.getmembers(Recipe, inspect.isfunction) if name != "__init__"}
    defined = {name for name in vars(Digits) if name in methods}
    assert defined == {"load", "model", "optimizer", "scheduler", "batches", "step", "evaluate"}  # and loss


def test_a_scheme_that_a_recipe_cannot_serve_is_refused_with_those_that_can():
    check_links(Digits, ("free", "macl", "isogclr", "tau-net", "dystress"))
    check_links(find_recipe("sentences"), ("free", "dystress", "pps", "schedule:periods=1"))
    all_others = "cifar10, citeseer, digits, imagenette, images"
    with pytest.raises(
        ValueError, match=rf"the recipe clip cannot be trained with tau-net; these can: {all_others}\."
    ):
        check_links(find_recipe("clip"), ("free", "isogclr", "tau-net"))
    with pytest.raises(ValueError, match=r"the recipe mabel .* with macl:alpha=0.2; these can: .*, digits, "):
        check_links(find_recipe("mabel"), ("macl:alpha=0.2",))


def test_a_preset_yields_to_what_is_given():
    settings, seeds = choose_settings(Digits, "quick", {"epochs": None, "batch_size": None})
    assert (settings.epochs, settings.batch_size, seeds) == (5, 256, 2)
    settings, seeds = choose_settings(Digits, "full", {"epochs": 7}, ["batch_size=32", " noise = 0 "])
    assert (settings.epochs, settings.batch_size, settings.noise, seeds) == (7, 32, 0.0, 3)


@pytest.mark.parametrize(
    ("preset", "given", "texts", "sentence"),
    [
        ("slow", {}, [], "preset must be one of full, quick, got 'slow'."),
        (
            "full",
            {"mask": "pygcl"},
            [],
            "the recipe digits has no setting mask; it has epochs, .*, neighbours.",
        ),
        ("full", {}, ["mask=pygcl"], "the recipe digits has no setting mask; it has epochs, .*, neighbours."),
        ("full", {}, ["noise"], "--set must be NAME=VALUE, got 'noise'."),
        ("full", {}, ["noise=1", "noise=2"], "noise is given twice."),
        ("full", {"epochs": 3}, ["epochs=3"], "epochs is given twice."),
    ],
)
def test_what_a_recipe_does_not_have_is_refused(preset, given, texts, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_settings(Digits, preset, given, texts)
