"""The notebook runs from top to bottom on the scripted model."""

from pathlib import Path

import pytest


def test_the_notebook_on_call_sites_runs_from_top_to_bottom():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    root = Path(__file__).parents[2]
    notebook = nbformat.read(root / "notebooks" / "evocue_call_sites.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(root)}}).execute()
    texts = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "recurring entry  applied: 0 -> 1" in texts
    assert "control check" in texts
