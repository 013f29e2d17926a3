"""MSC: who is normal, the step, what is frozen, the scores, resuming, folders, and the command line."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from taufree import LogOdds, Temperature, nt_xent
from taufree.experiments.images.imagenette import find_imagenette
from taufree.experiments.images.msc import MSC, MSCSettings
from taufree.experiments.recipe import choose_settings
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.cifar import write_cifar
from tests.support.command import invoke
from tests.support.paths import DATA, ROOT, needs_data
from tests.support.photographs import write_folder
from tests.support.training import begun

WEIGHTS = DATA / "weights" / "resnet50_v1_imagenet.safetensors"
TINY = {"epochs": 2, "batch_size": 4, "crop": 32, "backbone": "resnet18", "weights": "random"}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """A hundred images of noise to train with, thirty to test, in CIFAR-10's layout."""
    return write_cifar(tmp_path_factory.mktemp("cifar"), 100, 30)


def tiny(data, link="free", device="cpu", **changes):
    return Run("msc", link, 0, MSCSettings(**{**TINY, **changes}), device=device, data=data)


def test_the_defaults_are_the_papers_recipe():
    chosen = MSCSettings()
    assert (chosen.epochs, chosen.batch_size, chosen.crop, MSC(chosen).resize) == (25, 32, 224, 256)
    assert (chosen.learning_rate, chosen.weight_decay, chosen.neighbours) == (1e-5, 5e-5, 2)
    assert (chosen.backbone, chosen.weights, chosen.angular) == ("resnet152", "imagenet", False)
    assert (chosen.protocol, MSC.smallest, chosen.blur) == ("one-normal", 0.2, 0.5)


def test_the_quick_preset_changes_what_the_documentation_says_and_nothing_else():
    quick, seeds = choose_settings(MSC, "quick", {})
    changed = {name: value for name, value in vars(quick).items() if value != getattr(MSCSettings(), name)}
    assert changed == {
        "epochs": 1, "batch_size": 16, "crop": 64, "subset": 64, "backbone": "resnet18", "weights": "random",
    }  # fmt: skip
    assert seeds == 1
    page = " ".join((ROOT / "docs" / "results" / "anomalies.md").read_text().split())
    assert "64 normal and 64 test images, one epoch, batches of 16, views of 64 pixels" in page


@pytest.mark.parametrize(
    ("protocol", "trained"), [("one-normal", {3}), ("one-anomalous", set(range(10)) - {3})]
)
def test_the_protocol_says_who_is_normal(cifar, protocol, trained):
    recipe = MSC(MSCSettings(**TINY, normal="cat", protocol=protocol))
    recipe.load(cifar)
    images = recipe.images
    assert set(images.labels[: images.training].tolist()) == trained
    assert images.training == 10 * len(trained)
    tested = images.labels[images.training :]
    assert tested.bincount().tolist() == [3] * 10
    assert recipe._anomalous.tolist() == [label not in trained for label in tested.tolist()]


@pytest.mark.parametrize("link", [LogOdds(), Temperature(0.25)])
def test_a_step_compares_directions_seen_from_the_centre(cifar, link):
    plain, angular = (begun(tiny(cifar, angular=angular)) for angular in (False, True))
    recipe = plain.recipe
    with torch.no_grad():
        bank, _ = recipe.features(plain.weights)
        assert torch.allclose(bank.norm(dim=-1), torch.ones(len(bank)))
        batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
        a, b = plain.weights(recipe.views(batch)).chunk(2)
    mean = bank.mean(0)
    expected = nt_xent(a - mean, b - mean, link=link).item()
    step = recipe.step(plain.weights, batch, link)
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)
    assert step.observation.candidates == 7
    # All features point much the same way; only from the centre do the cosines spread.
    assert normalize(a, dim=-1).mm(normalize(a, dim=-1).T).min() > 0.9
    assert step.observation.negative.min() < 0
    pole = normalize(mean, dim=-1)
    expected = nt_xent(a - pole, b - pole, link=link) + 2 * (1 - a @ pole).mean() + 2 * (1 - b @ pole).mean()
    found = angular.recipe.step(angular.weights, batch, link).loss.item()
    assert found == pytest.approx(expected.item(), rel=1e-4)


def test_the_first_half_and_all_statistics_stay_and_the_second_half_learns(cifar):
    training = begun(tiny(cifar, learning_rate=0.1))
    before = {name: value.clone() for name, value in training.weights.state_dict().items()}
    training.train_epoch()
    after = training.weights.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {
        name
        for name in before
        if name.startswith("trained") and not name.endswith(("running_mean", "running_var", "tracked"))
    }
    assert not any(module.training for module in training.weights.modules())
    assert all(weight.grad is None for weight in training.weights.frozen.parameters())


def test_a_score_is_the_sum_of_the_two_smallest_squared_distances(cifar, tmp_path, monkeypatch):
    run = tiny(cifar, learning_rate=1e-3)
    training = begun(run)
    untrained = auc(*brute(training))
    for _ in range(2):
        training.train_epoch()
    found = training.evaluate()
    scores, anomalous = brute(training)
    assert found["auc"] == pytest.approx(auc(scores, anomalous), abs=1e-9)
    assert found["gain"] == pytest.approx(found["auc"] - untrained, abs=1e-9)
    with monkeypatch.context() as windows:
        windows.setattr("os.linesep", "\r\n")  # which is put in where text is written, and nowhere before
        training.list_scores(tmp_path / "scores.csv")
    assert b"\r" not in (tmp_path / "scores.csv").read_bytes()
    rows = list(csv.DictReader((tmp_path / "scores.csv").open()))
    assert list(rows[0]) == ["image", "class", "anomalous", "score"]
    written = np.array([float(row["score"]) for row in rows])
    assert np.array_equal(written, np.sort(written)[::-1])
    assert written == pytest.approx(np.sort(scores)[::-1], abs=2e-6)
    # Test images are written by class, 0 to 9 and again.
    assert all(row["class"] == training.recipe.images.classes[int(row["image"][5:]) % 10] for row in rows)
    assert {row["class"] for row in rows if row["anomalous"] == "0"} == {"airplane"}


def brute(training):
    with torch.no_grad():
        bank, features = (part.double() for part in training.recipe.features(training.weights))
    squared = (features[:, None] - bank).square().sum(-1)
    return squared.sort(dim=1).values[:, :2].sum(1).numpy(), training.recipe._anomalous


def auc(scores, anomalous):
    pairs = scores[anomalous][:, None] - scores[~anomalous]
    return 100 * ((pairs > 0).mean() + (pairs == 0).mean() / 2)


@pytest.mark.parametrize("link", ["free", "learnable"])
def test_a_broken_off_run_goes_on_bit_for_bit(tmp_path, cifar, link):
    run = tiny(cifar, link, learning_rate=0.01, angular=link == "free")
    whole, broken, resumed = (begun(run) for _ in range(3))
    for training in (whole, whole, broken):
        training.train_epoch()
    broken.save(Checkpoint(tmp_path))
    resumed.restore(Checkpoint(tmp_path))
    resumed.train_epoch()
    assert resumed.curves == whole.curves
    assert resumed.evaluate() == whole.evaluate()


def test_runs_of_the_same_shapes_share_what_was_compiled(cifar):
    seen = []

    def compiler(graph, inputs):
        seen.append(graph)
        return graph.forward

    def graphs(**changes):
        training = begun(tiny(cifar, epochs=1, **changes))
        training.recipe._share_graphs(training.weights)
        for part in training.recipe.compiled(training.weights):
            part.compile(dynamic=False, backend=compiler)
        training.train_epoch()
        training.evaluate()
        return len(seen)

    # The frozen half for both, the other half for training and for scoring.
    assert graphs() == 3
    assert graphs(normal="cat", learning_rate=0.1) == 3
    assert graphs(batch_size=5) == 6


def test_what_is_kept_are_the_extremes(cifar):
    training = begun(tiny(cifar))
    training.evaluate()
    recipe = training.recipe
    kept = recipe.keep(training.model)
    assert recipe._anomalous.sum() == 27  # of 30
    assert kept["thumbnails"].shape == (2, 24, 64, 64, 3)
    order = np.argsort(recipe._distances.numpy())
    # Not more than there are normal ones: of 24, a perfect detector too would have 21 on the wrong side.
    assert kept["anomalous"].tolist() == [
        recipe._anomalous[order[::-1][:24]].tolist(),
        recipe._anomalous[order[:3]].tolist() + [False] * 21,
    ]
    assert (kept["thumbnails"][1, 3:] == 255).all()
    assert (kept["thumbnails"][1, :3] != 255).any(axis=(1, 2, 3)).all()


def test_a_perfect_detector_has_no_frames(cifar):
    training = begun(tiny(cifar))
    training.evaluate()
    recipe = training.recipe
    recipe._distances = torch.as_tensor(recipe._anomalous, dtype=torch.float32)
    assert recipe.keep(training.model)["anomalous"].tolist() == [[True] * 24, [False] * 24]


def test_weights_that_are_not_there_are_seen_before_the_runs_begin(tmp_path):
    with pytest.raises(ValueError, match=r"weights must be imagenet, random or a file, got '.*absent\.pt'"):
        MSC(MSCSettings(weights=str(tmp_path / "absent.pt"))).check(None)
    MSC(MSCSettings(weights="random")).check(None)


def test_other_weights_in_the_same_file_are_another_run(tmp_path):
    for part in ("train", "test"):
        write_folder(tmp_path / "pictures" / part, 4)
    weights = tmp_path / "weights.pt"
    for data, normal in ((None, "airplane"), (tmp_path / "pictures", "temple")):
        found = set()
        for content in (b"one", b"other", b"one"):
            weights.write_bytes(content)
            found.add(tiny(data, weights=str(weights), normal=normal).key)
        assert len(found) == 2
    with pytest.raises(BadInputError, match=r"^weights must be imagenet, random or a file, got '.*absent"):
        assert tiny(None, weights=str(tmp_path / "absent.pt")).key


@pytest.mark.slow
def test_a_folder_from_the_shell(tmp_path):
    for part, count in (("train", 8), ("test", 4)):
        write_folder(tmp_path / "pictures" / part, count)
    for path in (tmp_path / "pictures" / "train" / "flower").iterdir():
        path.unlink()
    (tmp_path / "pictures" / "train" / "flower").rmdir()  # nobody has anomalies to train with
    (tmp_path / "pictures" / "test" / "flower" / "001.jpg").write_bytes(b"no picture")
    arguments = ["--preset", "quick", "--batch-size", "4", "--links", "free", "--device", "cpu"]
    arguments += ["--data", tmp_path / "pictures", "--set", "normal=temple", "--out", tmp_path / "out"]
    found = invoke("run", "msc", *arguments, columns=160)
    assert found.exit_code == 0, found.stderr
    assert "1 of 16 images cannot be read and are left out: test/flower/001.jpg." in found.stderr
    assert "starts from random weights" in found.stderr
    (line,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert (line["settings"]["normal"], line["curves"]["candidates"]) == ("temple", 7)
    (scores,) = (tmp_path / "out" / "scores").iterdir()
    rows = list(csv.DictReader(scores.open()))
    assert {row["image"] for row in rows} == {
        f"test/{name}"
        for name in [*(f"flower/00{i}.jpg" for i in (3, 5, 7)), *(f"temple/00{i}.jpg" for i in (0, 2, 4, 6))]
    }
    assert all((row["class"] == "flower") == (row["anomalous"] == "1") for row in rows)
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'id="extremes-0"' in page
    assert "What the network finds normal" in page


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"normal": "zebra"}, r"normal must be one of airplane, .*, truck, got 'zebra'\."),
        ({"batch_size": 11}, r"batch_size must be at most 10, the number of training images, got 11\."),
        ({"weights": "absent.pt"}, r"weights must be imagenet, random or a file, got 'absent\.pt'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(cifar, tmp_path, given, sentence):
    with pytest.raises(BadInputError, match=sentence):
        train(tiny(cifar, **given), tmp_path)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"protocol": "two"}, r"protocol must be one of one-normal, one-anomalous, got 'two'\."),
        ({"backbone": "resnet34"}, r"backbone must be one of resnet152, .*, got 'resnet34'\."),
    ],
)
def test_settings_that_do_not_exist_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        MSCSettings(**given)


@needs_data("imagenette2-160", f"weights/{WEIGHTS.name}")
def test_a_trained_network_tells_a_fish_from_a_church(tmp_path):
    listing = find_imagenette(DATA / "imagenette2-160")
    wanted = {"tench": (listing.train, 12, 6), "church": (listing.val, 0, 6)}
    for name, (files, training, test) in wanted.items():
        mine = [file for file in files if file.label == listing.classes.index(name)]
        for number, file in enumerate(mine[: training + test]):
            path = tmp_path / "data" / ("train" if number < training else "test") / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.read())
    settings = {"backbone": "resnet50-v1", "weights": str(WEIGHTS), "crop": 96, "normal": "tench"}
    training = begun(tiny(tmp_path / "data", epochs=1, **settings))
    assert training.recipe._untrained > 95
    assert training.train_epoch() < np.log(7)
    assert training.evaluate()["auc"] > 95


def test_a_folder_that_cannot_even_be_named_is_no_cifar10():
    with pytest.raises((ValueError, OSError)):
        MSC(MSCSettings()).content(Path("x" * 300))
