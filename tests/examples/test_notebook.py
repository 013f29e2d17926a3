"""The notebook, executed as a reader would."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.command import ENVIRONMENT
from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def outputs(notebook, kind):
    return [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == kind
    ]


def test_no_outputs_are_committed():
    assert all(not cell.get("outputs") for cell in nbformat.read(NOTEBOOK, 4).cells)


@pytest.mark.slow
def test_the_notebook_runs_and_draws(tmp_path, monkeypatch):
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}[name])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = outputs(notebook, "display_data")
    assert len(pictures) == 3
    assert all("image/png" in picture.data for picture in pictures)
    text = "".join(output.text for output in outputs(notebook, "stream") if output.name == "stdout")
    assert "FittedLogOdds(gain=" in text
    assert not [output.text for output in outputs(notebook, "stream") if output.name == "stderr"]
