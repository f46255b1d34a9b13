"""Pictures of the reports of the seven seed cases in JupyterLab, light and dark, wide and narrow: for looking at.

They are kept where ``JAXLEAK_SCREENSHOTS`` names a folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.book import Book
from tests.browser.conftest import LOAD, write_notebook
from tests.browser.lab import Server

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
SEEDS = sorted(folder.name for folder in CORPUS.glob("seed*"))
THEMES = "lab/api/settings/@jupyterlab/apputils-extension:themes"


@pytest.fixture(scope="module")
def seeds(server: Server, context: Any) -> Iterator[Book]:
    """A notebook in JupyterLab in which every seed case has run."""
    path = server.folder / "seeds.ipynb"
    write_notebook(path, LOAD, *(f"%%leakcheck\n{(CORPUS / name / 'cell.py').read_text()}" for name in SEEDS))
    server.attach(path.name, server.start_kernel())
    book = Book(context, server.address("lab", path.name), path)
    book.page.set_viewport_size({"width": 1000, "height": 2600})
    for index in range(len(SEEDS) + 1):
        book.run(index)
    book.saved()
    yield book
    server.call("PUT", THEMES, raw=json.dumps({"theme": "JupyterLab Light"}))
    book.close()


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_seed_cases_in_light_and_dark(seeds: Book, server: Server, theme: str, tmp_path: Path) -> None:
    assert len(SEEDS) == 7
    folder = Path(os.environ.get("JAXLEAK_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    server.call("PUT", THEMES, raw=json.dumps({"theme": f"JupyterLab {theme}"}))
    seeds.reload()
    seeds.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(theme == 'Light').lower()}'")
    for index, name in enumerate(SEEDS, 1):
        report = seeds.report(index)
        report.scroll_into_view_if_needed()
        seeds.page.wait_for_timeout(300)
        report.screenshot(path=folder / f"{name}-{theme.lower()}.png")
        ink, ground = report.evaluate("root => [getComputedStyle(root).color, getComputedStyle(root).backgroundColor]")
        assert (_lightness(ink) > _lightness(ground)) == (theme == "Dark")
        report.evaluate("root => root.style.width = '400px'")
        seeds.page.wait_for_timeout(100)
        report.screenshot(path=folder / f"{name}-{theme.lower()}-narrow.png")
        report.evaluate("root => root.style.width = ''")


def _lightness(colour: str) -> int:
    return sum(map(int, re.findall(r"\d+", colour)[:3]))
