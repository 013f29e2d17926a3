"""``taufree run --save-model``, ``embed`` and ``score``: a network that is kept, on new data."""

import csv
import json

import numpy as np
import pytest

from taufree.experiments.evaluation.report_arrays import load_arrays
from tests.support.command import invoke
from tests.support.photographs import write_folder

TINY = ["--epochs", "1", "--batch-size", "4", "--set", "crop=32", "--seeds", "1", "--links", "free"]
MSC = ["--set", "normal=temple", "--set", "backbone=resnet18", "--set", "weights=random"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Photographs, and the folders of runs that have kept their models, by recipe."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("models")
        patch.setenv("HOME", str(root / "home"))
        photos = write_folder(root / "photos")
        (photos / "temple" / "broken.jpg").write_bytes(b"no image")
        for recipe, more in (("msc", MSC), ("images", [])):
            arguments = ["--data", photos, "--device", "cpu", "--out", root / recipe, "--save-model"]
            found = invoke("run", recipe, *TINY, *more, *arguments)
            assert found.exit_code == 0, found.stderr
            assert f"Models: {root / recipe / 'models'}" in found.stdout
        yield root


def model_of(folder):
    (path,) = (folder / "models").glob("*.safetensors")
    return path


@pytest.mark.slow
def test_scores_of_the_test_images_are_those_of_the_training(trained, tmp_path):
    found = invoke("score", model_of(trained / "msc"), trained / "photos", "--out", tmp_path / "new.csv")
    assert found.exit_code == 0, found.stderr
    assert found.stdout == f"24 scores: {tmp_path / 'new.csv'}\n"
    assert "1 of 25 images cannot be read and are left out: temple/broken.jpg." in found.stderr
    rows = list(csv.DictReader((tmp_path / "new.csv").open()))
    scores = {row["image"]: float(row["score"]) for row in rows}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    (known,) = (trained / "msc" / "scores").glob("*.csv")
    for row in csv.DictReader(known.open()):
        assert scores[row["image"]] == pytest.approx(float(row["score"]), abs=2e-5)


@pytest.mark.slow
def test_vectors_of_the_validation_images_are_those_of_the_training(trained, tmp_path):
    model = model_of(trained / "images")
    found = invoke("embed", model, trained / "photos", "--out", tmp_path / "new.npz")
    assert found.exit_code == 0, found.stderr
    assert found.stdout == f"24 vectors of 512 numbers: {tmp_path / 'new.npz'}\n"
    with np.load(tmp_path / "new.npz") as file:
        vectors = dict(zip(file["names"].tolist(), file["vectors"], strict=True))
    assert {name.split("/")[0] for name in vectors} == {"temple", "flower"}
    (path,) = (trained / "images" / "embeddings").glob("*.npz")
    for feature in load_arrays(path)["features"]:  # of some of these images, in half precision
        assert min(np.abs(feature - vector).max() for vector in vectors.values()) < 2e-2
    for suffix in (".npy", ".csv"):
        out = tmp_path / f"new{suffix}"
        assert invoke("embed", model, trained / "photos", "--out", out).exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "new.npy"), np.stack(list(vectors.values())))
    first = next(csv.DictReader((tmp_path / "new.csv").open()))
    assert first["name"] == next(iter(vectors))
    assert float(first["x511"]) == pytest.approx(float(vectors[first["name"]][511]), rel=1e-5)
    np.save(tmp_path / "labels.npy", np.arange(24) % 2)
    diagnosed = invoke(
        "diagnose", tmp_path / "new.npz", "--columns", "vectors", "--labels", tmp_path / "labels.npy",
        "--out", tmp_path / "diagnosis",
    )  # fmt: skip
    assert diagnosed.exit_code == 0, diagnosed.stderr


@pytest.mark.slow
def test_runs_that_were_trained_without_it_are_named(trained, tmp_path):
    out = trained / "images"
    lines = (out / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(lines)
    arguments = ["--data", trained / "photos", "--device", "cpu", "--out", tmp_path, "--save-model"]
    assert json.loads(lines)["recipe"] == "images"
    found = invoke("run", "images", *TINY, *arguments)
    assert found.exit_code == 0, found.stderr
    assert "1 of 1 runs have no model there, since they were trained without --save-model" in found.stderr


@pytest.mark.slow
def test_what_cannot_be_used_is_one_sentence(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    images, msc = (model_of(trained / name) for name in ("images", "msc"))
    for arguments, sentence in (
        (["score", images, trained / "photos"], "the recipe images has no scores for new data."),
        (["score", msc, "absent"], "No such folder: absent, which must hold images."),
        (["embed", msc, "empty"], "empty holds no images ("),
        (
            ["embed", msc, "empty", "--out", "a.txt"],
            "--out must end with one of .npz, .npy, .csv, got",
        ),
        (["embed", "absent", "empty"], "No such file: absent, which must hold a model"),
        (["embed", msc, "empty", "--device", "abacus"], "device must be one of auto, cpu, cuda, mps"),
    ):
        found = invoke(*arguments)
        assert found.exit_code == 2, found.stdout
        assert found.stderr.count("\n") == 1
        assert found.stderr.startswith(f"taufree: {sentence}")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
