"""``taufree.compare``: a function of one's own with each link, as ``taufree run`` does with a recipe."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import taufree
from taufree.experiments.sweep import driver
from tests.support.command import ENVIRONMENT, invoke
from tests.support.paths import ROOT
from tests.support.sweeps import read


def train(link, seed, epochs=2, noise=0.1):
    rows = torch.nn.Parameter(torch.randn(16, 8))
    optimizer = torch.optim.SGD([rows, *link.parameters()], lr=0.1)
    for _ in range(epochs):
        loss = taufree.nt_xent(rows, rows + noise * torch.randn(16, 8), link=link)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"loss": loss, "spread": np.float64(-torch.cosine_similarity(rows[:8], rows[8:]).mean().item())}


def start(link, seed):
    """What the global generators give."""
    return {"drawn": torch.rand(()), "number": float(np.random.rand())}


def kept(link, seed, folder, epochs=4):
    """Each epoch is saved, and whatever it yielded."""
    rows, file, history = torch.nn.Parameter(torch.randn(16, 8)), folder / "state.pt", []
    optimizer = torch.optim.Adam([rows, *link.parameters()], lr=0.1)
    if file.exists():
        with torch.no_grad():
            saved, link_state, optimizer_state, history = torch.load(file)
            rows.copy_(saved)
        link.load_state_dict(link_state)
        optimizer.load_state_dict(optimizer_state)
        yield from history
    for epoch in range(len(history), epochs):
        torch.manual_seed(1000 * seed + epoch)
        loss = taufree.nt_xent(rows, rows + 0.1 * torch.randn(16, 8), link=link)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append({"loss": loss.item(), "norm": rows.norm().item()})
        torch.save((rows, link.state_dict(), optimizer.state_dict(), history), folder / "draft.pt")
        (folder / "draft.pt").replace(file)
        yield history[-1]


class Cubic(taufree.Temperature):
    def __init__(self):
        super().__init__(0.3)


def test_lines_table_and_report(tmp_path):
    links = ["free", 0.5, "learnable", Cubic]
    found = taufree.compare(train, links, seeds=3, out=tmp_path, settings={"epochs": 2})
    lines = read(tmp_path)
    own = f"{__name__}:Cubic"
    assert [(line["link"], line["seed"]) for line in lines] == [
        (link, seed) for seed in range(3) for link in ("free", "0.5", "learnable", own)
    ]
    assert found.lines == lines
    assert found.failed == {}
    first = lines[0]
    assert first["recipe"] == f"{__name__}:train"
    assert first["settings"].keys() == {"epochs", "source"}
    assert list(first["metrics"]) == ["spread"]  # the loss is a curve
    assert first["curves"].keys() == {"loss", "spread", "temperature_at_zero"}
    assert [len(curve) for curve in first["curves"].values()] == [2, 2, 2]
    assert first["metrics"]["spread"] == first["curves"]["spread"][-1]
    assert lines[2]["curves"]["temperature_at_zero"][0] != 0.5
    assert found.table().startswith("| link | spread |")
    assert any(sentence.startswith("spread: free minus tau 0.5 is") for sentence in found.verdicts)
    assert "train of" in (tmp_path / "report.html").read_text()
    shown = invoke("table", tmp_path, "--format", "csv")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout == found.table("csv")
    assert invoke("report", tmp_path).exit_code == 0


def test_seeds_are_paired(tmp_path):
    taufree.compare(start, "free,0.5,1", seeds=[4, 7], out=tmp_path)
    drawn = {}
    for line in read(tmp_path):
        drawn.setdefault(line["seed"], set()).add(tuple(line["metrics"].values()))
    assert [len(of_seed) for of_seed in drawn.values()] == [1, 1]
    assert drawn[4] != drawn[7]


def test_what_is_done_is_not_done_again(tmp_path):
    calls = []

    def counted(link, seed, size=1):
        calls.append(seed)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"metric": seed}

    with pytest.raises(KeyboardInterrupt):
        taufree.compare(counted, ["free", 0.5], seeds=2, out=tmp_path)
    assert len(read(tmp_path)) == 2
    taufree.compare(counted, ["free", 0.5], seeds=2, out=tmp_path)
    assert calls == [0, 0, 1, 1, 1]
    taufree.compare(counted, ["free", 0.5], seeds="1:3", out=tmp_path)
    assert calls[5:] == [2, 2]
    assert len(taufree.compare(counted, "free", 1, tmp_path, settings={"size": 2}).lines) == 1
    taufree.compare(counted, "free", 1, tmp_path, fresh=True)
    assert calls[7:] == [0, 0]


def test_an_interrupted_run_goes_on_from_its_folder(tmp_path):
    folders, trained = [], []

    def breaking(link, seed, folder):
        folders.append(folder)
        for epoch, given in enumerate(kept(link, seed, folder), start=1):
            trained.append(epoch)
            if trained[-3:] == [1, 2, 3] and len(folders) == 3:
                raise KeyboardInterrupt
            yield given

    with pytest.raises(KeyboardInterrupt):
        taufree.compare(breaking, ["learnable", 0.5], 2, tmp_path / "out")
    assert len(set(folders)) == 3
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == [folders[2].parent]
    assert (folders[2] / "state.pt").exists()
    assert len(read(tmp_path / "out")) == 2
    found = taufree.compare(breaking, ["learnable", 0.5], 2, tmp_path / "out").lines
    assert folders[2:4] == [folders[2]] * 2
    assert not (tmp_path / "out" / "checkpoints").exists()
    folders += [None] * 3  # is not interrupted any more
    whole = taufree.compare(breaking, ["learnable", 0.5], 2, tmp_path / "whole").lines
    assert [line["curves"] for line in found] == [line["curves"] for line in whole]
    assert [line["metrics"] for line in found] == [line["metrics"] for line in whole]


def test_the_guides_function_goes_on(tmp_path):
    page = (ROOT / "docs" / "guide" / "compare.md").read_text()
    (code,) = [
        code for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "folder," in code
    ]
    guide = {}
    exec(code, guide)

    def begun(folder):
        folder.mkdir(exist_ok=True)
        torch.manual_seed(0)
        return guide["train"](taufree.LearnableTemperature(), 0, folder)

    whole = list(begun(tmp_path / "whole"))
    broken = begun(tmp_path / "broken")
    assert [next(broken), next(broken)] == whole[:2]
    assert list(begun(tmp_path / "broken")) == whole
    assert len(whole) == 5


def test_a_folder_is_for_who_asks_for_one(tmp_path):
    def saves(link, seed, folder=None):
        return {"has": folder is not None and folder.is_dir()}

    def reads(link, seed, folder="data"):
        return {"has": folder != "data"}

    def takes_all(link, seed, **folder):
        return {"has": len(folder)}

    def has(train, **more):
        (line,) = taufree.compare(train, "free", 1, tmp_path, **more).lines
        return line["metrics"]["has"]

    assert [has(saves), has(reads), has(takes_all)] == [1, 0, 0]
    assert has(reads, settings={"folder": "other"}) == 1
    with pytest.raises(RuntimeError, match="'str' object has no attribute 'is_dir'"):
        has(saves, settings={"folder": "mine"})


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capsys):
    def failing(link, seed):
        if isinstance(link, taufree.Temperature):
            raise OSError("no disk")
        return {"metric": float("nan") if seed else 1.0}

    found = taufree.compare(failing, ["free", 0.5], seeds=2, out=tmp_path)
    assert [(line["link"], line["seed"]) for line in found.lines] == [("free", 0)]
    assert found.failed.keys() == {("0.5", 0), ("0.5", 1), ("free", 1)}
    assert found.failed["free", 1] == "metric became nan."
    assert "OSError: no disk" in found.failed["0.5", 0]
    assert "tau 0.5, seed 0 failed" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match=r"all 1 runs failed; 0\.5, seed 0: "):
        taufree.compare(failing, [0.5], 1, tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"train": 3}, "train must be a function of a link and a seed, got int."),
        ({"train": lambda link: {}}, "train must take a link, a seed and the settings, but too many"),
        ({"settings": {"no": 1}}, "train must take a link, a seed and the settings, but got an unexpected"),
        ({"settings": {"noise": {1}}}, "settings must be what JSON can write, but "),
        ({"links": "warm"}, "links must be free, fitted, .* got 'warm'."),
        ({"links": [taufree.LogOdds(2.0)]}, "links must be names, temperatures or classes, got LogOdds"),
        ({"seeds": 0}, "seeds must be a number from 1 to 10000, or FIRST:END"),
        ({"train": max}, "train must take a link, a seed and the settings, but no signature found"),
        ({"links": None}, "links must be names, temperatures or classes, got None."),
        ({"out": 5}, "out must be the path of a folder, got int."),
        ({"seeds": None}, "seeds must be a number of them or integers of at least 0, got None."),
        ({"seeds": [True]}, "seeds must be a number of them or integers of at least 0, got"),
        ({"seeds": [0.5]}, "seeds must be a number of them or integers of at least 0, got"),
        ({"workers": -1}, "workers must be at least 0, got -1."),
        (
            {"storage": "x", "train": kept},
            "storage needs the address of a Ray cluster as workers and a train",
        ),
        ({"storage": "x", "workers": "auto"}, "storage needs the address of a Ray cluster as workers and a"),
        (
            {"train": lambda link, folder, seed: {}},
            "train must take a link, a seed and the settings, but mult",
        ),
        ({"workers": 1, "train": lambda link, seed: {}}, "train must be a function of a module or a script"),
        ({"train": lambda link, seed: 3}, "train must give a dictionary of metrics, or yield one an epoch"),
        ({"train": lambda link, seed: {"a": "b"}}, "train must give numbers, got str as a."),
        ({"train": lambda link, seed: {"loss": 1}}, "train must give at least one metric beside loss"),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path, arguments, sentence):
    given = {"train": train, "links": "free", "seeds": 1, "out": tmp_path} | arguments
    with pytest.raises(ValueError, match=f"^{sentence}"):
        taufree.compare(**given)


@pytest.mark.parametrize("seeds", [np.int64(2), np.arange(2), "2"])
def test_one_link_needs_no_list_and_seeds_may_be_numpys(tmp_path, seeds):
    found = taufree.compare(lambda link, seed: {"metric": 1.0}, 0.5, seeds, tmp_path)
    assert [(line["link"], line["seed"]) for line in found.lines] == [("0.5", 0), ("0.5", 1)]


def test_metrics_have_any_name(tmp_path):
    """As retrieval and Lightning name them; ids and files of the report are words."""

    def train(link, seed):
        yield {"recall@10": 1.0 * seed, "val/acc": 2.0, "val acc": 3.0, "": 4.0}
        yield {"recall@10": 2.0 * seed, "val/acc": 2.0, "val acc": 3.0, "": 4.0}

    found = taufree.compare(train, ["free", 0.5], 3, tmp_path / "one")
    assert "recall@10" in found.table()
    page = found.report.read_text()
    assert 'id="accuracy-recall_40_10"' in page
    assert 'id="curve-val_2f_acc"' in page
    assert (
        invoke("report", tmp_path / "one", tmp_path / "one", "--out", tmp_path / "both.html").exit_code == 0
    )


def test_where_the_function_goes_the_results_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train(link, seed):
        os.chdir(tmp_path.parent)
        return {"metric": 1.0}

    found = taufree.compare(train, "free", 2, "out")
    assert found.report == tmp_path / "out" / "report.html"
    assert found.report.exists()


def test_a_damaged_record_of_the_past_is_forgotten(tmp_path):
    def breaking(link, seed, folder):
        for epoch, given in enumerate(kept(link, seed, folder)):
            if epoch == 2 and not (folder / "again").exists():
                (folder / "again").touch()
                raise KeyboardInterrupt
            yield given

    with pytest.raises(KeyboardInterrupt):
        taufree.compare(breaking, "free", 1, tmp_path)
    (past,) = tmp_path.rglob("past.json")
    past.write_text("null")
    found = taufree.compare(breaking, "free", 1, tmp_path)
    assert len(found.lines[0]["curves"]["norm"]) == 4


def test_epochs_that_were_not_announced_are_counted_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_LINES", 0.0)

    def train(link, seed, rounds=3, epochs=2):
        for _ in range(rounds):
            yield {"metric": 1.0}

    taufree.compare(train, "free", 1, tmp_path)
    said = capsys.readouterr().err
    assert "free, seed 0: epoch 2 of 2\n" in said
    assert "free, seed 0: epoch 3\n" in said


def test_ranks_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ValueError, match="compare must be called by one process, without torchrun"):
        taufree.compare(train, "free", 1, tmp_path)


SCRIPT = """
import sys
import taufree

def train(link, seed):
    yield {"loss": 1.0, "metric": 1.0}
    yield {"loss": 0.5, "metric": float(seed)}

if __name__ == "__main__":
    taufree.compare(train, "free,0.5", seeds=int(sys.argv[1]), out="out", workers=2)
"""


@pytest.mark.slow
def test_a_script_trains_in_processes_and_goes_on_with_more_seeds(tmp_path):
    def called(seeds):
        command = [sys.executable, "script.py", str(seeds)]
        environment = {**os.environ, **ENVIRONMENT}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    (tmp_path / "script.py").write_text(SCRIPT)
    assert called(1).returncode == 0
    (tmp_path / "script.py").write_text(SCRIPT + "    print('more')\n")
    again = called(2)
    assert again.returncode == 0, again.stderr
    assert "2 of 4 runs are already in" in again.stderr
    lines = read(tmp_path / "out")
    assert {line["recipe"] for line in lines} == {"script:train"}
    assert (
        sorted((line["seed"], line["metrics"]["metric"]) for line in lines) == [(0, 0.0)] * 2 + [(1, 1.0)] * 2
    )
    assert json.dumps(lines[0]["curves"]["loss"]) == "[1.0, 0.5]"


DYING_SCRIPT = """
import os
import taufree

def train(link, seed, folder):
    count = folder / "count"
    for epoch in range(int(count.read_text()) if count.exists() else 0, 4):
        with open("journal", "a") as file:
            file.write(f"{seed}{epoch} ")
        if seed == 1 and epoch == 2 and not os.path.exists("dead"):
            open("dead", "w").close()
            os._exit(7)
        count.write_text(str(epoch + 1))
        yield {"metric": epoch}

if __name__ == "__main__":
    print(taufree.compare(train, "free", seeds=2, out="out", workers=1).failed)
"""


@pytest.mark.slow
def test_a_process_that_dies_leaves_its_folder_to_the_next_call(tmp_path):
    (tmp_path / "script.py").write_text(DYING_SCRIPT)
    environment = {**os.environ, **ENVIRONMENT}

    def called():
        command = [sys.executable, "script.py"]
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout

    assert called() == "{('free', 1): 'its process ended with exit code 7'}\n"
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 1
    assert called() == "{}\n"
    assert (tmp_path / "journal").read_text() == "00 01 02 03 10 11 12 12 13 "
    assert not (tmp_path / "out" / "checkpoints").exists()
