"""Lightning: a real Trainer trains SimCLR, and the callback logs the diagnostics of its batches."""

import csv
import runpy
import sys

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from taufree import CalibratedLogOdds, InfoNCE, LearnableTemperature, NTXent, Temperature
from taufree.diagnostics.metric import ContrastiveDiagnostics
from taufree.integrations import lightning as integration
from taufree.integrations.lightning import LogDiagnostics, SimCLR


class Recording(SimCLR):
    """Keeps the projections of every batch."""

    def on_fit_start(self):
        self.seen, self.losses = [], []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(outputs["views"])
        self.losses.append(outputs["loss"].item())


class Silent(SimCLR):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)["loss"]


class Skipping(SimCLR):
    """Skips the third of four batches, by Lightning's way of doing so."""

    def training_step(self, batch, batch_idx):
        return None if batch_idx == 2 else super().training_step(batch, batch_idx)


class Crops(SimCLR):
    def training_step(self, batch, batch_idx):
        found = super().training_step(batch, batch_idx)
        return {**found, "views": 3 * found["views"][:1]}


def fit(kind, folder, callback, epochs=3, **options):
    torch.manual_seed(0)
    centres = torch.randn(64, 8)
    data = TensorDataset(*(centres + 0.3 * torch.randn(64, 8) for _ in range(2)))
    model = kind(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), features=16, projection=8, learning_rate=1e-2)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=CSVLogger(folder),
        log_every_n_steps=3,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))
    return trainer, model


def logged(trainer, name):
    with open(f"{trainer.logger.log_dir}/metrics.csv", newline="") as lines:
        return [float(row[name]) for row in csv.DictReader(lines) if row[name]]


def test_the_diagnostics_of_every_third_batch_are_logged(tmp_path):
    trainer, model = fit(Recording, tmp_path, LogDiagnostics(taus=[0.05], prefix="pairs/"))
    assert len(model.seen) == 12
    expected = []
    for views in model.seen[2::3]:
        metric = ContrastiveDiagnostics(taus=[0.05])
        metric.update(*views)
        expected.append(metric.compute())
    assert expected[0]["negative_cosine"] > expected[-1]["negative_cosine"] + 0.1
    for name in ("positive_cosine", "vanished/tau=0.05", "scale/free"):
        assert logged(trainer, f"pairs/{name}_step") == pytest.approx([x[name] for x in expected], rel=1e-5)
    last = [
        x["negative_cosine"] for x in expected[2:]
    ]  # batches 8 to 11 are the last epoch: the 9th and the 12th
    assert trainer.callback_metrics["pairs/negative_cosine"].item() == pytest.approx(sum(last) / 2, rel=1e-4)
    assert sum(model.losses[-4:]) < 0.7 * sum(model.losses[:4])


def test_what_a_link_measures_or_learns_is_logged_under_its_name(tmp_path):
    class Mixed(SimCLR):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss = NTXent(link=CalibratedLogOdds())
            self.other = InfoNCE(link=LearnableTemperature())
            self.fixed = InfoNCE(link=Temperature(0.5))

    trainer, model = fit(Mixed, tmp_path, LogDiagnostics(taus=[0.05]))
    gains = logged(trainer, "contrastive/loss.link/gain_step")
    assert len(gains) == 4
    assert gains[-1] == pytest.approx(model.loss.link.gain)
    assert logged(trainer, "contrastive/loss.link/dimension_step")[-1] == pytest.approx(
        model.loss.link.dimension
    )
    assert logged(trainer, "contrastive/other.link/tau_step") == pytest.approx([0.07] * 4)
    assert not any("fixed" in name for name in trainer.callback_metrics)


def test_accumulated_batches_count_as_one_step(tmp_path):
    callback, measured = LogDiagnostics(taus=[0.05]), []
    callback.metric.register_forward_pre_hook(lambda *_: measured.append(1))
    trainer, _ = fit(Recording, tmp_path, callback, accumulate_grad_batches=2)
    assert trainer.global_step == 6
    assert len(logged(trainer, "contrastive/non_optimal_step")) == len(measured) == 2


def test_a_module_that_shows_no_views_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"must return a dict with the key 'views', got loss\.$"):
        fit(Silent, tmp_path, LogDiagnostics(), epochs=1)


def test_a_module_that_shows_three_views_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"must return a pair \(a, b\) as 'views', got 3 of them\.$"):
        fit(Crops, tmp_path, LogDiagnostics(), epochs=1)


def test_a_skipped_batch_is_passed_over(tmp_path):
    trainer, _ = fit(Skipping, tmp_path, LogDiagnostics(taus=[0.05]), epochs=2)  # steps 3 and 6 are logged
    assert len(logged(trainer, "contrastive/non_optimal_step")) == 1


def test_a_batch_may_carry_labels():
    model = SimCLR(nn.Identity(), features=4)
    model.log = lambda *_, **__: None
    views = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    plain = model.training_step(views, 0)
    labelled = model.training_step((list(views), torch.zeros(6)), 0)
    assert torch.equal(plain["loss"], labelled["loss"])
    assert torch.equal(model(views[0]), views[0])


def test_a_batch_without_two_views_is_told():
    model = SimCLR(nn.Identity(), features=4)
    with pytest.raises(ValueError, match=r"^batch must be a pair of views, .* got shapes \[\[6, 4\]\]\.$"):
        model.training_step([torch.zeros(6, 4)], 0)
    with pytest.raises(
        ValueError, match=r"^batch must be a pair of views, .* got shapes \[\[6, 4\], \[6\]\]\.$"
    ):
        model.training_step([torch.zeros(6, 4), torch.zeros(6)], 0)  # pictures and labels


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs lightning: pip install "taufree\[lightning\]"$'):
        runpy.run_path(integration.__file__)
