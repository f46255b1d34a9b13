"""The notebooks that come with the project: they run and report the same, and their saved outputs are there."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def bundles(notebook: Any) -> list[dict[str, Any]]:
    return [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", []) if "data" in output]


def verdicts(notebook: Any) -> list[tuple[str, ...]]:
    """Of each report its verdict, and the titles of its fixes."""
    found: list[tuple[str, ...]] = []
    for bundle in bundles(notebook):
        if "text/html" not in bundle:
            continue
        text = "".join(bundle["text/plain"])
        fixes = re.findall(r"^(Fix \d+: .*?)\n  \S", text, re.MULTILINE | re.DOTALL)
        found.append((text.splitlines()[0], *(" ".join(fix.split()) for fix in fixes)))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_hold_reports_and_nothing_of_a_machine(path: Path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert verdicts(notebook)
    assert "widgets" not in notebook["metadata"]
    assert all(cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert "<script" not in text
    assert "ipykernel_" not in text and "site-packages" not in text
    assert not any(folder in text for folder in (str(REPOSITORY), sys.prefix, tempfile.gettempdir() + os.sep))


@pytest.mark.kernel
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_run_anew_it_reports_the_same(path: Path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(path, as_version=4)
    saved = verdicts(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert verdicts(notebook) == saved
    assert list(tmp_path.iterdir()) == []
