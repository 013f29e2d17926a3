"""The command line: what it teaches, what it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import taufree
from tests.support.command import ENVIRONMENT, MAIN, invoke, shell


def test_version_and_help():
    assert invoke("--version").output.startswith(f"taufree {taufree.__version__}\n")
    page = invoke("--help")
    assert page.exit_code == 0
    assert all(command in page.output for command in ("run", "recipes", "figures", "diagnose", "bench"))
    assert "..." not in page.output.replace("[ARGS]...", "")  # no description is cut off


def test_version_says_which_backends_can_run_and_why_others_cannot(monkeypatch):
    lines = invoke("--version").output.splitlines()
    assert f"PyTorch {torch.__version__}" in lines[1]
    assert lines[3:5] == ["backend reference: can run here", "backend blockwise: can run here"]
    if not torch.cuda.is_available():
        assert lines[5] == "backend triton: cannot run here: the kernels run on a CUDA device, not on cpu."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0) if index else (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    lines = invoke("--version").output.splitlines()
    assert lines[2] == "CUDA 12.8: 2 x H200"
    assert lines[5] == "backend triton: can run here"  # on one of them


def test_version_of_a_torch_that_cannot_be_imported():
    found = shell("--version", before="sys.modules['torch'] = None")
    assert found.returncode == 0
    first, second = found.stdout.splitlines()
    assert first == f"taufree {taufree.__version__}"
    assert "PyTorch cannot be imported: " in second


def test_the_command_is_a_module_too(tmp_path):
    command = [sys.executable, "-m", "taufree", "run", "absent"]
    found = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr.startswith("taufree: no recipe 'absent'")


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
        (["run", "cifar"], "no recipe 'cifar', nor a file cifar.py; the recipes are cifar10, citeseer, "),
        (["run", "absent/mine.py"], "No such file: absent/mine.py."),
        (["run", "--preset", "slow"], "preset must be one of full, quick, got 'slow'."),
        (
            ["run", "--set", "mask=pygcl"],
            "the recipe digits has no setting mask; it has epochs, batch_size, ",
        ),
        (["run", "citeseer", "--batch-size", "9"], "the recipe citeseer has no setting batch_size; it has "),
        (["run", "--set", "noise=loud"], "noise must be a finite number of at least 0, got 'loud'."),
        (["run", "--set", "noise=inf"], "noise must be a finite number of at least 0, got inf."),
        (["run", "--set", "noise"], "--set must be NAME=VALUE, got 'noise'."),
        (["run", "--set", "epochs=2", "--epochs", "2"], "epochs is given twice."),
        (["recipes", "cifar"], "no recipe 'cifar'"),
        (["run", "--links", "free,warm"], "got 'warm'."),
        (["run", "--links", "0"], "got '0'."),
        (["run", "--links", "absent:Link"], "gave ModuleNotFoundError: No module named 'absent'."),
        (["run", "--epochs", "0"], "epochs must be an integer of at least 1, got 0."),
        (["run", "--batch-size", "1"], "batch_size must be an integer of at least 2, got 1."),
        (["run", "--seeds", "0"], "seeds must be a number from 1 to 10000, or FIRST:END with as many "),
        (["run", "--seeds", "9" * 23], "seeds must be a number from 1 to 10000, or FIRST:END"),
        (["run", "--seeds", "10:5"], "between them, got '10:5'."),
        (["run", "--device", "abacus"], "got 'abacus'."),
        (["run", "--device", "cpu", "--precision", "16-mixed"], "precision 16-mixed needs a GPU"),
        (["run", "--precision", ""], "precision must be one of "),
        (
            ["diagnose", "absent.npy", "--taus", "0.1,x"],
            "taus must be numbers from 1e-6 to 1e6 with commas between them, got '0.1,x'.",
        ),
        (
            ["diagnose", "absent.npy", "--taus", "0"],
            "taus must be numbers from 1e-6 to 1e6 with commas between them, got '0'.",
        ),
        (["diagnose", "absent.npy", "--taus", "1e-320"], "taus must be numbers from 1e-6 to 1e6"),
        (["diagnose", "absent.npy", "--taus", "0.1,1e308"], "taus must be numbers from 1e-6 to 1e6"),
        (["run", "x" * 5000], "x.py cannot be read: File name too long."),
        (["recipes", "x" * 300], "x.py cannot be read: File name too long."),
        (["run", "--data", "x" * 300], "x cannot be read: File name too long."),
        (["diagnose", "x" * 300 + ".npy"], "x.npy cannot be read: File name too long."),
        (["diagnose", "absent.npy"], "No such file: absent.npy, which must hold embeddings or labels."),
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
        *("report", "report a --out", "table", "table a --out", "merge a --out", "embed", "embed m"),
        *("embed m d --out", "score", "score m d --out"),
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
    "arguments",
    [
        ["run", "--jobs", "x"],
        ["run", "--lnks", "free"],
        ["walk"],
    ],
)
def test_options_that_do_not_exist_or_fit_are_exit_code_2(arguments):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert "Traceback" not in found.stderr
    assert "Error: " in found.stderr


def test_bench_refuses_a_file_that_cannot_be_written_before_it_measures(tmp_path):
    (tmp_path / "taken").touch()
    out = tmp_path / "taken" / "bench.json"
    refused = invoke("bench", "--out", str(out))
    assert refused.exit_code == 2
    assert refused.stdout == ""  # no table
    assert refused.stderr == f"taufree: --out {out} cannot be written to: File exists.\n"


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
    assert any(line.startswith("fitted ") for line in summary)
    page = Path(last.removeprefix("Page: "))
    assert page.is_relative_to(tmp_path / "out")
    assert page.exists()


def test_diagnose_takes_temperatures_and_names(tmp_path):
    a, b, c = np.random.default_rng(0).normal(size=(3, 40, 8))
    np.savez(tmp_path / "x.npz", a=a, b=b, c=c)
    words = ["diagnose", str(tmp_path / "x.npz"), "--out", str(tmp_path / "out")]
    found = invoke(*words, "--columns", "a, c", "--taus", "0.01,0.07")
    assert found.exit_code == 0
    assert [line.split()[1] for line in found.stdout.splitlines() if line.startswith("tau ")] == [
        "0.01",
        "0.07",
    ]
    assert "; --columns says which to take." in invoke(*words).stderr


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [("typer", []), ("rich", ["--help"]), ("lightning", ["run"]), ("sklearn", ["run"])],
)
def test_a_missing_extra_is_named_with_its_cure(tmp_path, missing, arguments):
    found = shell(*arguments, before=f"sys.modules[{missing!r}] = None", cwd=tmp_path)
    assert found.returncode == 2
    assert missing in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stderr.strip().endswith('pip install "taufree[cli]"')


HEAVY = ("torch", "numpy", "lightning", "sklearn", "scipy", "pandas", "plotly", "matplotlib", "polars")
COMMANDS = ("demo", "run", "recipes", "sequences", "figures", "diagnose", "bench", "bias", "pretrain-mlm")


def test_help_imports_nothing_heavy():
    pages = [
        ["--help"],
        *([command, "--help"] for command in COMMANDS),
        ["run", "dcrec", "-h"],
    ]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({HEAVY})); "  # an import of them fails
        "from taufree.cli import build; from typer.testing import CliRunner; "
        f"print(*(CliRunner().invoke(build(), page).exit_code for page in {pages}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert set(found.stdout.split()) == {"0"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run cifar", "no recipe 'cifar'"),
        ("run --links free,warm", "got 'warm'."),
        ("run --device abacus", "got 'abacus'."),
        ("run --precision 8", "got '8'."),
        ("run --data absent", "No such folder: absent, which --data or TAUFREE_DATA names."),
        ("run citeseer --data absent", "No such folder: absent, "),
        ("diagnose absent.npy", "No such file: absent.npy"),
        ("diagnose here.npy --labels absent.npy", "No such file: absent.npy"),
        ("bias model --data absent", "No such folder: absent, "),
        ("pretrain-mlm model --data absent --out out", "No such folder: absent, "),
    ],
)
def test_bad_input_is_refused_before_torch_is_imported(arguments, sentence, tmp_path):
    (tmp_path / "here.npy").touch()
    found = shell(*arguments.split(), before="sys.modules['torch'] = None", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith("taufree: ")
    assert found.stderr.count("\n") == 1
    assert sentence in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["here.npy"]


@pytest.mark.parametrize("recipe", ["digits", "images", "msc", "mabel"])
def test_wrong_settings_are_refused_before_what_a_recipe_uses_is_imported(recipe, tmp_path):
    found = shell(
        *("run", recipe, "--set", "colour=red"),
        before="import atexit; "
        "atexit.register(lambda: print({'sklearn', 'torchvision', 'transformers'} & sys.modules.keys()))",
        cwd=tmp_path,
    )
    assert found.returncode == 2
    assert found.stdout == "set()\n"
    assert f"the recipe {recipe} has no setting colour; it has epochs, " in found.stderr


@pytest.mark.parametrize("module", ["typer", "taufree.cli.run", "torch", "torch._C", "numpy", "lightning"])
def test_ctrl_c_while_modules_are_imported_ends_at_once(module, tmp_path):
    """In the C++ code of torch and NumPy an exception would abort the process, or become another one."""
    before = (
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # if ignored
        "sys.addaudithook(lambda event, about: os.kill(os.getpid(), signal.SIGINT) "
        f"if event == 'import' and about[0] == {module!r} else None)"
    )
    command = ("run",) if module != "lightning" else ("pretrain-mlm", "m", "--data", ".", "--out", "out")
    found = shell(*command, before=before, cwd=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_ctrl_c_while_the_parameters_are_built_ends_at_once(tmp_path):
    before = (
        "import os, signal, typer.main; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "usual = typer.main.get_group; "
        "typer.main.get_group = lambda *given, **named: "
        "(os.kill(os.getpid(), signal.SIGINT), usual(*given, **named))[1]"
    )
    found = shell("--version", before=before, cwd=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_a_process_in_the_background_ignores_ctrl_c_while_it_imports(tmp_path):
    before = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "sys.addaudithook(lambda event, about: os.kill(os.getpid(), signal.SIGINT) "
        "if event == 'import' and about[0] == 'torch' else None)"
    )
    found = shell("recipes", "digits", before=before, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("digits: ")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_data_behind_a_folder_without_permission_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    found = invoke("run", "--data", tmp_path / "closed" / "data")
    assert found.exit_code == 2
    assert found.stderr == f"taufree: {tmp_path / 'closed' / 'data'} cannot be read: Permission denied.\n"


def test_a_folder_given_for_a_file_and_a_file_given_for_a_folder_are_named_so(tmp_path):
    (tmp_path / "x.npy").mkdir()
    found = invoke("diagnose", tmp_path / "x.npy")
    assert found.stderr == (
        f"taufree: {tmp_path / 'x.npy'} must be a file that holds embeddings or labels, got a folder.\n"
    )
    (tmp_path / "y").write_text("")
    found = invoke("run", "images", "--data", tmp_path / "y", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert f"{tmp_path / 'y'} must be a folder that holds images, got a file." in found.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["recipes"], ["--help"], ["--version"]])
def test_output_to_a_full_device_is_one_line_and_exit_code_1(arguments):
    command = [sys.executable, "-c", MAIN, *arguments]
    with open("/dev/full", "w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert found.returncode == 1
    assert found.stderr == "taufree: the output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("command", ["figures", "diagnose"])
def test_an_out_that_is_a_file_gets_one_sentence(command, tmp_path):
    pairs = tmp_path / "pairs.npz"
    np.savez(pairs, a=np.eye(4), b=np.eye(4))
    words = ["figures"] if command == "figures" else ["diagnose", str(pairs)]
    found = invoke(*words, "--out", str(pairs))
    assert found.exit_code == 2
    assert found.stderr.count("\n") == 1
    assert "must be a folder" in found.stderr
