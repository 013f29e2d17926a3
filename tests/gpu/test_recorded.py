"""Recorded steps give the numbers of plain ones, in a small network and in the recipes."""

import math
from dataclasses import replace

import pytest
import torch

from taufree.experiments.images.msc import MSCSettings
from taufree.experiments.images.simclr import SimCLRSettings
from taufree.experiments.recommendation.dcrec import DCRecSettings
from taufree.experiments.recommendation.network import DCRecNetwork
from taufree.experiments.registry import find_recipe
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.experiments.training.recorded import WARM_UP_CALLS, Replayed
from taufree.experiments.training.run import Run
from tests.support.cifar import write_cifar
from tests.support.devices import require_gpu
from tests.support.photographs import write_folder
from tests.support.shop import assert_seeded_dropout
from tests.support.training import begun

pytestmark = require_gpu()


def trained(replayed, steps=20, odd=16):
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 3).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, capturable=True)

    def work(inputs):
        optimizer.zero_grad()
        loss = layer(inputs[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = Replayed(work) if replayed else work
    losses = []
    for number in range(steps):
        losses.append(step([torch.randn(odd if number % 5 == 1 else 16, 8).cuda()]).item())
    return losses, layer.weight.detach().cpu(), step


@pytest.mark.parametrize("odd", [16, 7])
def test_replayed_training_is_plain_training_step_by_step(odd):
    """Also if every fifth batch has another shape."""
    plain, weight, _ = trained(replayed=False, odd=odd)
    losses, other, step = trained(replayed=True, odd=odd)
    assert losses == pytest.approx(plain, rel=1e-5)
    assert torch.allclose(weight, other, atol=1e-6)
    assert not step.waits
    assert losses[0] > losses[-1]


def test_work_that_waits_for_the_device_is_noticed_and_done():
    seen = []

    def work(inputs):
        seen.append(inputs[0].sum().item())
        return inputs[0] * 2

    step = Replayed(work)
    for number in range(WARM_UP_CALLS + 3):
        x = torch.full((4,), float(number), device="cuda")
        assert step([x]).tolist() == [2.0 * number] * 4
    assert step.waits
    assert seen == [4.0 * number for number in range(WARM_UP_CALLS + 3)]


@pytest.fixture
def runs(tmp_path, monkeypatch, shop):
    """A short run of each recipe that records its steps.

    Networks of images in float64, since a few steps of a ResNet in float32 make a hundredth of a rounding.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    small = {"batch_size": 8, "crop": 32}
    images = SimCLRSettings(epochs=6, neighbours=5, **small)
    msc = MSCSettings(epochs=4, backbone="resnet18", weights="random", learning_rate=0.01, **small)
    dcrec = DCRecSettings(dataset=str(shop), epochs=4, batch_size=64, dropout=0.0)
    (tmp_path / "cifar").mkdir()
    data = {"images": write_folder(tmp_path / "pictures"), "msc": write_cifar(tmp_path / "cifar", 100, 30)}
    return {
        name: Run(name, "free", 0, settings, "64-true" if name in data else "32-true", "cuda", data.get(name))
        for name, settings in {"images": images, "msc": msc, "dcrec": dcrec}.items()
    }


@pytest.mark.parametrize("name", ["images", "msc", "dcrec"])
def test_a_recipe_with_recorded_steps_is_the_plain_one(runs, name, monkeypatch):
    recipe = find_recipe(name)
    replayed = begun(runs[name])
    accelerate = recipe.accelerate
    monkeypatch.setattr(
        recipe, "accelerate", lambda *given: replace(accelerate(*given), recorded_steps=False)
    )
    monkeypatch.setattr(DCRecNetwork, "compile_reading", lambda model: None)
    plain = begun(runs[name])
    for _ in range(runs[name].settings.epochs):
        replayed.train_epoch()
        plain.train_epoch()
    assert replayed._step._recordings
    assert not replayed._step.waits
    assert replayed.curves["loss"] == pytest.approx(plain.curves["loss"], rel=1e-3)


def test_a_run_with_recorded_steps_goes_on_without_them(runs, tmp_path):
    replayed = begun(runs["images"])
    for _ in range(3):
        replayed.train_epoch()
    assert replayed._step._recordings
    replayed.save(Checkpoint(tmp_path / "checkpoint"))
    here = begun(replace(runs["images"], device="cpu"))
    assert here.restore(Checkpoint(tmp_path / "checkpoint")) == ""
    assert isinstance(here.optimizer.param_groups[0]["lr"], float)
    assert math.isfinite(here.train_epoch())


def test_every_recorded_step_has_its_own_dropout_and_the_seed_says_which(runs):
    training = begun(replace(runs["dcrec"], settings=replace(runs["dcrec"].settings, dropout=0.5)))
    assert_seeded_dropout(training)
