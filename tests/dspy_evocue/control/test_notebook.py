"""The notebook runs from top to bottom on the scripted model."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]


def test_the_controller_notebook_runs_and_shows_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.delenv("DSPY_LM", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "notebooks" / "evocue_controller.ipynb", as_version=4)
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "recurring  applied: 0.0 -> 1.0" in printed
    assert "same graph: True" in printed
