"""The notebooks of the documentation: each runs from its first cell to its last, in a folder of its own."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def code(path: Path) -> list[dict]:
    """The cells that run."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_are_python_and_show_what_came_out(path):
    cells = code(path)
    assert cells
    for cell in cells:
        ast.parse("".join(cell["source"]))
        assert not [output for output in cell["outputs"] if output["output_type"] == "error"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert "/home/" not in path.read_text(encoding="utf-8")


@pytest.mark.timeout(900)  # one of them trains
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_run(path, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if path.stem == "own_mujoco_model":
        pytest.importorskip("mujoco")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(tmp_path)}}).execute()
