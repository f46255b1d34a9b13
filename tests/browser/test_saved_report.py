"""A report that was saved: opened later, trusted or not, without its kernel, and exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser.book import Book
from tests.browser.conftest import Open, write_notebook
from tests.browser.lab import Server

sys.path.insert(0, str(Path(__file__).parents[1] / "show"))

from sample_reports import one_leak

from jaxleak_magic.show.bundle import mimebundle

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]


def _saved() -> dict[int, list[dict[str, Any]]]:
    """The outputs of one cell as a front end saves them."""
    return {0: [{"output_type": "display_data", "metadata": {}, "data": mimebundle(one_leak(), "a1b2c3d4e5f6")}]}


@pytest.mark.parametrize("trusted", [True, False])
def test_opened_later(opened: Open, server: Server, trusted: bool) -> None:
    book: Book = opened("1 + 1", outputs=_saved())
    if trusted:
        server.call("POST", f"api/contents/{book.path.name}/trust", path="")
        book.reload()
    output = book.cell(0).locator(".jp-RenderedHTMLCommon")
    output.get_by_text("leaked out of").first.wait_for()
    picture = output.locator("figure img")
    book.page.wait_for_function("document.querySelector('.jp-RenderedHTMLCommon figure img')?.naturalWidth > 100")
    book.page.wait_for_timeout(1000)
    assert picture.is_visible()
    text = output.inner_text()
    for word in ("model not found", "Loading widget", "Error"):
        assert word not in book.cell(0).inner_text()
    assert "%leakfix 1" in text
    assert "def make_learner(rate):" in text
    assert output.get_by_role("button").count() == 0
    assert output.locator("details").count() >= 1


def test_exported_to_html(tmp_path: Path, context: Any) -> None:
    path = tmp_path / "exported.ipynb"
    write_notebook(path, "1 + 1", outputs=_saved())
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    page = context.new_page()
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    page.goto(path.with_suffix(".html").as_uri(), wait_until="commit")
    report = page.locator("[data-jaxleak]")
    report.get_by_text("leaked out of").first.wait_for()
    assert report.get_by_role("button").count() == 0
    assert report.locator(".pic img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    assert "%leakfix 1" in report.inner_text()
    page.close()
