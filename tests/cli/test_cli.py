"""The command line: what it teaches, what it refuses, how it ends."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import taufree
from taufree.cli import build
from taufree.cli.run import _result_tables
from tests.support.paths import ROOT
from tests.support.processes import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(taufree.__file__).parents[1]), "COLUMNS": "120"}
MAIN = "from taufree.cli import main; main()"
ENTRY = [sys.executable, "-c", MAIN]


def invoke(*arguments):
    return CliRunner().invoke(build(), list(arguments), prog_name="taufree", env={"COLUMNS": "120"})


def test_version_and_help():
    assert invoke("--version").output == f"taufree {taufree.__version__}\n"
    page = invoke("--help")
    assert page.exit_code == 0
    assert all(command in page.output for command in ("run", "recipes", "figures", "diagnose", "bench"))
    assert "..." not in page.output.replace("[ARGS]...", "")  # no description is cut off


def test_help_teaches():
    page = invoke("run", "--help").output
    for word in (
        "--links",
        "--seeds",
        "--epochs",
        "--batch-size",
        "--set NAME=VALUE",
        "--device",
        "--precision",
        "--data",
        "--out",
    ):
        assert word in page
    assert "taufree run digits --links free,0.07,0.2 --seeds 5" in page
    assert "taufree run imagenette --preset quick" in page
    assert "taufree run images --data FOLDER" in page
    assert "TAUFREE_DATA" in page
    assert "130 interrupted" in page
    assert "taufree diagnose image.npy text.npy" in invoke("diagnose", "--help").output
    assert "taufree figures --out" in invoke("figures", "--help").output
    assert "taufree bench --loss nt-xent" in invoke("bench", "--help").output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "cifar"], "no recipe 'cifar': there are cifar10, citeseer, "),
        (["run", "absent/mine.py"], "No such file: absent/mine.py."),
        (["run", "--preset", "slow"], "preset must be one of full, quick, got 'slow'."),
        (
            ["run", "--set", "mask=pygcl"],
            "the recipe digits has no setting mask; it has epochs, batch_size, ",
        ),
        (["run", "citeseer", "--batch-size", "9"], "the recipe citeseer has no setting batch_size; it has "),
        (["run", "--set", "noise=loud"], "noise must be a number of at least 0, got 'loud'."),
        (["run", "--set", "noise"], "--set must be NAME=VALUE, got 'noise'."),
        (["run", "--set", "epochs=2", "--epochs", "2"], "epochs is given twice."),
        (["recipes", "cifar"], "no recipe 'cifar'"),
        (["run", "--links", "free,warm"], "got 'warm'."),
        (["run", "--links", "0"], "got '0'."),
        (["run", "--links", "absent:Link"], "gave ModuleNotFoundError: No module named 'absent'."),
        (["run", "--epochs", "0"], "epochs must be an integer of at least 1, got 0."),
        (["run", "--batch-size", "1"], "batch_size must be an integer of at least 2, got 1."),
        (["run", "--device", "abacus"], "got 'abacus'."),
        (["run", "--device", "cpu", "--precision", "16-mixed"], "precision 16-mixed needs a GPU"),
        (["run", "--precision", ""], "precision must be one of "),
        (["diagnose", "absent.npy"], "absent.npy does not exist"),
        (["bench", "--n", "64,x"], "n must be integers of at least 2 with commas between them, got '64,x'."),
        (["bench", "--d", "0"], "d must be integers of at least 1 with commas between them, got '0'."),
        (["bench", "--loss", "clip"], "loss must be one of symmetric, nt-xent, got 'clip'."),
        (["bench", "--dtype", "int8"], "dtype must be one of bfloat16, float16, float32, got 'int8'."),
        (["bench", "--out", "."], "--out must be a file, got the folder ."),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith("taufree: ")
    assert found.stderr.endswith(".\n")
    assert sentence in found.stderr


@pytest.mark.parametrize(
    "command",
    [
        *(
            "run --out",
            "run --data",
            "figures --out",
            "diagnose",
            "diagnose a.npy",
            "diagnose a.npy --labels",
        ),
        *("diagnose a.npy --out", "bench --out", "sequences", "sequences log.csv --out", "bias m --data"),
        *("bias m --data d --out", "pretrain-mlm m --data", "pretrain-mlm m --data d --out"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = invoke(*command.split(), "")
    assert found.exit_code == 2
    assert 'must be a path ("." for the current folder), got an empty one.' in found.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [["run", "--seeds", "0"], ["run", "--jobs", "x"], ["run", "--lnks", "free"], ["walk"]]
)
def test_options_that_do_not_exist_or_fit_are_exit_code_2(arguments):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert "Traceback" not in found.stderr
    assert "Error: " in found.stderr


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep from the shell: its arguments, its folder, named like markup, and what came of it."""
    out = tmp_path_factory.mktemp("sweep") / "a[/b]"
    arguments = ["run", "digits", "--links", "free,0.5", "--seeds", "2", "--epochs", "1", "--jobs", "2"]
    arguments += ["--batch-size", "432", "--device", "cpu", "--out", str(out)]
    command = [*ENTRY, *arguments]
    found = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return arguments, out, found


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
    assert f"Report: {out / 'report.html'}" in found.stdout
    assert (out / "report.html").stat().st_size > 1e6
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
    narrow = CliRunner().invoke(build(), arguments, env={"COLUMNS": "40"})
    assert "…" not in narrow.stdout  # names are not cut off


def test_bench_refuses_a_file_that_cannot_be_written_before_it_measures(tmp_path):
    (tmp_path / "taken").touch()
    out = tmp_path / "taken" / "bench.json"
    refused = invoke("bench", "--out", str(out))
    assert refused.exit_code == 2
    assert refused.stdout == ""  # no table
    assert refused.stderr == f"taufree: --out {out} cannot be written to: File exists.\n"


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
    assert f"taufree: --out {out} cannot be written to: Is a directory." in refused.stderr
    assert left == [".lock", "results.jsonl"]


def test_a_table_too_wide_for_the_terminal_goes_on_below(tmp_path):
    sweep = (ROOT / "benchmarks/results/citeseer.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, sweep) if line["settings"]["mask"] == "nt-xent"]
    wide, narrow = (_shown(lines, width) for width in (140, 80))
    words = re.findall(r"[\w.]+", wide)
    assert len(_result_tables(lines, 140)) == 1
    assert max(map(len, narrow.splitlines())) <= 80
    assert {"pygcl_micro", "pygcl_macro", "temperature", "67.63"} <= set(words)
    assert set(re.findall(r"[\w.]+", narrow)) == set(words)  # no word is broken
    assert "│ learnable tau │ 63.63 ± 1.08 │" in narrow


def _shown(lines, width):
    console = Console(width=width, record=True, file=io.StringIO())
    for table in _result_tables(lines, width):
        console.print(table)
    return console.export_text()


@pytest.mark.slow
def test_a_link_from_the_current_folder_reaches_the_workers(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from taufree import Link\n"
        "class Cubic(Link):\n"
        "    def logit(self, cosine, gap, rise):\n"
        "        return 5 * cosine**3\n"
    )
    installed = f"import sys; sys.path.remove(''); {MAIN}"
    arguments = ["run", "--links", "mine:Cubic,0.5", "--seeds", "1", "--epochs", "1", "--device", "cpu"]
    found = subprocess.run(
        [sys.executable, "-c", installed, *arguments, "--batch-size", "432", "--out", "out"],
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    curves = {line["link"]: line["curves"] for line in lines}
    assert curves.keys() == {"mine:Cubic", "0.5"}
    assert curves["mine:Cubic"]["loss"] != curves["0.5"]["loss"]
    assert curves["mine:Cubic"]["temperature_at_zero"] == [0.0]
    assert "mine:Cubic" in found.stdout
    assert r"mean \xb1 std" in found.stdout  # this terminal has no plus-minus
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_a_failed_run_is_named_and_does_not_stop_the_others(tmp_path):
    arguments = [
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--batch-size",
        "128",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
    ]
    found = invoke("run", "--links", "1e-300,0.5", *arguments)
    assert found.exit_code == 1
    assert "tau 1e-300, seed 0 failed: the loss became nan in epoch 1." in found.stderr
    assert "1 of 2 runs failed" in found.stderr
    assert "tau 0.5" in found.stdout
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert line["link"] == "0.5"


@pytest.mark.slow
def test_what_only_the_data_can_tell_is_bad_input_too(tmp_path):
    found = invoke("run", "--links", "free", "--batch-size", "1500", "--out", str(tmp_path))
    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1] == "taufree: batch_size must be at most 1297, got 1500."
    assert "Traceback" not in found.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    command = [*ENTRY, "run", "--links", "free,0.5", "--seeds", "50", "--epochs", "2", "--batch-size", "432"]
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--out", str(tmp_path)],
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


def test_figures(tmp_path):
    found = invoke("figures", "--out", str(tmp_path / "figures"))
    assert found.exit_code == 0
    drawn = found.stdout.splitlines()
    assert drawn
    assert all(Path(path).stat().st_size > 1000 for path in drawn)


def test_diagnose(tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "b.npy", rows + 0.1)
    found = invoke(
        "diagnose", str(tmp_path / "a.npy"), str(tmp_path / "b.npy"), "--out", str(tmp_path / "out")
    )
    assert found.exit_code == 0
    *summary, last = found.stdout.splitlines()
    assert summary
    page = Path(last.removeprefix("Page: "))
    assert page.is_relative_to(tmp_path / "out")
    assert page.exists()


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [("typer", []), ("rich", ["--help"]), ("lightning", ["run"]), ("sklearn", ["run"])],
)
def test_a_missing_extra_is_named_with_its_cure(tmp_path, missing, arguments):
    code = f"import sys; sys.modules[{missing!r}] = None; {MAIN}"
    command = [sys.executable, "-c", code, *arguments]
    found = subprocess.run(
        command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert missing in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stderr.strip().endswith('pip install "taufree[cli]"')


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from taufree.cli import build; from typer.testing import CliRunner; "
        "assert CliRunner().invoke(build(), ['run', '--help']).exit_code == 0; "
        "print([m for m in ('lightning', 'sklearn', 'pandas', 'plotly', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("command", ["figures", "diagnose"])
def test_an_out_that_is_a_file_gets_one_sentence(command, tmp_path):
    pairs = tmp_path / "pairs.npz"
    np.savez(pairs, a=np.eye(4), b=np.eye(4))
    words = ["figures"] if command == "figures" else ["diagnose", str(pairs)]
    found = invoke(*words, "--out", str(pairs))
    assert found.exit_code == 2
    assert found.stderr.count("\n") == 1
    assert "must be a folder" in found.stderr
