"""Apply, Undo, Copy and Run again, and what they refuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.browser.book import Book
from tests.browser.conftest import EARLIER, LOAD, ONE, TWO, Open
from tests.browser.lab import Server

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

AFTER = ONE.replace("'before'", "'after'")
REFUSED = "Not applied: a cell was edited since. Use %leakfix 1."


def test_undo_and_ctrl_z(shared: Book) -> None:
    index = shared.add(ONE)
    shared.run(index)
    shared.button(index, "Apply to cell").click()
    shared.button(index, "Undo").click()
    shared.said(index, "Taken back.")
    assert shared.text(index) == ONE
    shared.button(index, "Apply to cell").click()
    shared.button(index, "Undo")
    assert shared.text(index) == AFTER
    shared.edit(index)
    shared.press("Control+z")
    assert shared.text(index) == ONE


def test_an_edited_cell_is_left_alone_and_can_be_copied(shared: Book) -> None:
    index = shared.add(ONE)
    shared.run(index)
    shared.edit(index)
    shared.page.keyboard.type("  # mine")
    shared.button(index, "Apply to cell").click()
    shared.said(index, REFUSED)
    assert shared.text(index) == ONE + "  # mine"
    shared.button(index, "Copy").click()
    shared.said(index, "Copied the new text.")
    assert shared.page.evaluate("navigator.clipboard.readText()") == AFTER


def test_a_fix_over_two_cells_changes_both_or_none_and_both_run_again(shared: Book) -> None:
    first, second, third = shared.add(EARLIER), shared.add(TWO), shared.add(EARLIER)
    shared.run(first)
    shared.run(second)
    shared.button(second, "Apply to cells").click()
    shared.button(second, "Undo")
    assert shared.text(first) == EARLIER.replace("before", "after")
    assert shared.text(second).startswith("marker = 'after'")
    assert shared.text(third) == EARLIER
    before = shared.number(first), shared.number(second)
    shared.button(second, "Run again").click()
    shared.wait_for_run(first, before[0])
    shared.wait_for_run(second, before[1])
    assert before[1] < shared.number(first) < shared.number(second)

    shared.edit(first)
    shared.page.keyboard.type("  # mine")
    texts = shared.text(first), shared.text(second)
    shared.button(second, "Apply to cells").click()
    shared.said(second, REFUSED)
    assert (shared.text(first), shared.text(second)) == texts


def test_two_notebooks_on_one_kernel(opened: Open, server: Server) -> None:
    kernel = server.start_kernel()
    one, other = opened(LOAD, ONE, kernel=kernel), opened(LOAD, ONE, kernel=kernel)
    for book in (one, other):
        book.run(0)  # a page that has only just been loaded may miss the first widget of its kernel
        book.run(1)
    assert server.kernel_of(one.path.name) == server.kernel_of(other.path.name)
    other.button(1, "Apply to cell").click()
    other.button(1, "Undo")
    assert other.text(1) == AFTER
    assert one.text(1) == ONE
    one.button(1, "Apply to cell").click()
    one.button(1, "Undo")
    assert one.text(1) == AFTER


def test_reload_and_restart(opened: Open, server: Server) -> None:
    book = opened(LOAD, ONE, kernel=server.start_kernel())
    book.run(0)
    book.run(1)
    book.button(1, "Apply to cell")
    book.saved()
    book.reload()
    book.button(1, "Apply to cell").click()
    book.button(1, "Undo").click()
    book.said(1, "Taken back.")
    assert book.text(1) == ONE
    book.saved()

    server.call("POST", f"api/kernels/{server.kernel_of(book.path.name)}/restart")
    book.page.wait_for_timeout(1500)
    assert book.report(1).locator("h3").is_visible()
    button = book.report(1).get_by_role("button", name="Apply to cell")
    if button.count():  # the front end may keep what it has: then a click changes this cell, or nothing
        button.first.click()
        book.page.wait_for_timeout(500)
    assert book.text(0) == LOAD
    assert book.text(1) in (ONE, AFTER)
    book.reload()
    book.said(1, "leaked out of")
    book.page.wait_for_timeout(1500)
    assert book.report(1).get_by_role("button").count() == 0
    assert book.report(1).get_by_text("Take it with %leakfix 1").count() == 1


@pytest.mark.parametrize("delay_ms", [0, 30])
def test_a_restart_while_a_fix_is_being_applied(opened: Open, server: Server, delay_ms: int) -> None:
    book = opened(LOAD, EARLIER, TWO, kernel=server.start_kernel())
    for index in range(3):
        book.run(index)
    book.button(2, "Apply to cells")
    restart = f"api/kernels/{server.kernel_of(book.path.name)}/restart"
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(server.call, "POST", restart)
        book.page.wait_for_timeout(delay_ms)
        button = book.report(2).get_by_role("button", name="Apply to cells", exact=True)
        if button.count():  # else the front end has taken the buttons away already
            button.first.click(timeout=5000)
        restarted.result()
    book.page.wait_for_timeout(1500)
    before, after = (EARLIER, TWO), tuple(text.replace("'before'", "'after'", 1) for text in (EARLIER, TWO))
    assert (book.text(1), book.text(2)) in (before, after)
    assert book.text(0) == LOAD
    book.saved()
    book.reload()
    assert (book.text(1), book.text(2)) in (before, after)
    book.said(2, "leaked out of")
