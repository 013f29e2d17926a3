"""The tests in fresh environments: all by ``make test-matrix``, one by ``.venv/bin/nox -s lowest``.

Of the Pythons that pyproject.toml names, those that are installed are used; nox says which it has skipped.
An environment takes some GB under .nox, most of which uv links from its cache, and each runs for minutes.
"""

from __future__ import annotations

import re
from glob import glob
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
EXTRAS = PROJECT["project"]["optional-dependencies"]
TEST_TOOLS = [one for one in EXTRAS["test"] if not one.startswith("taufree[")]
CORE_TEST_TOOLS = ["hypothesis", "mpmath", "numpy", "pytest", "pytest-xdist", "scipy"]
CORE_TESTS = ["tests/links", "tests/backends", *glob("tests/test_*.py"), *glob("src/taufree/*.py")]
CORE_TESTS.remove("tests/test_convert.py")  # converting the losses of other libraries needs those libraries
CLI_EXTRAS = ["cli", "graph", "images", "language"]
CHECK_BOUNDS = """
import importlib.metadata, sys
from packaging.requirements import Requirement

for bound in sys.argv[1:]:
    lowest = Requirement(bound.replace(">=", "=="))
    installed = importlib.metadata.version(lowest.name)
    assert lowest.specifier.contains(installed), f"{bound} is {installed} here"
"""
RECBOLE = ["recbole==1.2.1", "thop"]  # without its old pins, as in the Makefile


def run_tests(session: nox.Session, *what: str) -> None:
    command = ["pytest", "-n", "2", "--dist", "loadfile", *what, *session.posargs]
    session.run("python", "-m", *command, env={"OMP_NUM_THREADS": "1"})


@nox.session(python=PYTHONS)
def core(session: nox.Session) -> None:
    """The losses with PyTorch alone, on every Python."""
    session.install("--editable", ".")
    session.install(*CORE_TEST_TOOLS)
    run_tests(session, "-m", "not slow", *CORE_TESTS)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """All tests with the lowest versions that pyproject.toml allows, on the lowest Python."""
    extras = ",".join(name for name in EXTRAS if name not in ("docs", "test"))
    session.install("--resolution=lowest-direct", "--editable", f".[{extras}]")
    session.install(*TEST_TOOLS)
    session.install("--no-deps", *RECBOLE)
    run_tests(session)


@nox.session(python=PYTHONS[0])
def lowest_cli(session: nox.Session) -> None:
    """The command line and the recipes alone, without the packages that raise its bounds in ``lowest``."""
    bounds = [PROJECT["project"]["dependencies"], *(EXTRAS[name] for name in CLI_EXTRAS)]
    session.install("--resolution=lowest-direct", "--editable", f".[{','.join(CLI_EXTRAS)}]")
    session.install("hypothesis", "mpmath", "pytest", "pytest-xdist")
    session.run("python", "-c", CHECK_BOUNDS, *(bound for extra in bounds for bound in extra))
    run_tests(session, "tests/cli", "tests/diagnostics", "tests/experiments")


@nox.session(python=PYTHONS[-1])
def newest(session: nox.Session) -> None:
    """All tests with the newest versions, on the newest Python."""
    session.install("--upgrade", "--editable", ".[test]")
    session.install("--no-deps", *RECBOLE)
    run_tests(session)


@nox.session
def package(session: nox.Session) -> None:
    """The sdist, the wheel and the commit, each with PyTorch and nothing else: README's first code runs."""
    session.install("build", "twine")
    dist = Path(session.create_tmp()).resolve()
    session.run("python", "-m", "build", "--outdir", str(dist))
    built = sorted(map(str, dist.glob("taufree-*")))
    session.run("twine", "check", "--strict", *built)
    first_block = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), flags=re.DOTALL)[0]
    for source in (*built, f"taufree @ git+file://{Path.cwd()}"):
        empty = dist / "empty"
        python = str(empty / "bin" / "python")
        session.run("uv", "venv", "--clear", "--python", f"{session.bin}/python", str(empty))
        session.run("uv", "pip", "install", "--python", python, source)
        with session.chdir(dist):
            session.run(python, "-I", "-c", first_block, external=True)
