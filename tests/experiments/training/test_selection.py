"""The epoch that is evaluated: chosen by a followed figure, kept by the trainer, and in its checkpoints."""

import pytest
import torch
from torch import nn

from taufree.experiments.digits import Digits, DigitsSettings
from taufree.experiments.training.run import Run
from taufree.experiments.training.selection import BestEpoch
from taufree.experiments.training.trainer import Training
from tests.support.breaking_off import assert_goes_on


class Selected(Digits):
    """A figure that is highest after the second epoch; batch norms have buffers that must come back, too."""

    select_by = "figure"
    metrics = {"figure": "as given", "total": "of all weights and buffers"}  # noqa: RUF012

    def load(self, data):
        super().load(data)
        self.figures = iter([1.0, 3.0, 3.0, 2.0])

    def follow(self, model):
        return {"figure": next(self.figures)}

    def evaluate(self, model):
        return {"total": sum(value.double().sum().item() for value in model.state_dict().values())}


def begun(skip=0, kind=Selected):
    recipe = kind(DigitsSettings(epochs=4, batch_size=512))
    recipe.load(None)
    for _ in range(skip):
        next(recipe.figures)
    return Training(Run("digits", "free", 0, recipe.settings), recipe)


def test_the_weights_and_buffers_of_the_first_best_epoch_are_evaluated():
    training, states = begun(), []
    for _ in range(4):
        training.train_epoch()
        states.append({name: value.clone() for name, value in training.weights.state_dict().items()})
    metrics = training.evaluate()
    assert metrics["figure"] == 3.0
    assert metrics["total"] == sum(value.double().sum().item() for value in states[1].values())
    found = training.weights.state_dict()
    assert all(torch.equal(found[name], value) for name, value in states[1].items())
    assert not torch.equal(found["encoder.2.running_mean"], states[3]["encoder.2.running_mean"])


def test_a_run_that_goes_on_has_the_best_weights_of_before(tmp_path):
    starts = iter([0, 0, 3])  # the third one goes on after three epochs
    assert_goes_on(lambda: begun(next(starts)), tmp_path, epochs=4, broken_after=3)


def test_without_a_figure_the_last_epoch_is_evaluated():
    class Last(Selected):
        select_by = None
        metrics = {"total": "of all weights and buffers"}  # noqa: RUF012

    training = begun(kind=Last)
    for _ in range(3):
        training.train_epoch()
    last = sum(value.double().sum().item() for value in training.weights.state_dict().values())
    assert training.evaluate() == {"total": last}


@pytest.mark.parametrize(
    ("patience", "values", "ends"),
    [
        (None, [3.0, 1.0, 1.0], False),
        (2, [], False),
        (2, [3.0, 1.0], False),
        (2, [3.0, 3.0, 1.0], True),
        (2, [3.0, 1.0, 4.0], False),
        (0, [3.0], True),
    ],
)
def test_patience_counts_the_values_that_are_no_better(patience, values, ends):
    assert BestEpoch("figure", patience).ends({"figure": values}) == ends


def test_nothing_is_kept_where_nothing_is_selected():
    best, model = BestEpoch(None, None), nn.Linear(1, 1)
    best.update({"figure": [1.0]}, model)
    assert best.state_dict() == {"weights": {}}
    with pytest.raises(ValueError, match="patience must be None without a figure"):
        BestEpoch(None, 3)
