"""The halves recipe: its pairs, its step, its recalls."""

import pytest
import torch

from taufree import FittedLogOdds, info_nce
from taufree.experiments.digits import split_digits
from taufree.experiments.halves import Halves, HalvesSettings


def loaded(**settings):
    recipe = Halves(HalvesSettings(**settings))
    recipe.load(None)
    return recipe


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_digits_are_held_out_as_in_the_digits_recipe():
    recipe, digits = loaded(), split_digits()
    assert torch.equal(recipe.images, digits.images)
    assert torch.equal(recipe.held_out, digits.held_out)
    assert len(recipe.held_out) == 500


def test_batches_depend_on_the_generator_alone_and_use_a_digit_once():
    recipe = loaded(batch_size=400, noise=0.0)
    torch.manual_seed(1)
    batches = list(recipe.batches(0, generator()))
    torch.manual_seed(2)
    again = list(recipe.batches(0, generator()))
    assert [batch.shape for batch in batches] == [(400, 1, 8, 8)] * 3
    assert all(torch.equal(one, two) for one, two in zip(batches, again, strict=True))
    seen = torch.cat(batches).flatten(1)
    assert len(seen.unique(dim=0)) == len(seen)
    noisy = next(iter(loaded(batch_size=400, noise=0.3).batches(0, generator())))
    assert (noisy - batches[0]).std().item() == pytest.approx(0.3, rel=0.02)


def test_each_tower_sees_its_own_half_alone():
    recipe = loaded()
    model, digits = recipe.model().eval(), recipe.held_out[:20].clone()
    left, right = model(digits)
    digits[..., 4:] = 0
    changed_left, changed_right = model(digits)
    assert torch.equal(left, changed_left)
    assert not torch.allclose(right, changed_right)


def test_a_step_gives_the_loss_in_both_directions():
    recipe = loaded(batch_size=64)
    model, batch = recipe.model().eval(), next(iter(recipe.batches(0, generator())))
    step = recipe.step(model, batch, FittedLogOdds())
    expected = info_nce(*model(batch), symmetric=True, link=FittedLogOdds())
    assert step.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert step.observation.candidates == 64


@torch.no_grad()
def test_recalls_are_percentages_of_both_directions():
    recipe = loaded()
    metrics = recipe.evaluate(recipe.model().eval())
    assert set(metrics) == set(Halves.metrics)
    # Untrained towers find little more than chance, 0.2 and 2 %.
    assert 0 <= metrics["recall_1"] < 5
    assert metrics["recall_1"] <= metrics["recall_10"] < 15
    finders = torch.nn.functional.one_hot(torch.arange(500)).float()
    assert recipe.evaluate(lambda images: (finders, finders)) == {"recall_1": 100, "recall_10": 100}
    assert recipe.evaluate(lambda images: (finders, finders.roll(250, 0)))["recall_10"] == 0


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size must be at most 1297, got 2000"):
        loaded(batch_size=2000)
