"""``taufree recipes``, and a recipe of one's own: one file outside the package, trained by its name."""

import json

import pytest

from tests.support.command import shell

TOY = '''
"""Points on a circle, two noisy views of each."""
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import nn

from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.recipe import Recipe, Step
from taufree.experiments.settings import BatchSettings


@dataclass(frozen=True)
class ToySettings(BatchSettings):
    batch_size: int = 16
    noise: Annotated[float, "How far a view is from its point."] = 0.1
    twice: Annotated[bool, "Whether to double the loss."] = False


class Toy(Recipe):
    name = "toy"
    title = "a network on a circle"
    data_source = "Drawn when they are needed."
    settings_type = ToySettings
    metrics: ClassVar = {"kept": "% of the angles that the first feature tells apart"}

    def load(self, data):
        angle = torch.arange(64) * 0.1
        self.points = torch.stack([angle.cos(), angle.sin()], dim=1)

    def model(self):
        return nn.Linear(2, 4)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def batches(self, epoch, generator):
        for rows in torch.randperm(64, generator=generator).split(self.settings.batch_size):
            noise = self.settings.noise * torch.randn(2, len(rows), 2, generator=generator)
            yield tuple(self.points[rows] + noise)

    def step(self, model, batch, link):
        a, b = map(model, batch)
        loss = self.loss(a, b, link)
        return Step(loss * (2 if self.settings.twice else 1), observe_views(a, b, link))

    def evaluate(self, model):
        return {"kept": 100 * len(model(self.points)[:, 0].unique()) / 64}
'''


def taufree_command(folder, *arguments, before="pass"):
    """As the installed command: the current folder is not on the path."""
    return shell(*arguments, before=f"sys.path.remove(''); {before}", cwd=folder)


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


def results(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_one_file_outside_the_package_is_trained_by_its_name(toy):
    arguments = ["--links", "free,0.5", "--seeds", "2", "--epochs", "2", "--set", "noise=0.3"]
    found = taufree_command(toy, "run", "toy", *arguments, "--device", "cpu")
    assert found.returncode == 0, found.stderr
    out = toy / "runs" / "toy"
    lines = results(out)
    assert {(line["recipe"], line["link"], line["seed"]) for line in lines} == {
        ("toy", link, seed) for link in ("free", "0.5") for seed in (0, 1)
    }
    assert all(line["settings"]["noise"] == 0.3 and len(line["curves"]["loss"]) == 2 for line in lines)
    assert "toy: mean ± std over seeds" in found.stdout
    assert "kept: free minus tau 0.5 is" in found.stdout
    assert "a network on a circle" in (out / "report.html").read_text(encoding="utf-8")
    again = taufree_command(toy, "run", "toy.py", *arguments, "--device", "cpu")
    assert "4 of 4 runs are already in" in again.stderr
    # Another version of the file is another recipe.
    (toy / "toy.py").write_text(TOY.replace("lr=0.1", "lr=0.2"))
    changed = taufree_command(toy, "run", "toy", *arguments, "--device", "cpu", "--seeds", "1")
    assert changed.returncode == 0, changed.stderr
    assert len(results(out)) == 6
    assert len({line["settings"]["source"] for line in results(out)}) == 2


def test_a_file_in_another_folder_is_trained_by_its_path(toy, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = ["--links", "free", "--epochs", "1", "--set", "twice=true", "--device", "cpu", "--out", "out"]
    found = taufree_command(elsewhere, "run", str(toy / "toy.py"), *arguments)
    assert found.returncode == 0, found.stderr
    assert all(line["recipe"] == "toy" and line["settings"]["twice"] for line in results(elsewhere / "out"))


def test_it_is_shown_with_its_settings(toy):
    found = taufree_command(toy, "recipes", "toy")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("toy: a network on a circle\n")
    assert "Data: Drawn when they are needed." in found.stdout
    for words in ("noise", "0.1", "How far a view is from its point.", "Pairs in a batch.", "twice", "false"):
        assert words in found.stdout
    assert "Example: taufree run toy --preset quick" in found.stdout


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("toy", TOY.replace('name = "toy"', 'name = "top"'), "must have the name 'toy', got 'top'."),
        ("toy", TOY.replace('    title = "a network on a circle"\n', ""), "must have title."),
        ("toy", TOY + "\nclass More(Toy):\n    pass\n", "must define one recipe, or name it RECIPE, got 2"),
        ("toy", "import absent\n", "cannot be imported: ModuleNotFoundError: No module named 'absent'."),
        ("json", TOY, "json.py has the name of another Python module; rename it."),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(tmp_path, name, text, sentence):
    (tmp_path / f"{name}.py").write_text(text)
    found = taufree_command(tmp_path, "recipes", name)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert sentence in found.stderr


def test_the_list_needs_no_library_of_a_recipe(tmp_path):
    found = taufree_command(tmp_path, "recipes", before="sys.modules['torch_geometric'] = None")
    assert found.returncode == 0, found.stderr
    rows = {row.split()[1]: row for row in found.stdout.splitlines() if row.startswith("│")}
    assert "SimCLR on Imagenette" in rows["imagenette"]
    assert 'needs torch_geometric: pip install "taufree[graph]"' in rows["citeseer"]
    alone = taufree_command(
        tmp_path,
        before="from taufree.experiments.registry import recipe_names; "
        "assert 'citeseer' in recipe_names(); "
        "assert not {'sklearn', 'torchvision', 'torch_geometric'} & sys.modules.keys(); sys.exit(7)",
    )
    assert alone.returncode == 7, alone.stderr


def test_one_recipe_is_shown_with_its_choices_and_an_example(tmp_path):
    found = taufree_command(tmp_path, "recipes", "citeseer")
    assert "Must be one of nt-xent, pygcl." in " ".join(found.stdout.replace("│", " ").split())
    assert "Example: taufree run citeseer --links free,0.5 --set mask=pygcl" in found.stdout
    assert "Preset quick: 2 seeds, epochs=3, probe_epochs=500" in found.stdout
