"""Training over two ranks on the CPU: the result of one process, and one voice."""

import json
import signal
import socket
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
from typer.testing import CliRunner

from taufree.cli import build
from taufree.experiments.digits import Digits, DigitsSettings
from taufree.experiments.images.simclr import SimCLRSettings
from taufree.experiments.training import ranks
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.command import ENVIRONMENT, MAIN
from tests.support.paths import DATA
from tests.support.photographs import write_folder
from tests.support.processes import wait_until
from tests.support.training_rank_checks import work

TWO = {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}
UNEVEN = DigitsSettings(epochs=2, batch_size=255)  # 127 and 128 rows


def alike(line, other, images):
    """Curves up to rounding, which steps magnify; metrics but for an image or two that were undecided."""
    assert line["curves"]["loss"] == pytest.approx(other["curves"]["loss"], rel=1e-5)
    for name in ("positive_cosine", "negative_cosine", "gradient_scale", "temperature_at_zero"):
        assert line["curves"][name] == pytest.approx(other["curves"][name], rel=1e-4, abs=1e-4)
    assert line["curves"]["candidates"] == other["curves"]["candidates"]
    for name in ("positive_histogram", "negative_histogram"):
        counts, others = line["curves"][name], other["curves"][name]
        assert sum(counts) == sum(others)
        assert sum(abs(x - y) for x, y in zip(counts, others, strict=True)) < 1e-2 * sum(counts)
    assert line["metrics"] == pytest.approx(other["metrics"], abs=2 * 100 / images + 1e-6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Digits, and Imagenette where it is at hand, else two photographs; two ranks cannot divide the batches.

    In float64, since a few steps of a ResNet in float32 make a hundredth of a rounding.
    """
    small = SimCLRSettings(epochs=1, batch_size=23, crop=32, neighbours=5, subset=50)
    if (DATA / "imagenette2-160").is_dir():
        images = Run("imagenette", "free", 0, small, "64-true", data=DATA)
    else:
        folder = write_folder(tmp_path_factory.mktemp("pictures"), 64)
        images = Run("images", "free", 0, small, "64-true", data=folder)
    digits = Run("digits", "learnable", 1, DigitsSettings(epochs=3, batch_size=255), "64-true")
    return {"digits": digits, "images": images}


@pytest.fixture(scope="module")
def together(runs, tmp_path_factory):
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free:
        patch.setenv("HOME", str(folder))  # of decoded images
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        mp.spawn(work, (port, str(folder), runs, "digits"), 2)
        yield [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "images"), [("digits", 500), ("images", 50)])
def test_equals_one_process(runs, together, name, images, tmp_path):
    first, second = (found[name] for found in together)
    assert first["hardware"]["ranks"] == 2
    alike(first, train(runs[name], tmp_path), images)
    assert second["curves"]["loss"] == first["curves"]["loss"]


@pytest.mark.slow
def test_a_run_goes_on_from_the_files_of_the_first_rank(together):
    assert [found["digits, epochs"] for found in together] == [["broken off", 3]] * 2
    first, second = (found["files"] for found in together)
    assert set(first) == {"state.pt", "weights.safetensors"}
    assert second == []


@pytest.mark.slow
def test_batch_norms_equal_one_process_on_shares_of_different_sizes(together):
    for found in together:
        assert len(found["batch norm"]) == 8  # result, statistics, gradients, and the result afterwards
        assert max(found["batch norm"]) < 1e-12


@pytest.mark.parametrize(("rows", "world"), [(6, 2), (7, 2), (7, 3), (4, 4)])
def test_shares_are_the_batch(rows, world):
    batch = (torch.arange(rows), torch.arange(2 * rows)[:, None].expand(-1, 3))
    shares = [ranks.own_rows(batch, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat([first for first, _ in shares]), batch[0])
    assert all(torch.equal(both[:, 0], torch.cat([one, one + rows])) for one, both in shares)
    sizes = [len(one) for one, _ in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["citeseer"], "the recipe citeseer trains in one process only, start it without torchrun."),
        (["digits", "--jobs", "2"], "--jobs must be 1 under torchrun, where all ranks train one run, got 2."),
        (["digits", "--batch-size", "2"], "batch_size must be at least 3, a pair for each rank, got 2."),
    ],
)
def test_what_ranks_cannot_do_is_one_sentence(arguments, sentence):
    environment = {**TWO, "WORLD_SIZE": "3"}
    found = CliRunner().invoke(build(), ["run", *arguments, "--device", "cpu"], env=environment)
    assert found.exit_code == 2
    assert found.stderr == f"taufree: {sentence}\n"


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_devices_that_cannot_be_shared_are_one_sentence(monkeypatch, device):
    for name, value in {**TWO, "LOCAL_WORLD_SIZE": "1000"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInputError, match=r"^1000 ranks .* PyTorch sees|^device mps cannot"):
        ranks.check(Digits, UNEVEN, device, 1)


def torchrun(out, seeds):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    entry = [sys.executable, "-c", MAIN, "run", "digits", "--seeds", seeds]
    arguments = ["--links", "free,learnable", "--epochs", "2", "--batch-size", "255", "--device", "cpu"]
    return subprocess.Popen(
        [sys.executable, *launcher, *entry, *arguments, "--out", str(out)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What is started in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.slow
def test_torchrun_with_the_command_and_ctrl_c(tmp_path):
    out = tmp_path / "out"
    results = out / "results.jsonl"
    process = torchrun(out, "40")
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 2, process)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=600)  # the ends of its pipes are closed by all ranks
    assert process.returncode != 0
    done = results.read_text().count("\n")
    assert errors.count(f"Stopped. {done} of 80 runs are in {results}") == 1
    assert printed.count("Report: ") == 1

    lines = [json.loads(line) for line in results.read_text().splitlines()]
    keys = [(line["seed"], line["link"]) for line in lines]
    assert keys == [(seed, link) for seed in range(40) for link in ("free", "learnable")][:done]
    for line in lines[:2]:
        alike(line, train(Run("digits", line["link"], line["seed"], UNEVEN), tmp_path), 500)

    before = results.read_bytes()
    process = torchrun(out, "1")
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert errors.count(f"2 of 2 runs are already in {results};") == 1
    assert printed.count("Report: ") == 1
    assert results.read_bytes() == before
