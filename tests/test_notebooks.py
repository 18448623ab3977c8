"""Every notebook runs from top to bottom, as a user would run it, and what it has stored names no machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|tmp|work|Users|usr|opt|var|private)/|[A-Z]:\\\\)")

RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, tmp_path):
    # In a process of its own, since Jupyter's client leaves an event loop and sockets behind.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "IPYTHONDIR": str(tmp_path / "ipython")}
    for name in ("DSPY_LM", "DSPY_COMBEE_GGUF"):
        environment.pop(name, None)
    command = [sys.executable, "-c", RUN, str(path), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_has_stored_names_no_path_of_a_machine(path):
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = MACHINE_PATH.search(str(outputs))
    assert found is None, str(outputs)[found.start() - 80 : found.end() + 80] if found else ""


def test_there_are_notebooks():
    assert NOTEBOOKS
