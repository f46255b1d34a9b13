"""The main story as a user sees it: a leaking cell in JupyterLab, its report, the fix, and the clean run after it."""

from __future__ import annotations

import json

import pytest

from tests.browser.lab import answer_dialogs
from tests.doors.leaking import MENDABLE, notebook

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

LONG = 90_000
"""Milliseconds: importing JAX in a cold kernel on a busy machine takes a while."""


PROMPT = ".jp-Notebook .jp-InputPrompt"


class Notebook:
    """One notebook in a page."""

    def __init__(self, page, path):
        self.page, self.path = page, path
        page.set_default_timeout(LONG)

    def cell(self, index):
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def text(self, index):
        return "\n".join(self.cell(index).locator(".cm-line").all_text_contents())

    def run(self, index):
        """Run a cell and wait for its number."""
        self.page.wait_for_selector(".jp-NotebookPanel-toolbar [data-status='idle']")
        self.cell(index).locator(".cm-content").click()
        before = self.prompt(index)
        for _ in range(LONG // 10_000):  # Lab drops, without a word, a run asked for before its kernel is there
            self.page.keyboard.press("Control+Enter")
            for _ in range(20):
                self.page.wait_for_timeout(500)
                if self.prompt(index) not in (before, "[*]:"):
                    return
                if self.prompt(index) == "[*]:":
                    self.page.wait_for_function(f"document.querySelectorAll('{PROMPT}')[{index}].innerText !== '[*]:'")
        raise AssertionError(f"cell {index} did not run")

    def prompt(self, index):
        return self.page.locator(PROMPT).nth(index).inner_text().strip()

    def saved(self):
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")
        self.page.wait_for_timeout(2000)
        return json.loads(self.path.read_text())


@pytest.fixture
def opened(lab, browser, request):
    url, folder = lab

    def open_notebook(*sources):
        path = notebook(folder / f"{request.node.name}.ipynb", *sources)
        page = browser.new_page(viewport={"width": 1000, "height": 1400})
        request.addfinalizer(page.close)
        page.goto(f"{url}/doc/tree/{path.name}")
        page.wait_for_selector(".jp-Notebook .cm-content", timeout=LONG)
        answer_dialogs(page)
        return Notebook(page, path)

    return open_notebook


def test_report_fix_and_clean_run(opened):
    book = opened("%load_ext jaxleak_magic", "%%leakcheck\n" + MENDABLE)
    book.run(0)
    book.run(1)
    report = book.cell(1).locator("[data-jaxleak]")
    report.get_by_text("leaked").first.wait_for()
    assert "rate" in report.inner_text()
    assert "vmap" in report.inner_text()

    report.get_by_role("button", name="Apply to cell").first.click()
    report.get_by_role("button", name="Undo").first.wait_for()
    assert book.text(1).startswith("%%leakcheck\n")
    assert "Partial" in book.text(1)

    book.run(1)
    report.get_by_text("No leak").first.wait_for()
    outputs = book.saved()["cells"][1]["outputs"]
    assert {kind for output in outputs for kind in output["data"]} == {"text/plain", "text/html"}


def test_leakfix_in_another_cell_inserts_one_below(opened):
    book = opened("%load_ext jaxleak_magic", "%%leakcheck\n" + MENDABLE, "%leakfix 1")
    for index in range(3):
        book.run(index)
    book.page.wait_for_function("document.querySelectorAll('.jp-Notebook .jp-Cell').length === 4")
    assert book.text(1) == "%%leakcheck\n" + MENDABLE
    assert book.text(2) == "%leakfix 1"
    assert "Partial" in book.text(3)


def test_option_fix_replaces_its_own_cell(opened):
    book = opened("%load_ext jaxleak_magic", "%%leakcheck --fix 1\n" + MENDABLE)
    book.run(0)
    book.run(1)
    book.cell(1).get_by_text("Partial").first.wait_for()
    assert book.text(1).startswith("%%leakcheck\n")
