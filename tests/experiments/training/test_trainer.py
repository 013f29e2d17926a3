"""The runner: paired seeds, resuming bit for bit, precision, and what a line holds."""

import gc
import json
import weakref

import pytest
import torch
from safetensors.torch import save_model

from taufree.experiments.acceleration import Accelerated, Acceleration
from taufree.experiments.digits import Digits, DigitsSettings
from taufree.experiments.link_names import SCHEMES
from taufree.experiments.sweep.results import KEYS
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.experiments.training.run import Run
from taufree.experiments.training.seeds import seed_everything
from taufree.experiments.training.trainer import CURVES, Training, train
from taufree.util.errors import BadInputError

TINY = DigitsSettings(epochs=3, batch_size=128)


def tiny(link="free", seed=0, **changes):
    return Run("digits", link, seed, **{"settings": TINY, **changes})


class Recorded(Digits):
    """Keeps the batches it was trained on."""

    def __init__(self, settings):
        super().__init__(settings)
        self.seen = []

    def step(self, model, batch, link):
        self.seen.append(torch.stack(batch[:2]))
        return super().step(model, batch, link)


def begun(run):
    recipe = Recorded(run.settings)
    recipe.load(None)
    return Training(run, recipe)


def equal(line, other):
    return all(line[key] == other[key] for key in KEYS if key != "seconds")


def test_seeds_are_paired():
    trainings = [begun(tiny(link)) for link in ("free", "0.1", "learnable")]
    initial = [{name: value.clone() for name, value in one.weights.state_dict().items()} for one in trainings]
    for training in trainings:
        for _ in range(2):
            training.train_epoch()
    first = trainings[0]
    assert len(first.recipe.seen) == 20
    for training, weights in zip(trainings[1:], initial[1:], strict=True):
        assert all(torch.equal(initial[0][name], weights[name]) for name in weights)
        assert all(torch.equal(x, y) for x, y in zip(first.recipe.seen, training.recipe.seen, strict=True))
        assert training.curves["loss"] != first.curves["loss"]


def test_another_seed_has_other_weights_and_batches_and_so_has_another_epoch():
    one, two = begun(tiny(seed=0)), begun(tiny(seed=1))
    assert not torch.equal(one.weights.encoder[1].weight, two.weights.encoder[1].weight)
    for training in (one, two):
        training.train_epoch()
    one.train_epoch()
    assert not torch.equal(one.recipe.seen[0], two.recipe.seen[0])
    assert not torch.equal(one.recipe.seen[0], one.recipe.seen[10])


def test_seeds_of_different_parts_differ():
    numbers = {
        seed_everything(seed, part, number) for seed in (0, 1) for part in ("a", "b") for number in (0, 1)
    }
    assert len(numbers) == 8


def test_a_line_has_the_keys_and_one_value_per_epoch(tmp_path):
    line = train(tiny(), tmp_path)
    assert tuple(line) == KEYS
    assert line["settings"] == {**TINY.__dict__, "precision": "32-true"}
    for curve in CURVES:
        assert len(line["curves"][curve]) == 3
    assert line["curves"]["loss"][2] < line["curves"]["loss"][0]
    assert sum(line["curves"]["positive_histogram"]) == 10 * 128
    assert line["hardware"]["device"] == "cpu"
    assert {"python", "torch", "lightning", "taufree"} <= set(line["versions"])
    assert json.loads(json.dumps(line, allow_nan=False)) == line


@pytest.mark.parametrize("link", ["free", "learnable", "calibrated", "isogclr", "schedule:periods=1"])
def test_a_broken_off_run_goes_on_bit_for_bit(tmp_path, link):
    def break_off(epoch, loss):
        if epoch == 2:
            raise KeyboardInterrupt

    whole = train(tiny(link), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tiny(link), tmp_path / "broken", every=0, watch=break_off)
    epochs = []
    resumed = train(tiny(link), tmp_path / "broken", watch=lambda epoch, loss: epochs.append(epoch))
    assert epochs == [3]
    assert equal(resumed, whole)
    assert resumed["seconds"] > 0


@pytest.mark.parametrize("link", SCHEMES)
def test_digits_serves_every_scheme(link):
    training = begun(tiny(link, settings=DigitsSettings(epochs=2, batch_size=256)))
    for _ in range(2):
        training.train_epoch()
    first, second = training.curves["loss"]
    assert first != second
    assert all(p.grad is not None for p in training.weights.parameters())


def test_a_schedule_hears_the_part_of_the_training_that_begins():
    training = begun(tiny("schedule:low=0.2:high=0.4:periods=1"))
    for tau in (0.25, 0.25, 0.4):  # (1 + cos(2 pi p))/2 at p = 1/3, 2/3 and 1
        training.train_epoch()
        assert training.link.tau.item() == pytest.approx(tau)


def test_a_run_may_go_on_on_a_device_that_cannot_replay_its_steps(tmp_path):
    there, here = begun(tiny()), begun(tiny())
    there.train_epoch()
    for group in there.optimizer.param_groups:
        group["capturable"] = True
    there.save(Checkpoint(tmp_path))
    here.restore(Checkpoint(tmp_path))
    assert not any(group["capturable"] for group in here.optimizer.param_groups)
    here.train_epoch()
    assert here.epoch == 2


def test_a_run_killed_in_its_evaluation_does_not_train_again(tmp_path):
    whole = train(tiny(), tmp_path)
    epochs = []
    assert equal(train(tiny(), tmp_path, watch=lambda epoch, loss: epochs.append(epoch)), whole)
    assert epochs == []


def test_the_learnable_temperature_is_trained_without_weight_decay():
    training = begun(tiny("learnable"))
    group = training.optimizer.param_groups[-1]
    assert group["params"] == [training.link.log_scale]
    assert group["weight_decay"] == 0
    assert training.optimizer.param_groups[0]["weight_decay"] > 0
    before = training.link.tau
    training.train_epoch()
    assert training.link.tau != before
    assert training.curves["temperature_at_zero"] == [pytest.approx(training.link.tau, rel=1e-5)]


def test_the_calibrated_link_follows_the_effective_dimension_of_the_negatives():
    training = begun(tiny("calibrated"))
    training.train_epoch()
    training.train_epoch()
    dimensions, temperatures = (
        training.curves[name] for name in ("effective_dimension", "temperature_at_zero")
    )
    assert 1 < dimensions[0] < dimensions[1] < 32
    assert training.link.dimension == pytest.approx(dimensions[1], rel=0.5)
    assert temperatures[1] == pytest.approx(0.5 / training.link.gain, rel=1e-3)
    assert temperatures[1] <= temperatures[0] <= 0.501


@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("bf16-mixed", torch.float32)])
def test_other_precisions_train_and_resume(tmp_path, precision, dtype):
    run = tiny(precision=precision)
    training = begun(run)
    assert training.weights.encoder[1].weight.dtype == dtype
    exact = train(tiny(), tmp_path / "32")
    line = train(run, tmp_path / precision)
    assert line["settings"]["precision"] == precision
    assert line["curves"]["loss"] != exact["curves"]["loss"]
    assert line["curves"]["loss"] == pytest.approx(exact["curves"]["loss"], rel=0.02)
    assert equal(train(run, tmp_path / precision), line)


def test_checkpoints_are_not_mixed_up(tmp_path):
    runs = [tiny(), tiny(seed=1), tiny("0.1"), tiny(precision="64-true"), tiny(settings=DigitsSettings())]
    assert len({run.slug for run in runs}) == len({run.key for run in runs}) == 5
    train(runs[0], tmp_path)
    assert Checkpoint(tmp_path / runs[1].slug).load(Digits(TINY).model()) is None


def test_a_loss_that_is_no_number_is_named(tmp_path):
    run = tiny(settings=DigitsSettings(epochs=3, batch_size=128, learning_rate=1e37))
    with pytest.raises(FloatingPointError, match="the loss became nan in epoch 1"):
        train(run, tmp_path)


def test_data_that_do_not_fit_are_the_users_to_mend(tmp_path):
    with pytest.raises(BadInputError, match="batch_size must be at most 1297, got 1500"):
        train(tiny(settings=DigitsSettings(batch_size=1500)), tmp_path)


@pytest.mark.parametrize("damage", ["cut off", "of another version", "of a model of other sizes"])
def test_a_checkpoint_that_does_not_fit_is_named_and_the_run_begins_anew(tmp_path, damage):
    run, notes = tiny("learnable"), []
    training = begun(run)
    training.train_epoch()
    checkpoint = Checkpoint(tmp_path / "checkpoints" / run.slug)
    training.save(checkpoint)
    (folder,) = checkpoint.path.iterdir()
    if damage == "cut off":
        (folder / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes()[:-9])
    elif damage == "of another version":
        torch.save({"epoch": 2, "seconds": 1.0, "curves": {}, "parts": {}}, folder / "state.pt")
    else:
        save_model(torch.nn.Linear(3, 3), folder / "weights.safetensors")
    line = train(run, tmp_path / "checkpoints", note=notes.append)
    assert len(notes) == 1
    assert str(checkpoint.path) in notes[0]
    assert "the run starts again" in notes[0]
    assert equal(line, train(run, tmp_path / "other"))


def test_figures_that_are_no_numbers_fail_the_run(tmp_path, monkeypatch):
    with pytest.raises(FloatingPointError, match="the gradient scale became inf in epoch 1"):
        train(tiny("1e-37"), tmp_path)
    monkeypatch.setattr(Digits, "evaluate", lambda self, model: {"knn": float("nan"), "linear": 1.0})
    with pytest.raises(FloatingPointError, match="knn became nan after 3 epochs"):
        train(tiny(), tmp_path)


def test_rounded_products_are_for_recipes_that_ask_and_gpus_alone():
    """And are undone: whoever trains after it, or beside it, has what was set before."""
    seen = []

    class Asking(Accelerated, Digits):
        acceleration = Acceleration(tf32=True)

        def step(self, model, batch, link):
            seen.append(torch.get_float32_matmul_precision())
            return super().step(model, batch, link)

    recipe = Asking(DigitsSettings(epochs=1, batch_size=512))
    recipe.load(None)
    training = Training(Run("digits", "free", 0, recipe.settings), recipe)
    assert not training.tf32
    training.tf32 = True  # as it is on a GPU
    training.train_epoch()
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_run_leaves_nothing_behind_for_the_next(tmp_path, monkeypatch):
    """Or a worker would fill its GPU with the networks and recorded steps of runs that are done."""
    begun_so_far, alive = [], []
    begin = Digits.begin

    def watched(recipe, model):
        alive.append([one() is not None for one in begun_so_far])
        begun_so_far.append(weakref.ref(recipe))
        begin(recipe, model)

    monkeypatch.setattr(Digits, "begin", watched)
    settings = DigitsSettings(epochs=1, batch_size=512)
    gc.disable()
    try:
        for seed in range(3):
            train(tiny(seed=seed, settings=settings), tmp_path)
    finally:
        gc.enable()
    assert alive == [[], [False], [False, False]]
