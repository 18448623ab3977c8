"""The learner's notebook runs from top to bottom on the scripted models."""

from pathlib import Path

import pytest


def test_the_notebook_on_learning_runs_from_top_to_bottom():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    root = Path(__file__).parents[3]
    notebook = nbformat.read(root / "notebooks" / "evocue_agent.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(root)}}).execute()
    texts = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "The program has learned 1 edit" in texts
    assert "100.0% after" in texts
    assert "No edit was inherited: the program is unchanged." in texts
