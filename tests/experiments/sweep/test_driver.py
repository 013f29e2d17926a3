"""The sweep: killed in the middle it loses nothing, and what is done is not done again."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

import taufree
from taufree.experiments.digits import DigitsSettings
from taufree.experiments.registry import find_recipe
from taufree.experiments.sweep import driver
from taufree.experiments.sweep.driver import Display, sweep
from taufree.experiments.sweep.events import Event
from taufree.experiments.sweep.results import KEYS, OBJECTS
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.processes import wait_until

RUN = Run("digits", "learnable", 3, DigitsSettings(epochs=8, batch_size=256))
TINY = DigitsSettings(epochs=1, batch_size=128)
# A checkpoint after every epoch, so that the kill falls between two of them, or into one.
SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from taufree.experiments.digits import DigitsSettings
from taufree.experiments.training.run import Run
from taufree.experiments.sweep.driver import sweep

if __name__ == "__main__":
    run = Run("digits", "learnable", 3, DigitsSettings(epochs=8, batch_size=256))
    sweep([run], Path(sys.argv[1]), console=Console(stderr=True), every=0)
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_result_bit_for_bit(tmp_path):
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": str(Path(taufree.__file__).parents[1])}
    command = [sys.executable, "-c", SCRIPT, str(out)]
    process = subprocess.Popen(command, env=environment)
    wait_until(lambda: list(out.glob("checkpoints/*/epoch-[3-6]")), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "results.jsonl").exists()
    (left,) = (out / "checkpoints").iterdir()
    assert left.name.startswith("digits-learnable-seed3-")

    sweep([RUN], out, console=Console(stderr=True), every=0)
    (resumed,) = map(json.loads, (out / "results.jsonl").read_text().splitlines())
    assert not (out / "checkpoints").exists()
    # Sums depend on the number of threads, which the sweep sets to that of the cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(resumed["hardware"]["threads"])
    try:
        whole = train(RUN, tmp_path / "whole")
    finally:
        torch.set_num_threads(threads)
    assert {key: resumed[key] for key in KEYS if key != "seconds"} == {
        key: whole[key] for key in KEYS if key != "seconds"
    }


def line_of(run):
    """A line that a run might have left."""
    blank = {**dict.fromkeys(KEYS, 0), **{key: {} for key in OBJECTS}, "metrics": {"knn": 1.0}}
    return blank | {
        "recipe": run.recipe, "link": run.link, "seed": run.seed, "settings": run.recorded_settings
    }  # fmt: skip


@pytest.mark.slow
def test_what_is_there_is_not_run_again_and_damage_is_repaired(tmp_path):
    runs = [Run("digits", link, seed, TINY) for seed in (0, 1) for link in ("free", "0.5")]
    path, log = tmp_path / "results.jsonl", io.StringIO()
    console = Console(file=log, width=200)
    there, damaged, last = (json.dumps(line_of(run)) for run in (runs[0], runs[1], runs[3]))
    path.write_text("\n".join([there, damaged[:100], last]) + "\n")
    told = []
    first = sweep(runs, tmp_path, console=console, on_result=told.append)
    assert f"{path}:2: this line is not whole JSON" in log.getvalue()
    assert (tmp_path / "results.damaged.jsonl").read_text() == damaged[:100] + "\n"
    assert "2 of 4 runs are already in" in log.getvalue()
    assert (first.done, first.failed, first.interrupted) == (4, {}, False)
    assert log.getvalue().count(" s)\n") == 2
    assert [(line["link"], line["seed"]) for line in told] == [("0.5", 0), ("free", 1)]
    assert first.lines == [line_of(runs[0]), line_of(runs[3]), *told]
    before = path.read_text()
    assert list(map(json.loads, before.splitlines())) == first.lines

    again = sweep(runs, tmp_path, console=console)
    assert "4 of 4 runs are already in" in log.getvalue()
    assert path.read_text() == before
    assert again.lines == first.lines


@pytest.mark.slow
def test_fresh_runs_are_run_again_and_go_on_without_it(tmp_path):
    runs = [Run("digits", link, 0, TINY) for link in ("free", "0.5")]
    other = Run("digits", "1", 0, TINY)
    path, log = tmp_path / "results.jsonl", io.StringIO()
    old = [line_of(run) for run in (*runs, other)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    left = tmp_path / "checkpoints" / runs[1].slug / "epoch-1"
    left.mkdir(parents=True)

    def stop(line):
        raise KeyboardInterrupt

    console = Console(file=log, width=500)
    stopped = sweep(runs, tmp_path, console=console, fresh=True, on_result=stop)
    assert stopped.interrupted
    assert f"2 of 2 runs were in {path}; they are set aside in" in log.getvalue()
    assert not left.exists()
    aside = (tmp_path / "results.replaced.jsonl").read_text().splitlines()
    assert list(map(json.loads, aside)) == old[:2]
    rest = sweep(runs, tmp_path, console=console)
    assert "1 of 2 runs are already in" in log.getvalue()
    assert {line["link"] for line in rest.lines} == {"free", "0.5", "1"}
    assert all(line["metrics"]["knn"] != 1.0 for line in rest.lines if line["link"] != "1")


def test_lines_of_other_settings_stay_out_of_the_outcome(tmp_path):
    console = Console(file=io.StringIO())
    run = Run("digits", "free", 0, TINY)
    longer = Run("digits", "free", 0, DigitsSettings(epochs=9, batch_size=128))
    same, more, other = map(line_of, (run, Run("digits", "0.1", 7, TINY), longer))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (same, more, other)))
    outcome = sweep([run], tmp_path, console=console)
    assert outcome.lines == [same, more]
    assert outcome.done == 1
    assert sweep([run, longer], tmp_path, console=console).lines == [same, more, other]


def test_results_of_another_version_of_taufree_are_named(tmp_path):
    runs = [Run("digits", "free", seed, TINY) for seed in range(3)]
    versions = ({"taufree": "0.0.1"}, {"taufree": taufree.__version__}, {"taufree": "0.0.1"})
    lines = [line_of(run) | {"versions": of} for run, of in zip(runs, versions, strict=True)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = io.StringIO()
    sweep(runs, tmp_path, console=Console(file=log, width=500))
    assert "3 of 3 runs are already in" in log.getvalue()
    assert "Another version of taufree made 2 of them (2 by 0.0.1; this is" in log.getvalue()
    log = io.StringIO()
    sweep(runs[1:2], tmp_path, console=Console(file=log, width=500))
    assert log.getvalue().strip().endswith("they are not run again.")


def test_a_file_gets_lines_and_no_bars(monkeypatch):
    run = Run("digits", "free", 0, DigitsSettings(epochs=2))
    events = [
        Event(run, "begun"),
        Event(run, "note", "An image is damaged."),
        Event(run, "epoch", (1, 2.5)),
        Event(run, "epoch", (2, 2.25)),
        Event(run, "done", {"metrics": {"knn": 90.0}, "seconds": 3.0}),
    ]

    def shown(**options):
        log = io.StringIO()
        with Display([run], Console(file=log, width=200, **options)) as display:
            for event in events:
                display.show(event)
        return log.getvalue()

    assert shown().splitlines() == ["An image is damaged.", "free, seed 0: knn 90.00 (3.0 s)"]
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_LINES", 0.0)
    epochs = [
        f"free, seed 0: epoch {epoch} of 2, loss {loss}" for epoch, loss in ((1, "2.500"), (2, "2.250"))
    ]
    assert shown().splitlines()[1:-1] == epochs
    terminal = shown(force_terminal=True, _environ={"TERM": "xterm"})
    assert "all runs, epochs" in terminal
    assert "epoch 1 of 2" not in terminal


@pytest.fixture
def cubic(tmp_path, monkeypatch):
    """A file with a link of the user's own."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "cubic_of_mine.py"
    path.write_text("from taufree import Temperature\nclass Cubic(Temperature):\n    pass\n")
    yield path
    sys.modules.pop("cubic_of_mine", None)


def test_one_version_of_a_link_of_ones_own_is_in_the_outcome(tmp_path, cubic):
    free, old = Run("digits", "free", 0, TINY), Run("digits", "cubic_of_mine:Cubic", 0, TINY)
    nameless = line_of(old)  # as it was written before versions were recorded
    del (settings := dict(nameless["settings"]))["link_source"]
    lines = [line_of(free), nameless | {"settings": settings}, line_of(old)]
    cubic.write_text(cubic.read_text() + "# another version\n")
    new = Run("digits", "cubic_of_mine:Cubic", 0, TINY)
    lines.append(line_of(new))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    console = Console(file=io.StringIO())
    assert sweep([free], tmp_path, console=console).lines == [lines[0], lines[3]]
    assert sweep([old], tmp_path, console=console).lines == [lines[0], lines[2]]
    assert sweep([new], tmp_path, console=console).lines == [lines[0], lines[3]]


@pytest.mark.slow
def test_a_result_that_cannot_be_written_is_in_the_outcome_nevertheless(tmp_path):
    runs = [Run("digits", link, 0, TINY) for link in ("free", "0.5", "1")]
    path = tmp_path / "results.jsonl"

    def block(line):
        path.unlink()
        path.mkdir()

    outcome = sweep(runs, tmp_path, console=Console(file=io.StringIO()), on_result=block)
    assert [line["link"] for line in outcome.lines] == ["free", "0.5"]
    assert outcome.refused == f"--out {tmp_path} cannot be written to: Is a directory."
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left.name.startswith("digits-0.5-")  # from which its run goes on


@pytest.mark.parametrize("recipe", ["digits", "cifar10", "imagenette", "citeseer", "mabel", "sentences"])
def test_data_that_are_not_there_are_refused_before_any_process_starts(tmp_path, monkeypatch, recipe):
    monkeypatch.setattr("taufree.experiments.sweep.driver.work", None)
    settings = find_recipe(recipe).settings_type()
    run = Run(recipe, "free", 0, settings, data=tmp_path / "absent")
    with pytest.raises(
        BadInputError, match=r"^(No such f[^\n]*|the sentence pairs need [^\n]*)absent[^\n]*\.$"
    ):
        sweep([run], tmp_path / "out", console=Console(file=io.StringIO()))


def test_what_is_done_is_shown_without_its_data(tmp_path):
    run = Run("digits", "free", 0, TINY, data=tmp_path / "absent")
    (tmp_path / "results.jsonl").write_text(json.dumps(line_of(run)) + "\n")
    assert sweep([run], tmp_path, console=Console(file=io.StringIO())).lines == [line_of(run)]
