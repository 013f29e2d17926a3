"""The package as people get it: light to import, the public names, a wheel that works on its own."""

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import taufree
from tests.support.paths import ROOT

PUBLIC = {
    "CalibratedLogOdds",
    "FittedLogOdds",
    "FittedTemperature",
    "InfoNCE",
    "LearnableTemperature",
    "Link",
    "LogOdds",
    "NTXent",
    "NegativeQueue",
    "SigmoidNCE",
    "SupCon",
    "Temperature",
    "info_nce",
    "nt_xent",
    "sigmoid_nce",
    "sup_con",
    "temperature_free",
}


def python(code, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_the_public_names_are_pinned():
    assert set(taufree.__all__) == PUBLIC
    assert all(hasattr(taufree, name) for name in PUBLIC)


def test_importing_brings_torch_and_nothing_else():
    """Nor a part of PyTorch that ``import torch`` leaves out, such as its compiler: it takes no time."""
    code = """
import sys, torch
before = set(sys.modules)
import taufree
print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))
"""
    assert python(code).split() == ["taufree"]


def test_torch_is_imported_with_the_first_public_name():
    code = """
import sys, taufree
early = "torch" in sys.modules
taufree.nt_xent
print(early, "torch" in sys.modules, taufree.functional.nt_xent is taufree.nt_xent)
print(set(taufree.__all__) <= set(dir(taufree)), hasattr(taufree, "no_such_name"))
"""
    assert python(code).split() == ["False", "True", "True", "True", "False"]
    assert python("import taufree; taufree.distributed.active") == ""  # modules of the core need no import
    assert python("from taufree import *; print(NTXent.__name__, __name__)") == "NTXent __main__\n"


def test_compare_comes_when_it_is_asked_for():
    code = """
import sys, taufree
from taufree import *
early = any(name.startswith("taufree.experiments") for name in sys.modules)
print(early, "compare" in dir(taufree))
sys.modules["rich"] = None  # not installed
try:
    taufree.compare
except ImportError as error:
    print(error)
"""
    needed = 'this part of taufree needs rich: pip install "taufree[cli]"'
    assert python(code).splitlines() == ["False True", needed]


def test_a_compiled_step_may_be_the_first_to_use_a_name():
    code = """
import torch, taufree
torch._dynamo.config.error_on_recompile = True
step = torch.compile(lambda a, b: taufree.nt_xent(a, b), fullgraph=True, backend="eager")
view = torch.eye(4)
step(view, view)
print(step(view, view).item() < 1e-3)
"""
    assert python(code) == "True\n"


@pytest.mark.slow
def test_the_wheel_works_on_its_own(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    wheel = next(tmp_path.glob("taufree-*.whl"))
    assert f"taufree-{taufree.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "taufree/py.typed" in names
    assert "Requires-Dist: torch>=2.8" in metadata
    assert [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ] == ["Requires-Dist: torch>=2.8"]
    check = [sys.executable, "-m", "twine", "check", "--strict", *tmp_path.glob("taufree-*")]
    checked = subprocess.run(check, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with tarfile.open(next(tmp_path.glob("taufree-*.tar.gz"))) as archive:
        assert not any("/tests/" in name or "/benchmarks/" in name for name in archive.getnames())
    # An empty environment, with torch borrowed from this one: nothing else of it can be imported.
    venv.create(tmp_path / "empty", with_pip=True)
    inside = tmp_path / "empty" / "bin" / "python"
    install = [inside, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)
    # What a sentence about a missing extra says to do takes the taufree that is there, released or not.
    extra = [inside, "-m", "pip", "install", "--dry-run", "--no-index", "taufree[rec]"]
    more = subprocess.run(extra, check=False, capture_output=True, text=True)
    assert "Requirement already satisfied: taufree[rec]" in more.stdout, more
    assert "No matching distribution found for taufree" not in more.stderr
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    first_block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    code = f"import sys; sys.path.append({str(site)!r})\n{first_block}\n"
    code += "print(taufree.__file__, view_a.grad.shape)"
    command = [inside, "-E", "-c", code]  # without the PYTHONPATH of these tests
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert found.startswith(str(tmp_path))
    assert found.endswith("torch.Size([256, 128])\n")
