"""The parts that need more than torch say what to install."""

import subprocess
import sys

import pytest

from taufree.util.errors import BadInputError, MissingPackageError
from taufree.util.optional import needs, require

MISSING = {
    "theory.closed_forms": ("scipy", "cli"),
    "diagnose": ("numpy", "cli"),
    "diagnosis_page": ("plotly", "cli"),
    "embedding_files": ("pyarrow", "cli"),
    "theory.figures": ("matplotlib", "cli"),
    "metric": ("torchmetrics", "lightning"),
}


def test_a_missing_package_is_one_sentence_with_its_cure():
    code = f"""
import importlib, sys, numpy
for part, (missing, _) in {MISSING}.items():
    kept = sys.modules.pop(missing, None)
    sys.modules[missing] = None  # as if it were not installed
    try:
        importlib.import_module(f"taufree.diagnostics.{{part}}")
    except ModuleNotFoundError as error:
        print(part, error)
    del sys.modules[missing]
    if kept:
        sys.modules[missing] = kept
    for name in [name for name in sys.modules if name.startswith("taufree.diagnostics")]:
        del sys.modules[name]
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == [
        f'{part} this part of taufree needs {missing}: pip install "taufree[{extra}]"'
        for part, (missing, extra) in MISSING.items()
    ]


def sentence(*arguments):
    with pytest.raises(MissingPackageError) as raised, needs(*arguments):
        import nowhere.inside  # noqa: F401
    return str(raised.value)


def test_an_extra_is_quoted_for_the_shell_and_a_package_is_not():
    assert sentence("taufree[rec]") == 'this part of taufree needs nowhere: pip install "taufree[rec]"'
    assert sentence("recbole", "nowhere") == "this part of taufree needs nowhere: pip install recbole"


def test_a_dependency_that_a_library_does_not_declare_is_installed_by_its_own_name():
    assert sentence("taufree[pygcl]", "GCL") == "this part of taufree needs nowhere: pip install nowhere"


def test_the_innermost_sentence_stays():
    inner = pytest.raises(MissingPackageError, match=r"taufree\[rec\]")
    with inner, needs("taufree[cli]"), needs("taufree[rec]"):
        import nowhere  # noqa: F401


def test_a_module_that_taufree_itself_lacks_is_a_mistake_and_stays_as_it_is():
    with pytest.raises(ModuleNotFoundError) as raised, needs("taufree[cli]"):
        import taufree.nowhere  # noqa: F401
    assert not isinstance(raised.value, MissingPackageError)


def test_a_required_module_is_not_imported():
    require("json.tool", "taufree[cli]")
    with pytest.raises(
        BadInputError, match=r'^this part of taufree needs nowhere: pip install "taufree\[cli\]"$'
    ):
        require("nowhere", "taufree[cli]")
