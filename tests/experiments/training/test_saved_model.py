"""Networks that are kept: what comes back, and what is refused in one sentence."""

import pytest
import torch
from safetensors.torch import save_file

from taufree.experiments.digits import Digits, DigitsSettings
from taufree.experiments.training.run import Run
from taufree.experiments.training.saved_model import model_file, read_model
from taufree.experiments.training.trainer import Training, train
from taufree.util.errors import BadInputError

TINY = DigitsSettings(epochs=1, batch_size=128)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run, its folder and its line."""
    out = tmp_path_factory.mktemp("out")
    run = Run("digits", "learnable", 1, TINY, save_model=True)
    return run, out, train(run, out / "checkpoints")


def test_the_network_comes_back_as_it_was_evaluated(saved):
    run, out, line = saved
    found = read_model(model_file(out, run))
    assert not found.model.training
    assert not any(weight.requires_grad for weight in found.model.parameters())
    assert {name: found.about[name] for name in ("recipe", "link", "seed", "settings", "metrics")} == {
        name: line[name] for name in ("recipe", "link", "seed", "settings", "metrics")
    }
    assert found.recipe.settings == TINY
    found.recipe.load(None)
    assert found.recipe.evaluate(found.model) == line["metrics"]


def test_it_is_the_same_run_and_others_keep_nothing(saved, tmp_path):
    run, out, _ = saved
    plain = Run("digits", "learnable", 1, TINY)
    assert plain.key == run.key
    train(plain, tmp_path / "checkpoints")
    assert not (tmp_path / "models").exists()
    usual = tmp_path / "file"
    usual.touch()
    assert model_file(out, run).stat().st_mode == usual.stat().st_mode
    assert [path.name for path in (out / "models").iterdir()] == [f"{run.slug}.safetensors"]


def test_a_model_that_cannot_be_written_is_bad_input(tmp_path):
    run = Run("digits", "free", 0, TINY, save_model=True)
    (tmp_path / "models").touch()
    with pytest.raises(BadInputError, match=r"^the model .* could not be written: "):
        train(run, tmp_path / "checkpoints")


def test_what_is_no_model_is_one_sentence(saved, tmp_path):
    run, out, _ = saved
    for name, content in (("text", b"no model"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInputError, match=f"{name} must be a model that taufree run"):
            read_model(tmp_path / name)
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(BadInputError, match="must be a model that taufree run --save-model wrote"):
        read_model(tmp_path / "other.safetensors")
    whole = model_file(out, run).read_bytes()
    for name, old, new, sentence in (
        ("recipe", b'\\"digits\\"', b'\\"absent\\"', "no recipe 'absent'"),
        ("layers", b"projector.3", b"projector.4", "does not fit the recipe digits of taufree "),
    ):
        assert old in whole
        (tmp_path / name).write_bytes(whole.replace(old, new))
        with pytest.raises(ValueError, match=sentence) as found:
            read_model(tmp_path / name)
        assert "\n" not in str(found.value)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match="must be a model that taufree run --save-model wrote"):
        read_model(tmp_path / "cut")


def test_the_weights_of_the_chosen_epoch_are_kept(tmp_path, monkeypatch):
    """Those that are evaluated, not those of the last epoch."""
    figures = iter([2.0, 1.0])
    monkeypatch.setattr(Digits, "select_by", "figure")
    monkeypatch.setattr(Digits, "follow", lambda self, model: {"figure": next(figures)})
    run = Run("digits", "free", 0, DigitsSettings(epochs=2, batch_size=128), save_model=True)
    kept = []
    original = Training.train_epoch

    def train_epoch(self):
        loss = original(self)
        kept.append({name: value.clone() for name, value in self.weights.state_dict().items()})
        return loss

    monkeypatch.setattr(Training, "train_epoch", train_epoch)
    train(run, tmp_path / "checkpoints")
    found = read_model(model_file(tmp_path, run)).model.state_dict()
    assert all(torch.equal(found[name], kept[0][name]) for name in found)
    assert not all(torch.equal(found[name], kept[1][name]) for name in found)
