"""Whatever a name, repr, key or file name holds: a browser's own parser finds nothing in a report but what we wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "show"))

from hostile_texts import hostile_texts
from sample_reports import SAMPLES, one_leak, two_leaks, with_text_everywhere

from jaxleak_magic.show.graph import graph_svg
from jaxleak_magic.show.html import render_html
from jaxleak_magic.show.page import render_page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

# What a parsed report holds: names of elements and attributes, addresses, and whether anything ran.
PARSE = """(pages) => pages.map((html) => {
  const all = [...new DOMParser().parseFromString(html, "text/html").querySelectorAll("*")];
  const unique = (items) => [...new Set(items)].sort();
  return {
    elements: unique(all.map((e) => e.localName)),
    attributes: unique(all.flatMap((e) => [...e.attributes].map((a) => a.name))),
    addresses: unique(all.flatMap((e) => ["href", "src"].map((a) => e.getAttribute(a))).filter((a) => a !== null)),
    styles: all.filter((e) => e.localName === "style").length,
  };
})"""

ELEMENTS = {
    "html",
    "head",
    "body",
    "div",
    "style",
    "h3",
    "h4",
    "p",
    "pre",
    "span",
    "i",
    "b",
    "code",
    "small",
    "mark",
    "ul",
}
ELEMENTS |= {"ol", "li", "dl", "dt", "dd", "details", "summary", "figure", "img", "footer"}
ATTRIBUTES = {"class", "title", "src", "alt", "open", "data-jaxleak", "data-jaxleak-fix", "style"}


@pytest.fixture(scope="module")
def parser(browser: Any) -> Any:
    """A page that parses documents."""
    page = browser.new_page()
    page.goto("about:blank")
    yield page
    page.close()


def _judge(parser: Any, pages: list[str]) -> None:
    for seen in parser.evaluate(PARSE, pages):
        assert set(seen["elements"]) <= ELEMENTS
        assert set(seen["attributes"]) <= ATTRIBUTES
        assert all(address.startswith("data:image/svg+xml;base64,") for address in seen["addresses"])
        assert seen["styles"] == 1


def _reports(texts: list[str]) -> list[str]:
    return [render_html(with_text_everywhere(one_leak(), text)) for text in texts]


@given(st.lists(hostile_texts, min_size=10, max_size=10))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_text_to_a_browser(parser: Any, texts: list[str]) -> None:
    _judge(parser, _reports(texts))


@pytest.mark.nightly
@given(st.lists(hostile_texts, min_size=50, max_size=50))
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_ten_thousand_texts_are_text_to_a_browser(parser: Any, texts: list[str]) -> None:
    _judge(parser, _reports(texts))


def test_hostile_report_as_a_page_runs_nothing(browser: Any, tmp_path: Path) -> None:
    """The written page, with its picture, opened as a user opens it."""
    page = browser.new_page()
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url) if request.url.startswith("http") else None)
    path = tmp_path / "report.html"
    path.write_text(render_page([SAMPLES["hostile"](), two_leaks()]), encoding="utf-8")
    page.goto(path.as_uri())
    page.locator("[data-jaxleak]").first.wait_for()
    page.wait_for_timeout(500)
    assert asked == []
    assert page.locator("script").count() == 0
    assert "<script>alert(1)</script>" in page.locator("[data-jaxleak]").first.inner_text()
    sizes = page.locator("figure img").evaluate_all("images => images.map((image) => image.naturalWidth)")
    assert len(sizes) == 2
    assert all(sizes)
    page.close()


def test_hostile_names_in_the_live_graph(browser: Any) -> None:
    """The drawing is put into the page itself there: its names must be text too."""
    from jaxleak_magic.show.live import live_nodes, packed_script

    report = SAMPLES["hostile"]()
    page = browser.new_page()
    page.goto("about:blank")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    html, nodes = render_html(report, svg=graph_svg(report)), [list(node) for node in live_nodes(report)]
    show = """async ([source, html, nodes]) => {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const state = { html, nodes, fixes: [] };
      const model = { get: (name) => state[name], on: () => {}, off: () => {} };
      (await import(url)).default.render({ model, el: document.body });
    }"""
    page.evaluate(show, [packed_script("widget.js"), html, nodes])
    drawn = page.locator("svg [role=button]")
    assert drawn.count() == len(nodes)
    for index in range(drawn.count()):
        drawn.nth(index).dispatch_event("click")
    assert page.locator(".told b").inner_text() == nodes[-1][0]
    assert page.evaluate("document.querySelectorAll('script, svg a, svg image, foreignObject').length") == 0
    assert asked == []
    page.close()
