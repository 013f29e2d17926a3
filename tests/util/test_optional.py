"""The parts that need more than torch say what to install."""

import subprocess
import sys

MISSING = {
    "theory": ("scipy", "cli"),
    "embeddings": ("numpy", "cli"),
    "diagnosis_page": ("plotly", "cli"),
    "files": ("pyarrow", "cli"),
    "figures": ("matplotlib", "cli"),
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
