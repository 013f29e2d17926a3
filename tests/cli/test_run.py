"""``taufree run``: a sweep from the shell, what it shows, how it fails and how it is interrupted."""

import io
import json
import re
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from taufree.cli.result_tables import result_tables
from tests.support.command import ENVIRONMENT, MAIN, invoke, shell
from tests.support.paths import ROOT
from tests.support.processes import wait_until


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep from the shell: its arguments, its folder, named like markup, and what came of it."""
    out = tmp_path_factory.mktemp("sweep") / "a[/b]"
    arguments = ["run", "digits", "--links", "free,0.5", "--seeds", "2", "--epochs", "1", "--jobs", "2"]
    arguments += ["--batch-size", "432", "--device", "cpu", "--out", str(out), "--log", "csv"]
    return arguments, out, shell(*arguments)


@pytest.mark.slow
def test_a_sweep_from_the_shell(swept):
    _, out, found = swept
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(line["link"], line["seed"]) for line in lines} == {
        ("free", 0),
        ("free", 1),
        ("0.5", 0),
        ("0.5", 1),
    }
    knn = [line["metrics"]["knn"] for line in lines if line["link"] == "free"]
    assert f"{sum(knn) / 2:.2f} ±" in found.stdout
    assert "knn: free minus tau 0.5 is" in found.stdout
    assert "2 seeds): two seeds cannot tell them apart." in found.stdout
    assert f"Report: {out / 'report.html'}" in found.stdout
    assert (out / "report.html").stat().st_size > 1e6
    assert f"Logs: {out / 'logs'}" in found.stdout
    assert [file.read_text().count("\n") for file in out.glob("logs/*/metrics.csv")] == [3] * 4
    assert not (out / "checkpoints").exists()


@pytest.mark.slow
def test_a_sweep_that_is_done_is_shown_again(swept):
    arguments, out, found = swept
    (out / "report.html").unlink()
    again = invoke(*arguments)
    assert again.exit_code == 0
    assert f"4 of 4 runs are already in {out / 'results.jsonl'}" in again.stderr
    assert again.stdout == found.stdout
    assert (out / "report.html").exists()
    quick = invoke(*arguments, "--preset", "quick")  # the same runs
    assert "No verdict: a quick run" in quick.stdout
    assert "minus tau 0.5" not in quick.stdout
    narrow = invoke(*arguments, columns=40)
    assert "…" not in narrow.stdout  # names are not cut off


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_bad_input(swept):
    arguments, out, _ = swept
    report = (out / "report.html").rename(out.parent / "report.html")
    (out / "report.html").mkdir()
    refused = invoke(*arguments)
    (out / "report.html").rmdir()
    left = sorted(entry.name for entry in out.iterdir())
    report.rename(out / "report.html")
    assert refused.exit_code == 2
    assert "tau 0.5" in refused.stdout  # the table, which needs no disk
    assert "knn: free minus tau 0.5 is" in refused.stdout
    assert f"taufree: --out {out} cannot be written to: Is a directory." in refused.stderr
    assert left == [".lock", "logs", "results.jsonl"]


@pytest.mark.slow
def test_seeds_may_be_a_range_and_fresh_ones(swept, tmp_path):
    arguments, out, _ = swept
    first = (out / "results.jsonl").read_text().splitlines()
    (seed_1,) = [line for line in first if json.loads(line)["link"] == "free" and '"seed": 1,' in line]
    (tmp_path / "results.jsonl").write_text(f"{seed_1}\n")
    found = invoke(*arguments, "--seeds", "1:3", "--links", "free", "--out", str(tmp_path), "--fresh")
    assert found.exit_code == 0, found.stderr
    assert "1 of 2 runs were in" in found.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["seed"] for line in lines} == {1, 2}
    assert (tmp_path / "results.replaced.jsonl").read_text() == f"{seed_1}\n"


def test_a_table_too_wide_for_the_terminal_goes_on_below(tmp_path):
    sweep = (ROOT / "benchmarks/results/citeseer.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, sweep) if line["settings"]["mask"] == "nt-xent"]
    wide, narrow = (_shown(lines, width) for width in (140, 80))
    words = re.findall(r"[\w.]+", wide)
    assert len(result_tables(lines, 140)) == 1
    assert max(map(len, narrow.splitlines())) <= 80
    assert {"pygcl_micro", "pygcl_macro", "temperature", "67.63"} <= set(words)
    assert set(re.findall(r"[\w.]+", narrow)) == set(words)  # no word is broken
    assert "│ learnable tau │ 63.63 ± 1.08 │" in narrow


def _shown(lines, width):
    console = Console(width=width, record=True, file=io.StringIO())
    for table in result_tables(lines, width):
        console.print(table)
    return console.export_text()


@pytest.fixture(scope="module")
def own_link(tmp_path_factory):
    """A sweep with a link that fails and one of the current folder, on a terminal that has ASCII alone."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(
        "from taufree import Link\n"
        "class Cubic(Link):\n"
        "    def logit(self, cosine, gap, rise):\n"
        "        return 5 * cosine**3\n"
    )
    arguments = [
        "run",
        "--links",
        "1e-300,mine:Cubic,0.5",
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--device",
        "cpu",
    ]
    found = shell(
        *arguments, "--batch-size", "128", "--out", "out",
        before="sys.path.remove('')", cwd=folder, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    lines = [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()]
    assert (folder / "out" / "report.html").exists()
    return found, {line["link"]: line for line in lines}


@pytest.mark.slow
def test_a_link_from_the_current_folder_reaches_the_workers(own_link):
    found, lines = own_link
    curves = lines["mine:Cubic"]["curves"]
    assert curves["loss"] != lines["0.5"]["curves"]["loss"]
    assert curves["temperature_at_zero"] == [0.0]
    assert "mine:Cubic" in found.stdout
    assert r"mean \xb1 std" in found.stdout  # this terminal has no plus-minus


@pytest.mark.slow
def test_a_failed_run_is_named_and_does_not_stop_the_others(own_link):
    found, lines = own_link
    assert found.returncode == 1
    assert "tau 1e-300, seed 0 failed: the loss became nan in epoch 1." in found.stderr
    assert "1 of 3 runs failed" in found.stderr
    assert "tau 0.5" in found.stdout
    assert lines.keys() == {"mine:Cubic", "0.5"}


@pytest.mark.slow
def test_what_only_the_data_can_tell_is_bad_input_too(tmp_path):
    found = invoke("run", "--links", "free", "--batch-size", "1500", "--out", str(tmp_path))
    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1] == "taufree: batch_size must be at most 1297, got 1500."
    assert "Traceback" not in found.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    options = ["--links", "free,0.5", "--seeds", "50", "--epochs", "2", "--batch-size", "432"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "run", *options, "--device", "cpu", "--out", str(tmp_path)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        # What is started in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    results = tmp_path / "results.jsonl"
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert 2 <= len(lines) < 100
    assert f"Stopped. {len(lines)} of 100 runs are in {results}" in errors
    assert "give the same command again to go on" in errors
    assert "Traceback" not in errors
    assert (tmp_path / "report.html").exists()


INTERRUPTING_LINK = """
import atexit, multiprocessing, os, signal
from taufree import LogOdds

if multiprocessing.parent_process():  # when the worker ends, after the last run
    atexit.register(lambda: os.kill(os.getppid(), signal.SIGINT))

class Own(LogOdds):
    pass
"""


@pytest.mark.slow
def test_ctrl_c_after_the_last_run_asks_for_nothing(tmp_path):
    (tmp_path / "mine.py").write_text(INTERRUPTING_LINK)
    found = shell(
        "run", "--links", "mine:Own", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--out", "out",
        cwd=tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert found.returncode == 130
    assert "Stopped. 1 of 1 runs are in out/results.jsonl.\n" in found.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--storage", "x"], "--storage needs --ray, without which runs train on this machine."),
        (["--gpus-per-run", "0.5"], "--gpus-per-run needs --ray, without which runs train on this machine."),
        (["--cpus-per-run", "2"], "--cpus-per-run needs --ray, without which runs train on this machine."),
        (["--log", "csv,tb"], "--log must be some of csv, tensorboard, wandb, mlflow, got 'tb'."),
    ],
)
def test_options_of_clusters_and_trackers_that_are_wrong_are_bad_input(options, sentence, tmp_path):
    found = invoke("run", "digits", *options, "--out", str(tmp_path / "out"))
    assert (found.exit_code, found.stderr) == (2, f"taufree: {sentence}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ray", " "], "--ray must be an address or auto, got an empty one."),
        (
            ["--ray", "auto", "--jobs", "2"],
            "--jobs must be 1 with --ray, where --cpus-per-run decides, got 2.",
        ),
    ],
)
def test_what_does_not_go_with_a_cluster_is_bad_input(options, sentence, tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    found = invoke("run", "digits", *options, "--out", str(tmp_path / "out"))
    assert (found.exit_code, found.stderr) == (2, f"taufree: {sentence}\n")
