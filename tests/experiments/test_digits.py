"""The digits recipe: its split, its views, its metrics."""

import pytest
import torch

from taufree import LogOdds, nt_xent
from taufree.experiments.digits import Digits, DigitsSettings


def loaded(**settings):
    recipe = Digits(DigitsSettings(**settings))
    recipe.load(None)
    return recipe


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_split_is_fixed_disjoint_and_stratified():
    torch.manual_seed(1)
    first, second = loaded(), loaded()
    assert torch.equal(first.held_out, second.held_out)
    assert (len(first.images), len(first.held_out)) == (1297, 500)
    assert first.held_out_labels.bincount().min() >= 48
    assert first.held_out_labels.bincount().max() <= 51
    assert first.images.min() == 0
    assert first.images.max() == 1


def test_batches_depend_on_the_generator_alone_and_use_a_digit_once():
    recipe = loaded(batch_size=400, rotation=0.0, scaling=0.0, shift=0.0, noise=0.0)
    torch.manual_seed(1)
    batches = list(recipe.batches(0, generator()))
    torch.manual_seed(2)
    again = list(recipe.batches(0, generator()))
    assert [batch[0].shape for batch in batches] == [(400, 1, 8, 8)] * 3
    assert all(
        torch.equal(x, y)
        for one, two in zip(batches, again, strict=True)
        for x, y in zip(one, two, strict=True)
    )
    # Without any change a view is the digit itself, so the seen digits can be counted.
    seen = torch.cat([batch[0] for batch in batches]).flatten(1)
    assert torch.allclose(batches[0][0], batches[0][1], atol=1e-6)
    assert len(seen.mul(16).round().unique(dim=0)) == len(seen)


def test_views_differ_and_stay_in_their_bounds():
    recipe = loaded(noise=0.0, batch_size=500)
    first, second = next(iter(recipe.batches(0, generator())))
    assert (first - second).abs().flatten(1).amax(1).min() > 0.01
    assert first.min() >= 0
    assert first.max() <= 1.0001
    noisy = loaded(rotation=0.0, scaling=0.0, shift=0.0, noise=0.3, batch_size=500)
    a, b = next(iter(noisy.batches(0, generator())))
    assert (a - b).std().item() == pytest.approx(0.3 * 2**0.5, rel=0.02)


def test_a_shift_moves_the_picture():
    recipe = loaded(rotation=0.0, scaling=0.0, shift=0.25, noise=0.0)
    image = torch.zeros(400, 1, 8, 8)
    image[:, :, 3:5, 3:5] = 1
    columns = torch.arange(8.0)
    moved = recipe._view(image, generator())
    centre = (moved.sum((1, 2)) * columns).sum(-1) / moved.sum((1, 2, 3)) - 3.5
    # 0.25 of half the image is one pixel.
    assert centre.abs().max().item() == pytest.approx(1.0, abs=0.02)
    assert centre.mean().abs() < 0.1


def test_a_step_gives_the_nt_xent_loss_of_the_projections():
    recipe = loaded(batch_size=64)
    model, batch = recipe.model().eval(), next(iter(recipe.batches(0, generator())))
    step = recipe.step(model, batch, LogOdds())
    a, b = (model(view)[1] for view in batch)
    assert step.loss.item() == pytest.approx(nt_xent(a, b).item(), rel=1e-5)
    assert step.observation.candidates == 127


def test_metrics_are_percentages_of_the_held_out_digits():
    recipe = loaded()
    model = recipe.model().eval()
    with torch.no_grad():
        metrics = recipe.evaluate(model)
    assert set(metrics) == set(Digits.metrics) == {"knn", "linear"}
    # An untrained network is far from chance and from perfect, and each digit weighs 0.2 %.
    assert all(50 < value < 99 and value * 5 == pytest.approx(round(value * 5)) for value in metrics.values())


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size must be at most 1297, got 2000"):
        loaded(batch_size=2000)
