"""The Imagenette recipe: its layouts, the command line, and the real images where they are at hand."""

import json
import tarfile

import pytest

from taufree.experiments.images.imagenette import NAMES, Imagenette, find_imagenette
from taufree.experiments.images.simclr import SimCLRSettings
from taufree.experiments.recipe import choose_settings
from taufree.experiments.registry import find_recipe
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.command import invoke, shell
from tests.support.paths import DATA, ROOT, needs_data
from tests.support.photographs import write_folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path):
    """Folders named like two of Imagenette's classes, with photographs."""
    for part, count in (("train", 8), ("val", 4)):
        place = write_folder(tmp_path / "data" / "imagenette2-160" / part, count)
        (place / "temple").rename(place / "n03028079")
        (place / "flower").rename(place / "n01440764")
    return tmp_path / "data"


def test_the_quick_preset_changes_what_the_documentation_says_and_nothing_else():
    quick, seeds = choose_settings(find_recipe("imagenette"), "quick", {})
    full = SimCLRSettings()
    changed = {name: value for name, value in vars(quick).items() if value != getattr(full, name)}
    assert changed == {"epochs": 3, "batch_size": 64, "crop": 64, "subset": 256}
    assert seeds == 1
    page = " ".join((ROOT / "docs" / "results" / "images.md").read_text().split())
    assert "256 training and 256 validation images, 3 epochs, batches of 64, views of 64 pixels" in page


def test_tar_files_are_read_without_unpacking(folder, tmp_path):
    unpacked = Imagenette(SimCLRSettings(batch_size=4))
    unpacked.load(folder)
    packed = tmp_path / "packed" / "imagenette2-160"
    packed.mkdir(parents=True)
    for part in ("train", "val"):
        with tarfile.open(packed / f"{part}.tar", "w") as tar:
            tar.add(folder / "imagenette2-160" / part, f"imagenette2-160/{part}")
    recipe = Imagenette(SimCLRSettings(batch_size=4))
    recipe.load(packed.parent)
    assert recipe.images.classes == ("tench", "church") == unpacked.images.classes
    assert (recipe.images.lines == unpacked.images.lines).all()
    assert (recipe.images.training, len(recipe.images.labels)) == (16, 24)
    assert sorted(path.name for path in packed.iterdir()) == ["train.tar", "val.tar"]


def test_the_archive_as_it_is_downloaded_is_to_be_unpacked(tmp_path):
    (tmp_path / "imagenette2-160").mkdir()
    (tmp_path / "imagenette2-160" / "imagenette2-160.tgz").touch()
    with pytest.raises(ValueError, match=r"; imagenette2-160\.tgz is compressed: unpack it\.$"):
        Imagenette(SimCLRSettings()).check(tmp_path)


@pytest.mark.slow
def test_a_sweep_of_a_folder_with_a_damaged_image_from_the_shell(tmp_path):
    pictures = write_folder(tmp_path / "pictures", 12)
    (pictures / "temple" / "000.jpg").write_bytes(b"no picture")
    arguments = ["images", "--links", "free,0.5", "--seeds", "1", "--epochs", "1", "--batch-size", "8"]
    arguments += ["--device", "cpu", "--data", str(pictures), "--out", str(tmp_path / "out")]
    found = invoke("run", *arguments, columns=160)
    assert found.exit_code == 0, found.stderr
    sentence = "1 of 24 images cannot be read and are left out: temple/000.jpg."
    assert found.stderr.count(sentence) == 1
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["link"] for line in lines] == ["free", "0.5"]
    assert all(set(line["metrics"]) == {"knn", "best_knn", "linear"} for line in lines)
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in ("map-0", "map-1", "neighbours-0", "neighbours-1"))
    assert len(list((tmp_path / "out" / "embeddings").glob("*.npz"))) == 2


def test_bad_folders_are_one_sentence(folder, tmp_path):
    recipe = Imagenette(SimCLRSettings(batch_size=4))
    with pytest.raises(ValueError, match=r"^No such folder: .*, which must hold train and val, or tar files"):
        recipe.load(tmp_path)
    (tmp_path / "imagenette2-160").mkdir()
    with pytest.raises(ValueError, match=r"must hold train and val .* or tar files of them\."):
        recipe.load(tmp_path)
    (folder / "imagenette2-160" / "train" / "n03888257").mkdir()
    with pytest.raises(BadInputError, match=r"^[^\n]*train/n03888257 holds no images \([^\n]*\.$"):
        train(Run("imagenette", "free", 0, SimCLRSettings(batch_size=4), data=folder), tmp_path)


def test_without_torchvision_it_says_what_to_install():
    found = shell("run", "cifar10", before="sys.modules['torchvision'] = None")
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert found.stderr.strip().endswith('pip install "taufree[images]"')


@needs_data("imagenette2-160")
def test_the_real_images_are_all_there():
    found = find_imagenette(DATA / "imagenette2-160")
    assert found.classes == tuple(NAMES.values())
    assert (len(found.train), len(found.val)) == (9469, 3925)


@pytest.mark.slow
@needs_data("imagenette2-160")
def test_the_quick_preset_on_real_images(tmp_path):
    arguments = ["imagenette", "--preset", "quick", "--links", "free", "--epochs", "1", "--device", "cpu"]
    found = invoke("run", *arguments, "--data", DATA, "--out", tmp_path / "out", columns=160)
    assert found.exit_code == 0, found.stderr
    (line,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert line["settings"]["precision"] == "32-true"
    assert line["curves"]["candidates"] == 127
    # Ten classes of about 26 images; even a network that knows nothing sees colours.
    assert 10 < line["metrics"]["linear"] < 60
