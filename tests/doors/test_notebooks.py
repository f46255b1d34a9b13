"""The notebooks that come with the project: they run, and their saved outputs are there."""

from __future__ import annotations

import json

import nbclient
import nbformat
import pytest

from tests.conftest import REPOSITORY

QUICKSTART = REPOSITORY / "notebooks" / "quickstart.ipynb"


def bundles(notebook):
    return [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", []) if "data" in output]


def test_saved_outputs_hold_the_report_and_no_widget():
    notebook = json.loads(QUICKSTART.read_text(encoding="utf-8"))
    reports = [bundle for bundle in bundles(notebook) if "text/html" in bundle]
    assert "leaked out of" in "".join(reports[0]["text/plain"])
    assert "<script" not in json.dumps(reports)
    assert "widgets" not in notebook["metadata"]
    assert all(cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.mark.kernel
@pytest.mark.filterwarnings("ignore")
def test_quickstart_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(QUICKSTART, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    reports = [bundle["text/plain"] for bundle in bundles(notebook) if "text/html" in bundle]
    assert "`rate` leaked out of `vmap(make_learner)`" in reports[0]
    assert "No leaked tracers" in reports[1]
    assert list(tmp_path.iterdir()) == []
