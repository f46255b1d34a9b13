"""Two people in one notebook (jupyter-collaboration): a fix goes into the right cell, for both, and over no edit.

For the night: `pip install jupyter-collaboration`, then `pytest -m nightly tests/browser/test_collaboration.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.book import Book
from tests.browser.conftest import HERE, LOAD, ONE, ROOT, write_notebook
from tests.browser.lab import Server, missing, running_server
from tests.browser.test_buttons import AFTER, REFUSED

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def collaboration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on which a notebook is one document for all who have it open."""
    if importlib.util.find_spec("jupyter_collaboration") is None:
        missing("jupyter-collaboration is not installed: `pip install jupyter-collaboration`")
    folder = tmp_path_factory.mktemp("together")
    with running_server(folder, tmp_path_factory.mktemp("home"), [ROOT, HERE], together=True) as running:
        yield running


@pytest.fixture
def two(collaboration: Server, browser: Any) -> Iterator[tuple[Book, Book]]:
    """Two browsers that have one notebook open, whose first cell has run."""
    path = collaboration.folder / f"book{len(list(collaboration.folder.iterdir()))}.ipynb"
    write_notebook(path, LOAD, ONE, "'mine'")
    collaboration.attach(path.name, collaboration.start_kernel())
    contexts = [browser.new_context(viewport={"width": 1000, "height": 1200}) for _ in range(2)]
    first, second = (Book(context, collaboration.address("lab", path.name), path) for context in contexts)
    first.run(0)
    yield first, second
    for book, context in zip((first, second), contexts, strict=True):
        book.close()
        context.close()


def wait_for_text(book: Book, index: int, text: str) -> None:
    for _ in range(100):
        if book.text(index) == text:
            return
        book.page.wait_for_timeout(100)
    raise AssertionError(f"{book.text(index)!r} is not {text!r}")


def test_a_fix_of_one_is_seen_by_the_other_and_taken_back_for_both(two: tuple[Book, Book]) -> None:
    first, second = two
    first.run(1)
    first.button(1, "Apply to cell").click()
    first.button(1, "Undo")
    assert first.text(1) == AFTER
    wait_for_text(second, 1, AFTER)
    assert (first.text(0), first.text(2)) == (second.text(0), second.text(2)) == (LOAD, "'mine'")
    first.button(1, "Undo").click()
    first.said(1, "Taken back.")
    wait_for_text(second, 1, ONE)


def test_an_edit_of_the_other_is_not_overwritten(two: tuple[Book, Book]) -> None:
    first, second = two
    first.run(1)
    first.button(1, "Apply to cell")
    second.edit(1)
    second.page.keyboard.type("  # theirs")
    wait_for_text(first, 1, ONE + "  # theirs")
    first.button(1, "Apply to cell").click()
    first.said(1, REFUSED)
    assert first.text(1) == ONE + "  # theirs"


def test_a_cell_that_the_other_inserts_above_does_not_move_the_fix(two: tuple[Book, Book]) -> None:
    first, second = two
    first.run(1)
    first.button(1, "Apply to cell")
    second.cell(0).locator(".jp-InputPrompt").click()
    second.press("Escape", "b")
    first.page.wait_for_function("() => document.querySelectorAll('.jp-Notebook .jp-Cell').length === 4")
    first.button(2, "Apply to cell").click()
    first.button(2, "Undo")
    assert [first.text(index) for index in range(4)] == [LOAD, "", AFTER, "'mine'"]
    wait_for_text(second, 2, AFTER)
