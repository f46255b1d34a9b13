"""The bridge in a real JupyterLab: Apply, Undo, refusal, reload, and what is saved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import answer_dialogs, running_lab

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CELL = "import bridge_demo\nmarker = 'before'\nbridge = bridge_demo.show(\"'be\" + \"fore'\", \"'after'\", 'uid{}')"


def _notebook(path: Path, uid: str) -> None:
    cell = {"cell_type": "code", "execution_count": None, "id": "made1", "metadata": {}, "outputs": []}
    book = {
        "cells": [{**cell, "source": CELL.format(uid)}, {**cell, "id": "other1", "source": "marker = 'before'"}],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(book))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("lab")
    with running_lab(folder, tmp_path_factory.mktemp("home"), [ROOT, HERE]) as url:
        yield url, folder


@pytest.fixture
def page(lab: tuple[str, Path], browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page on a fresh notebook in which the first cell has run and its report is armed."""
    url, folder = lab
    name = re.sub(r"\W", "", request.node.name)
    _notebook(folder / f"{name}.ipynb", name)
    page = browser.new_page(viewport={"width": 1000, "height": 1100})
    page.goto(f"{url}/doc/tree/{name}.ipynb")
    page.wait_for_selector(".jp-Notebook .cm-content", timeout=60_000)
    page.wait_for_selector(".jp-NotebookPanel-toolbar [data-status='idle']", timeout=60_000)
    _run_first_cell(page)
    page.path = folder / f"{name}.ipynb"
    yield page
    page.close()


def _run_first_cell(page: Any) -> None:
    """Run it once: Lab drops, without a word, a run that is asked for before its kernel is there, so ask again then.

    A run that has begun is never asked for again: the second one would make the report anew in the middle of a test.
    """
    prompt = page.locator(".jp-Notebook .jp-InputPrompt").first
    for _ in range(9):
        answer_dialogs(page)
        page.locator(".jp-Notebook .cm-content").first.click()
        page.keyboard.press("Control+Enter")
        for _ in range(20):
            page.wait_for_timeout(500)
            if prompt.inner_text().strip() != "[ ]:":
                page.wait_for_selector("[data-jaxleak-fix] button", timeout=90_000)
                page.wait_for_function("document.querySelector('.jp-Notebook .jp-InputPrompt').innerText !== '[*]:'")
                return
    raise AssertionError("the first cell did not run")


def _cell(page: Any, index: int = 0) -> str:
    return "\n".join(page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".cm-line").all_inner_texts())


def _status(page: Any) -> Any:
    return page.locator("[data-jaxleak-fix] [role=status]")


def _saved(page: Any) -> dict[str, Any]:
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1500)
    return json.loads(page.path.read_text())


def test_apply_changes_the_cell_and_undo_takes_it_back(page: Any) -> None:
    page.get_by_role("button", name="Apply to cell").click()
    page.get_by_role("button", name="Undo").wait_for()
    assert "'after'" in _cell(page).split("\n")[1]
    assert _cell(page, 1) == "marker = 'before'"
    # The kernel's update of the output has come: the saved report says so too.
    page.wait_for_function("document.querySelector('[data-jaxleak-fix]').innerText.includes('Applied.')")
    page.wait_for_timeout(500)
    saved = _saved(page)
    assert "Applied. Run the cell again" in json.dumps(saved["cells"][0]["outputs"])
    assert "widgets" not in saved["metadata"]
    assert set(saved["cells"][0]["outputs"][0]["data"]) == {"text/plain", "text/html"}
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Apply to cell").wait_for()
    assert "'before'" in _cell(page).split("\n")[1]


def test_one_ctrl_z_takes_the_change_back(page: Any) -> None:
    before = _cell(page)
    page.get_by_role("button", name="Apply to cell").click()
    page.get_by_role("button", name="Undo").wait_for()
    assert _cell(page) != before
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.press("Control+z")
    assert _cell(page) == before


def test_an_edited_cell_is_left_alone(page: Any) -> None:
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("  # mine")
    before = _cell(page)
    page.get_by_role("button", name="Apply to cell").click()
    _status(page).get_by_text("Not applied: a cell was edited since. Use %leakfix 1.").wait_for()
    assert _cell(page) == before


def test_a_reload_brings_the_buttons_back(page: Any) -> None:
    _saved(page)
    page.reload()
    page.wait_for_selector("[data-jaxleak-fix] button", timeout=60_000)
    page.get_by_role("button", name="Apply to cell").click()
    page.get_by_role("button", name="Undo").wait_for()
    assert "'after'" in _cell(page)


def test_everything_is_reached_by_keyboard(page: Any) -> None:
    page.get_by_role("button", name="Apply to cell").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Undo").wait_for()
    page.wait_for_function("document.activeElement.textContent === 'Undo' || document.activeElement === document.body")
    summary = page.locator("[data-jaxleak] summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-jaxleak] details").first.get_attribute("open") is not None
