"""The main story as a user sees it: a leaking cell, its report, the fix, the run after it, and what is saved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser.book import Book
from tests.browser.conftest import LOAD
from tests.doors.leaking import CLEAN, MENDABLE

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

FOCUSED = "document.activeElement.textContent"
KINDS = {"text/plain", "text/html"}


def _outputs(book: Book, index: int) -> list[dict[str, Any]]:
    return book.saved()["cells"][index]["outputs"]


def test_report_fix_and_clean_run_by_keyboard_alone(opened: Any) -> None:
    book: Book = opened(LOAD, "%%leakcheck\n" + MENDABLE)
    book.run(0)
    book.run(1)
    book.said(1, "leaked out of")
    assert "rate" in book.report(1).locator("h3").inner_text()
    book.button(1, "Apply to cell").focus()
    book.press("Enter")
    book.button(1, "Undo")
    assert book.text(1).startswith("%%leakcheck\n")
    assert "Partial" in book.text(1)
    book.page.wait_for_function(f"{FOCUSED} === 'Run again'")
    book.page.wait_for_timeout(500)  # the kernel's update of the output comes, and must not take the focus away
    assert book.page.evaluate(FOCUSED) == "Run again"
    outputs = _outputs(book, 1)
    assert "Applied. Run the cell again to check it." in json.dumps(outputs)
    assert {kind for output in outputs for kind in output["data"]} == KINDS
    assert "widgets" not in json.loads(book.path.read_text())["metadata"]

    book.button(1, "Run again").focus()
    book.press("Enter")
    book.said(1, "Was 1 leak, now clean.")
    assert {kind for output in _outputs(book, 1) for kind in output["data"]} == KINDS


def test_leakfix_inserts_below_and_option_fix_replaces_its_own_cell(opened: Any, server: Any) -> None:
    # A kernel of its own: a rewrite is not offered for a second copy of the same text.
    own = server.start_kernel()
    book: Book = opened(LOAD, "%%leakcheck --fix 1\n" + MENDABLE, "%leakfix 1", kernel=own)
    book.run(0)
    book.run(1)
    book.cell(1).get_by_text("Partial").first.wait_for()
    assert book.text(1).startswith("%%leakcheck\n")
    book.run(2)
    book.page.wait_for_function("document.querySelectorAll('.jp-Notebook .jp-Cell').length === 4")
    assert book.text(2) == "%leakfix 1"
    assert "Partial" in book.text(3)


def test_a_long_check_says_that_it_runs(shared: Book) -> None:
    index = shared.add("%%leakcheck\nimport time\nprint('first')\ntime.sleep(4)\n" + CLEAN)
    shared.start(index)
    status = shared.cell(index).get_by_role("status")
    status.get_by_text("Checking for leaks: 1 s").wait_for()
    assert "traces seen" in status.inner_text()
    status.get_by_text("Checking for leaks: 2 s").wait_for()
    shared.said(index, "No leaked tracers")
    assert shared.cell(index).get_by_text("Checking for leaks").count() == 0
    outputs = _outputs(shared, index)
    assert "Checking for leaks" not in json.dumps(outputs)
    heights = "cell => [...cell.querySelectorAll('.jp-OutputArea-child')].map(e => e.offsetHeight)"
    assert sorted(shared.cell(index).evaluate(heights))[0] == 0
