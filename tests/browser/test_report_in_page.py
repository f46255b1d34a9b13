"""What a report looks and acts like in a front end: several leaks, the graph, widths, what a screen reader is told."""

from __future__ import annotations

import pytest

from tests.browser.book import Book
from tests.browser.conftest import EARLIER, TWO

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

FOCUSED = "document.activeElement.textContent"

# Elements that stick out of the report, but for those inside what scrolls by itself.
WIDER = """root => [...root.querySelectorAll('*')]
    .filter(e => !e.closest('pre, svg, figure, style')
        && e.getBoundingClientRect().right > root.getBoundingClientRect().right + 1)
    .map(e => e.outerHTML.slice(0, 80))"""
CASE_CHANGED = """root => [...root.querySelectorAll('*')]
    .filter(e => getComputedStyle(e).textTransform !== 'none').map(e => e.outerHTML.slice(0, 80))"""
UNNAMED = """root => [...root.querySelectorAll('button, [role=button], summary')]
    .filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"""


@pytest.fixture(scope="session")
def index(shared: Book) -> int:
    """The cell with a report of two leaks."""
    earlier, index = shared.add(EARLIER), shared.add(TWO)
    shared.run(earlier)
    shared.run(index)
    shared.report(index).locator("svg").wait_for()
    return index


def test_leaks_are_walked_by_keyboard_and_stay_open_when_the_output_changes(shared: Book, index: int) -> None:
    report = shared.report(index)
    titles = report.locator(".leak > summary")
    titles.nth(0).focus()
    shared.press("ArrowDown")
    assert shared.page.evaluate(FOCUSED) == titles.nth(1).text_content()
    shared.press("Enter")
    assert report.locator(".leak").nth(1).get_attribute("open") is not None
    shared.press("ArrowUp")
    assert shared.page.evaluate(FOCUSED) == titles.nth(0).text_content()
    shared.button(index, "Apply to cells").click()
    shared.button(index, "Undo")
    shared.page.wait_for_timeout(700)
    assert report.locator(".leak").nth(1).get_attribute("open") is not None
    assert report.locator("svg").count() == 1
    shared.button(index, "Undo").click()
    shared.said(index, "Taken back.")


def test_a_node_of_the_graph_tells_what_it_is(shared: Book, index: int) -> None:
    report = shared.report(index)
    assert report.locator(".pic img").count() == 0
    nodes = report.locator("svg [role=button]")
    assert nodes.count() == 8
    told = report.locator(".told")
    nodes.nth(1).click()
    assert told.inner_text() == "net · global variable · defined in In [3], line 18"
    number = shared.number(index)
    nodes.nth(2).focus()
    shared.press("Enter")
    assert told.inner_text() == "Net · type Net · defined in In [3], line 8"
    assert shared.number(index) == number


@pytest.mark.parametrize("width", [400, 1000])
def test_nothing_sticks_out_and_no_name_changes_its_case(shared: Book, index: int, width: int) -> None:
    report = shared.report(index)
    report.evaluate(f"root => root.style.width = '{width}px'")
    report.evaluate("root => root.querySelectorAll('details').forEach(e => e.open = true)")
    shared.page.wait_for_timeout(200)
    assert report.evaluate(WIDER) == []
    assert report.evaluate(CASE_CHANGED) == []
    report.evaluate("root => root.style.width = ''")


def test_what_a_screen_reader_is_told(shared: Book, index: int) -> None:
    report = shared.report(index)
    assert report.get_by_role("heading", level=3).inner_text() == "2 leaks"
    assert report.get_by_role("group", name="Graph of what keeps").count() == 1
    assert report.get_by_role("button", name="net: global variable").count() == 1
    assert report.evaluate(UNNAMED) == 0
