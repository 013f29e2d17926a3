"""What makes a run the same run."""

import json
import os
import shutil
import sys

import pytest

from taufree.experiments.digits import DigitsSettings
from taufree.experiments.images.msc import MSCSettings
from taufree.experiments.images.simclr import SimCLRSettings
from taufree.experiments.registry import find_recipe
from taufree.experiments.sweep.results import line_key
from taufree.experiments.training.run import Run, run_slug, share_contents
from taufree.util.errors import BadInputError
from tests.support.paths import ROOT

CUBIC = """from taufree import Link

class Cubic(Link):
    def logit(self, cosine, gap, rise):
        return {factor} * cosine**3
"""


@pytest.fixture
def cubic(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "link_of_mine.py"
    path.write_text(CUBIC.format(factor=5))
    yield path
    sys.modules.pop("link_of_mine", None)


def test_a_link_of_ones_own_that_is_edited_is_another_run(cubic):
    def run():
        return Run("digits", "link_of_mine:Cubic", 0, DigitsSettings())

    first = run()
    assert first.key == run().key
    cubic.write_text(CUBIC.format(factor=50))
    assert run().key != first.key
    assert run().slug != first.slug  # nor does it go on from the other's checkpoint


@pytest.mark.parametrize("link", ["free", "0.5", "gain=2", "calibrated", "learnable"])
def test_links_of_the_package_have_no_source(link):
    assert "link_source" not in Run("digits", link, 0, DigitsSettings()).recorded_settings


def test_the_raw_results_are_still_those_of_their_runs():
    lines = map(json.loads, (ROOT / "benchmarks/results/digits.jsonl").read_text().splitlines())
    keys = {line_key(line) for line in lines}
    links = ("free", "0.1", "0.25", "0.5", "1", "learnable")
    assert keys == {Run("digits", link, seed, DigitsSettings()).key for link in links for seed in range(3)}


@pytest.fixture
def images(tmp_path):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                (folder / f"{number}.png").write_bytes(bytes([number]))
    return tmp_path / "images"


@pytest.mark.parametrize(
    ("recipe", "settings"), [("images", SimCLRSettings()), ("msc", MSCSettings(normal="cat"))]
)
def test_images_are_known_by_their_content_not_by_their_folder(images, recipe, settings):
    def run(data=images):
        return Run(recipe, "free", 0, settings, data=data)

    first = run()
    assert first.key == run().key
    assert str(images) not in first.key
    copy = shutil.copytree(images, images.parent / "copy")  # with the times of the files
    assert run(copy).key == first.key
    image = images / "test" / "dog" / "1.png"
    image.write_bytes(b"\7")
    os.utime(image, ns=(1, 1))
    assert run().key != first.key


@pytest.mark.parametrize("recipe", ["images", "msc"])
def test_images_that_are_not_there_are_refused_in_one_sentence(tmp_path, recipe):
    settings = MSCSettings() if recipe == "msc" else SimCLRSettings()
    with pytest.raises(BadInputError, match=r"^No such folder: .*none, which must hold images\.$"):
        Run(recipe, "free", 0, settings, data=tmp_path / "none").key  # noqa: B018


@pytest.mark.parametrize(
    ("recipe", "content"),
    {
        "images": "images",
        "msc": "images",
        "cifar10": "cifar10.npz",
        "imagenette": "imagenette2-160 with train and val, or tar files of them",
        "citeseer": "the Planetoid files in planetoid/CiteSeer/raw",
        "dcrec": "dcrec/beauty, two .inter files",
        "clip": "images and captions",
        "mabel": "snli or mnli .*",
        "sentences": "snli or mnli .*",
    }.items(),
)
def test_a_file_in_place_of_the_folder_is_named_with_what_the_folder_must_hold(tmp_path, recipe, content):
    file = tmp_path / "file"
    file.touch()
    sentence = rf"^{file} must be a folder that holds {content}, got a file\.$"
    kind = find_recipe(recipe)
    made = kind(kind.settings_type())
    with pytest.raises(ValueError, match=sentence):  # noqa: PT012  either says so before the runs begin
        made.check(file)
        made.content(file)


def test_runs_on_the_same_images_list_them_once(images):
    runs = [Run("images", "free", seed, SimCLRSettings(), data=images) for seed in range(2)]
    share_contents(runs)
    shutil.rmtree(images)
    assert runs[0].content == runs[1].content != None  # noqa: E711


def test_data_that_a_recipe_is_made_for_are_the_same_in_any_folder(tmp_path):
    def keys(recipe, settings, *folders):
        return {Run(recipe, "free", 0, settings, data=folder).key for folder in folders}

    (tmp_path / "cifar10.npz").touch()
    assert len(keys("imagenette", SimCLRSettings(), tmp_path / "a", tmp_path / "b", None)) == 1
    assert len(keys("msc", MSCSettings(), tmp_path, None)) == 1


def test_a_link_of_ones_own_leaves_the_names_of_files_valid():
    slugs = [run_slug("digits", link, 0, {}) for link in ("pack.mine:Cubic", "pack:mine.Cubic")]
    assert len(set(slugs)) == 2
    assert all(slug.startswith("digits-pack.mine.Cubic-seed0-") for slug in slugs)
