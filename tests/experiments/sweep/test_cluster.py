"""Runs on a real Ray cluster of two nodes, of which one dies in the middle."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

import taufree
from taufree.experiments.registry import find_recipe
from taufree.experiments.sweep import cluster as clusters
from taufree.experiments.sweep import tasks
from taufree.experiments.sweep.driver import sweep
from taufree.experiments.sweep.storage import Storage
from taufree.experiments.training.run import Run, run_slug
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from taufree.util.source import own_files
from tests.support.command import ENVIRONMENT, MAIN, invoke
from tests.support.processes import wait_until

EPOCHS, GATE = 4, 2
# A recipe of the user's own, which the nodes get from the driver: it writes down the epochs that it begins,
# of which each has random numbers of its own, and waits in one of them until the gate is open.
RECIPE = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from taufree.experiments.digits import Digits, DigitsSettings

FOLDER = Path({folder!r})


@dataclass(frozen=True)
class GatedSettings(DigitsSettings):
    dies: Annotated[bool, "Whether the process dies."] = False


class Gated(Digits):
    name = "gated"
    settings_type = GatedSettings

    def batches(self, epoch, generator):
        with (FOLDER / "begun").open("a") as file:
            file.write(f"{{generator.initial_seed()}}\\n")
        parent, is_open = os.getppid(), epoch != {gate}
        while not is_open:
            time.sleep(0.01)
            is_open = (FOLDER / "gate").exists()
            if os.getppid() != parent:  # that of a dead node goes on for a while
                os._exit(1)
        if self.settings.dies:
            os._exit(7)
        return super().batches(epoch, generator)

    def scores(self, model):
        return [{{"score": 1.5}}]
"""


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two nodes with a CPU each: its head, and one that may be killed."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        head = {"num_cpus": 1, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster, cluster.add_node(num_cpus=1)
        finally:
            cluster.shutdown()


@pytest.fixture
def gated(tmp_path, monkeypatch):
    """The folder of the recipe."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "gated.py").write_text(RECIPE.format(folder=str(folder), gate=GATE))
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("gated", None)


def connected(address, storage=None):
    own = own_files([find_recipe("gated").__module__])
    given = {"cpus": 1, "gpus": None, "storage": storage, "device": "auto", "own_files": own}
    cluster, device = clusters.connect(address, **given)
    assert device == "cpu"
    return cluster


def run_of(seed, **settings):
    return Run("gated", "free", seed, find_recipe("gated").settings_type(EPOCHS, 432, **settings))


@pytest.mark.slow
def test_a_node_dies_and_nothing_is_lost_or_done_twice(two_nodes, gated, tmp_path):
    cluster, mortal = two_nodes
    shared, out, log = tmp_path / "shared", tmp_path / "out", io.StringIO()
    runs = [run_of(seed) for seed in range(3)]

    def kill():
        while len(list(shared.glob("*.zip"))) < 2 or journal(gated).total() < 2 * (GATE + 1):
            time.sleep(0.01)
        cluster.remove_node(mortal, allow_graceful=False)
        (gated / "gate").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome = sweep(
        runs, out, cluster=connected(cluster.address, str(shared)), console=Console(file=log), every=0
    )
    killer.join()
    assert (outcome.done, outcome.failed, outcome.refused) == (3, {}, "")
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert sorted(line["seed"] for line in lines) == [0, 1, 2]
    # All epochs of all runs, once; the one in which the node died was begun twice.
    begun = journal(gated)
    assert len(begun) == 3 * EPOCHS
    assert sorted(begun.values()) == [1] * (3 * EPOCHS - 1) + [2]
    notes = [line for line in log.getvalue().splitlines() if "died" in line]
    assert len(notes) == 1, log.getvalue()
    (note,) = notes
    again = int(note.removeprefix("free, seed ")[0])
    assert note == f"free, seed {again}: its node died; it is run again from its last checkpoint."
    assert log.getvalue().count(f"free, seed {again}: knn") == 1

    whole = train(runs[again], tmp_path / "whole" / "checkpoints")
    (line,) = [line for line in lines if line["seed"] == again]
    assert (line["metrics"], line["curves"]) == (whole["metrics"], whole["curves"])
    assert sorted(path.name for path in (out / "scores").iterdir()) == sorted(f"{r.slug}.csv" for r in runs)
    assert list(shared.iterdir()) == []
    assert not (out / "checkpoints").exists()


@pytest.mark.slow
def test_a_run_that_kills_its_process_has_failed_in_the_end(two_nodes, gated, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_DEATHS", 1)
    run = run_of(0, dies=True)
    outcome = sweep(
        [run], tmp_path / "out", cluster=connected(two_nodes[0].address), console=Console(file=io.StringIO())
    )
    assert outcome.failed == {run: "its process died, 1 times without getting further."}


@pytest.mark.slow
def test_ctrl_c_cancels_and_the_same_command_goes_on(two_nodes, gated, tmp_path):
    (gated / "gate").touch()
    results, folders = tmp_path / "out" / "results.jsonl", Path(tempfile.gettempdir())
    options = ["--links", "free", "--seeds", "4", "--epochs", str(EPOCHS), "--batch-size", "432"]
    options += ["--ray", two_nodes[0].address, "--out", str(results.parent)]
    command = [sys.executable, "-c", MAIN, "run", "gated", *options]
    before = set(folders.glob("taufree-*"))
    process = subprocess.Popen(
        command,
        cwd=gated,
        env={**os.environ, **ENVIRONMENT},  # with what Ray has put there to connect
        stderr=subprocess.PIPE,
        text=True,
        # What is started in the background ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(results.exists, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    done = results.read_text().splitlines()
    assert process.returncode == 130, errors
    assert 1 <= len(done) < 4
    assert f"Stopped. {len(done)} of 4 runs are in {results}" in errors
    assert "Traceback" not in errors
    assert set(folders.glob("taufree-*")) <= before  # the task has cleared up

    again = invoke("run", "gated", *options)
    assert again.exit_code == 0, again.stderr
    lines = results.read_text().splitlines()
    assert lines[: len(done)] == done
    assert sorted(json.loads(line)["seed"] for line in lines) == list(range(4))


def journal(folder):
    """The epochs that were begun, and how often."""
    file = folder / "begun"
    return Counter(file.read_text().split() if file.exists() else [])


@pytest.mark.slow
def test_a_function_of_ones_own_trains_there(two_nodes, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "def drawn(link, seed):\n"
        "    yield {'loss': link(torch.rand(())), 'drawn': torch.rand(())}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import script

    here, there = (
        taufree.compare(script.drawn, "free,0.5", seeds=2, out=tmp_path / str(workers), workers=workers)
        for workers in (0, two_nodes[0].address)
    )
    found, expected = (
        {(line["link"], line["seed"]): (line["metrics"], line["settings"]) for line in one.lines}
        for one in (there, here)
    )
    assert found == expected
    assert len(found) == 4


DYING = """
import os
from pathlib import Path

def train(link, seed, folder, here):
    here = Path(here)
    count = folder / "count"
    for epoch in range(int(count.read_text()) if count.exists() else 0, 3):
        with (here / "begun").open("a") as file:
            file.write(f"{epoch} ")
        if epoch == 1 and not (here / "dead").exists():
            (here / "dead").touch()
            os._exit(7)
        count.write_text(str(epoch + 1))
        yield {"epoch": epoch}
"""


@pytest.mark.slow
def test_a_function_whose_process_dies_goes_on_from_its_shared_folder(
    two_nodes, tmp_path, monkeypatch, capsys
):
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    import dying

    def begun(seed, **more):
        (tmp_path / "begun").unlink(missing_ok=True)
        given = {
            "out": tmp_path / "out",
            "settings": {"here": str(tmp_path)},
            "workers": two_nodes[0].address,
        }
        found = taufree.compare(dying.train, "free", [seed], **given, **more)
        assert not found.failed
        return (tmp_path / "begun").read_text()

    shared = tmp_path / "shared"
    assert begun(0, storage=shared) == "0 1 1 2 "
    assert "Without storage" not in capsys.readouterr().err
    assert list(shared.iterdir()) == []
    (tmp_path / "dead").unlink()
    assert begun(1) == "0 1 0 1 2 "
    assert "Without storage a run's folder is on its node alone" in capsys.readouterr().err

    # One that was given up has left its folder, which a fresh run forgets.
    line = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[-1])
    slug = run_slug(line["recipe"], line["link"], line["seed"], line["settings"])
    (tmp_path / "left" / "saved").mkdir(parents=True)
    (tmp_path / "left" / "saved" / "count").write_text("2")
    Storage(str(shared)).put(slug, tmp_path / "left", root=tmp_path / "left")
    assert begun(1, storage=shared, fresh=True) == "0 1 2 "


def test_a_wrong_address_is_named_as_the_argument_is():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(ValueError, match=r"^workers must be auto, local, HOST:PORT or ray://"):
        taufree.compare(lambda link, seed: {}, "free", 1, workers="x")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"address": "nonsense"}, "--ray must be auto, local, HOST:PORT or ray://HOST:PORT, got 'nonsense'."),
        ({"address": "127.0.0.1:1"}, "no Ray cluster can be reached at 127.0.0.1:1: Connection refused."),
        ({"device": "mps"}, "--device must be cpu or cuda with --ray, got mps."),
        ({"device": "cpu", "gpus": 0.5}, "--gpus-per-run 0.5 does not go with --device cpu."),
        ({"device": "cuda", "gpus": 0.0}, "--gpus-per-run 0 does not go with --device cuda."),
        ({"storage": "foo://x"}, "--storage foo://x cannot be opened: Protocol not known: foo."),
    ],
)
def test_what_cannot_be_is_refused_before_ray_is_asked(options, sentence):
    given = {"address": "auto", "cpus": 1, "gpus": None, "storage": None, "device": "auto", "own_files": []}
    with pytest.raises(BadInputError) as refused:
        clusters.connect(**{**given, **options})
    assert str(refused.value) == sentence
