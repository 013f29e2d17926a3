"""SimCLR on images: the network, the step, the schedule, resuming, streaming, and what is kept."""

import math

import pytest
import torch
from torch.nn.functional import normalize
from torchvision.models import resnet18

from taufree import LogOdds, nt_xent
from taufree.experiments.images import image_recipe as image_recipe
from taufree.experiments.images.augment import Parameters, augment
from taufree.experiments.images.folder import FolderOfImages
from taufree.experiments.images.simclr import SimCLREncoder, SimCLRSettings
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.photographs import write_folder
from tests.support.training import begun

TINY = {"epochs": 3, "batch_size": 8, "crop": 32, "neighbours": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def _home(monkeypatch, folder):
    monkeypatch.setenv("HOME", str(folder.parent / "home"))


def tiny(folder, link="free", seed=0, device="cpu", precision="32-true", **changes):
    return Run("images", link, seed, SimCLRSettings(**{**TINY, **changes}), precision, device, folder)


def test_the_defaults_are_the_papers_recipe():
    chosen = SimCLRSettings()
    assert (chosen.epochs, chosen.batch_size, chosen.crop, chosen.blur) == (800, 256, 128, 0.5)
    assert (chosen.learning_rate, chosen.momentum, chosen.weight_decay) == (6e-2, 0.9, 5e-4)
    assert (chosen.neighbours, chosen.small_stem, chosen.subset) == (200, False, 0)


def test_the_network_is_a_plain_resnet_with_a_head():
    encoder = SimCLREncoder(small_stem=False).eval()
    plain = resnet18(weights=None)
    plain.fc = torch.nn.Identity()
    plain.load_state_dict(encoder.backbone.state_dict())
    images = torch.randn(2, 3, 64, 64)
    features, projections = encoder(images)
    assert torch.allclose(features, plain.eval()(images), atol=1e-4)
    assert (features.shape, projections.shape) == ((2, 512), (2, 128))
    linear, _, _, last, norm = encoder.projector
    assert (linear.bias, last.bias) == (None, None)
    assert (linear.weight.shape, last.weight.shape) == ((512, 512), (128, 512))
    assert isinstance(norm, torch.nn.BatchNorm1d)
    assert sum(p.numel() for p in encoder.parameters()) == 11_176_512 + 512 * 512 + 1024 + 128 * 512 + 256


def test_the_head_is_as_wide_as_the_settings_say():
    narrow = FolderOfImages(SimCLRSettings(projection=32)).model().projector
    assert (narrow[3].weight.shape, narrow[4].weight.shape) == ((32, 512), (32,))


def test_the_small_stem_keeps_the_resolution():
    small = SimCLREncoder(small_stem=True).backbone
    seen = []
    small.layer1.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    small(torch.randn(1, 3, 32, 32))
    assert seen == [(1, 64, 32, 32)]


def test_the_head_is_exact_where_the_backbone_is_bfloat16():
    encoder = SimCLREncoder(small_stem=False)
    with torch.autocast("cpu", torch.bfloat16):
        features, projections = encoder(torch.randn(4, 3, 32, 32))
    assert (features.dtype, projections.dtype) == (torch.bfloat16, torch.float32)
    assert not torch.equal(projections, projections.bfloat16().float())


def one_after_the_other(training, images, drawn):
    """The projections of each view, from a network that sees one view at a time."""
    lines = training.recipe.images.lines[images]
    return [
        training.weights(augment(lines, Parameters(*(part[half] for part in drawn)), size=32))[1]
        for half in (slice(8), slice(8, 16))
    ]


def test_a_step_is_nt_xent_of_two_views_of_the_same_images(folder):
    training = begun(tiny(folder))
    recipe = training.recipe
    images, *drawn = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    assert images.shape == (8,)
    assert [len(part) for part in drawn] == [16] * 6
    training.weights.eval()
    step = recipe.step(training.weights, (images, *drawn), LogOdds())
    apart = nt_xent(*one_after_the_other(training, images, drawn))
    assert step.loss.item() == pytest.approx(apart.item(), rel=1e-4)
    assert step.observation.candidates == 15


@pytest.mark.parametrize("together", [True, False])
def test_views_share_the_statistics_of_batch_norms_if_they_go_together(folder, together):
    training = begun(tiny(folder, together=together))
    images, *drawn = next(iter(training.recipe.batches(0, torch.Generator().manual_seed(0))))
    training.weights.train()
    step = training.recipe.step(training.weights, (images, *drawn), LogOdds())
    apart = nt_xent(*one_after_the_other(training, images, drawn))
    assert (step.loss.item() == pytest.approx(apart.item(), rel=1e-4)) is not together


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("stays", [True, False])
def test_a_scheme_hears_which_images_a_batch_has(folder, together, stays, monkeypatch):
    monkeypatch.setattr(image_recipe, "fits", lambda *_: stays)
    training = begun(tiny(folder, "isogclr", together=together))
    batch = next(iter(training.recipe.batches(0, torch.Generator().manual_seed(0))))
    training.recipe.step(training.weights, batch, training.link)
    seen = (training.link.log_u > -torch.inf).nonzero()[:, 1]
    assert (training.link.log_u.shape, seen.tolist()) == ((1, 20), batch[-1].sort()[0].tolist())


@pytest.mark.parametrize("together", [True, False])
def test_the_network_predicts_what_a_scheme_needs_and_is_the_same_otherwise(folder, together):
    training, free = (begun(tiny(folder, link, together=together)) for link in ("tau-net", "free"))
    own = training.weights.state_dict()
    assert all(torch.equal(own.pop(name), value) for name, value in free.weights.state_dict().items())
    assert set(own) == {"uncertainty.weight", "uncertainty.bias"}
    training.train_epoch()
    assert training.weights.uncertainty.weight.grad.abs().max() > 0


def test_batches_use_a_training_image_once_and_depend_on_the_generator_alone(folder):
    recipe = begun(tiny(folder)).recipe
    first, second, other = (
        list(recipe.batches(0, torch.Generator().manual_seed(seed))) for seed in (0, 0, 1)
    )
    numbers = torch.cat([batch[0] for batch in first])
    assert (len(first), len(numbers.unique()), int(numbers.max())) == (2, 16, 19)
    for one, two in zip(first, second, strict=True):
        assert all(map(torch.equal, one, two))
    assert not torch.equal(first[0][0], other[0][0])
    # The two views of an image are drawn apart.
    assert not torch.equal(first[0][1][:8], first[0][1][8:])


def test_the_learning_rate_is_a_cosine_over_the_epochs_and_scaled_with_the_batch(folder):
    training = begun(tiny(folder))
    rates = []
    for _ in range(3):
        rates.append(training.optimizer.param_groups[0]["lr"])
        training.train_epoch()
    expected = [6e-2 * 8 / 256 * (1 + math.cos(math.pi * epoch / 3)) / 2 for epoch in range(3)]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert training.optimizer.param_groups[0]["weight_decay"] == 5e-4
    assert len(training.optimizer.param_groups) == 1


@pytest.mark.slow
@pytest.mark.parametrize("link", ["free", "learnable"])
def test_a_broken_off_run_goes_on_bit_for_bit(tmp_path, folder, link):
    def break_off(epoch, loss):
        if epoch == 2:
            raise KeyboardInterrupt

    whole = train(tiny(folder, link), tmp_path / "whole" / "checkpoints")
    with pytest.raises(KeyboardInterrupt):
        train(tiny(folder, link), tmp_path / "broken" / "checkpoints", every=0, watch=break_off)
    epochs = []
    resumed = train(
        tiny(folder, link),
        tmp_path / "broken" / "checkpoints",
        watch=lambda epoch, loss: epochs.append(epoch),
    )
    assert epochs == [3]
    assert resumed["curves"] == whole["curves"]
    assert resumed["metrics"] == whole["metrics"]
    assert len(whole["curves"]["knn"]) == 3
    assert list(whole["metrics"]) == ["knn", "best_knn", "linear"]
    assert whole["metrics"]["knn"] == whole["curves"]["knn"][-1]
    assert whole["metrics"]["best_knn"] == max(whole["curves"]["knn"])


@pytest.mark.slow
def test_it_is_judged_as_often_as_it_is_told(tmp_path, folder):
    whole, seldom, never = (train(tiny(folder, knn_every=n), tmp_path / str(n)) for n in (1, 2, 4))
    assert seldom["curves"]["loss"] == whole["curves"]["loss"]
    assert seldom["curves"]["knn"] == whole["curves"]["knn"][1:2]
    assert seldom["metrics"]["best_knn"] == max(whole["curves"]["knn"][1:])
    assert "knn" not in never["curves"]
    assert never["metrics"]["best_knn"] == never["metrics"]["knn"] == whole["metrics"]["knn"]
    with pytest.raises(ValueError, match=r"knn_every must be an integer of at least 1, got 0\."):
        tiny(folder, knn_every=0)


def test_images_that_do_not_fit_the_device_are_streamed_to_the_same_result(folder, monkeypatch):
    resident = begun(tiny(folder))
    monkeypatch.setattr(image_recipe, "fits", lambda count, device: False)
    streamed = begun(tiny(folder))
    assert next(iter(streamed.recipe.batches(0, torch.Generator())))[0].shape == (8, 48, 3, 56)
    for training in (resident, streamed):
        training.train_epoch()
    assert streamed.curves == resident.curves
    assert streamed.evaluate() == resident.evaluate()


def test_bfloat16_trains_much_like_float32(folder):
    exact, rounded = (begun(tiny(folder, precision=precision)) for precision in ("32-true", "bf16-mixed"))
    losses = [training.train_epoch() for training in (exact, rounded)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


def test_a_seed_learns_the_two_photographs_apart(folder):
    training = begun(tiny(folder, epochs=6, learning_rate=1.0))
    losses = [training.train_epoch() for _ in range(6)]
    assert losses[-1] < losses[0] - 0.2


def test_what_is_kept_are_the_nearest_training_images(folder):
    training = begun(tiny(folder))
    training.model.eval()
    with torch.no_grad():
        kept = training.recipe.keep(training.model)
        bank, features = training.recipe.features(training.model)
    assert kept["features"].shape == (4, 512)
    assert kept["thumbnails"].shape == (4, 6, 64, 64, 3)
    assert kept["labels"].tolist() == [0, 0, 1, 1] == kept["thumbnail_labels"][:, 0].tolist()
    images = training.recipe.images
    cosine = normalize(features, dim=-1) @ normalize(bank, dim=-1).T
    nearest = cosine.argsort(descending=True)[:, :5]
    assert kept["thumbnail_labels"][:, 1:].tolist() == images.labels[nearest].tolist()
    # 48 x 56 pixels have their middle 48 x 48 enlarged to 64 x 64; the mean colour stays.
    middle = images.lines[20][:, :, 4:52].float().mean((0, 2))
    assert kept["thumbnails"][0, 0].mean((0, 1)).tolist() == pytest.approx(middle.tolist(), abs=3)


def test_only_the_first_seed_keeps_something(folder, tmp_path):
    for seed in (0, 1):
        train(tiny(folder, seed=seed, epochs=1), tmp_path / "checkpoints")
    (kept,) = (tmp_path / "embeddings").iterdir()
    assert kept.name == f"{tiny(folder, epochs=1).slug}.npz"


def test_a_batch_larger_than_the_data_and_no_data_are_refused(folder, tmp_path):
    with pytest.raises(BadInputError, match=r"batch_size must be at most 20, the number of training images"):
        train(tiny(folder, batch_size=21), tmp_path)
    with pytest.raises(BadInputError, match=r"the recipe images needs --data FOLDER"):
        train(tiny(None), tmp_path)
