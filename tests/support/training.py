"""A run before its first epoch."""

from taufree.experiments.registry import find_recipe
from taufree.experiments.training.trainer import Training


def begun(run, recipe_type=None):
    """Its training, by another recipe than its own if one is given."""
    recipe = (recipe_type or find_recipe(run.recipe))(run.settings)
    recipe.load(run.data)
    return Training(run, recipe)
