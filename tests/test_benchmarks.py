"""The scripts of benchmarks/: each can be imported, so that no rename leaves one behind."""

import importlib

import pytest

from tests.support.paths import ROOT

SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "benchmarks").rglob("*.py")
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_can_be_imported(script):
    assert importlib.import_module(script).__doc__
