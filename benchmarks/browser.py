"""How soon a report is there in JupyterLab and Notebook 7: visible, armed, applied; a plain HTML output beside it.

    python benchmarks/browser.py                         about a minute for each front end on two cores
    python benchmarks/browser.py --front-end lab --rounds 30

Needs a Chromium, JupyterLab and Notebook 7. In each round the leaking cell and a cell that displays the same HTML with
``IPython.display.HTML`` run one after the other in the same page. All times are milliseconds: medians, then smallest
and largest, of ``--rounds`` rounds after one that is not counted. A cell's end is the clock at its last line, which it
prints; what it is compared with is the browser's clock on the same machine when the frame with the output is drawn.
So "visible" holds the whole search for leaks with its explanation and rewriting, whose share the report itself tells;
the heap is that of a fresh notebook.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.book import Book
from tests.browser.conftest import write_notebook
from tests.browser.lab import running_browser, running_server
from tests.doors.leaking import MENDABLE

LOAD = "%load_ext jaxleak_magic\nimport time"
END = "print('END', time.time() * 1000)"
CHECKED = f"%%leakcheck -o report\n{MENDABLE}{END}"
SPENT = "spent = report.report.elapsed; print('SPENT', (spent.detect_s + spent.explain_s + spent.fix_s) * 1000)"
PLAIN = f"{SPENT}\nfrom IPython.display import HTML, display\nhtml = report._repr_html_()\n{END}\ndisplay(HTML(html))"

# Resolves with the clock at the first frame in which the cell has a new element of this kind.
WATCH = """([index, selector, name]) => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const old = new Set(cell.querySelectorAll(selector));
  window[name] = new Promise((resolve) => {
    const look = () => [...cell.querySelectorAll(selector)].some((e) => !old.has(e) && e.offsetHeight > 0)
      ? resolve(Date.now()) : requestAnimationFrame(look);
    look();
  });
}"""

APPLY = """async (index) => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const button = [...cell.querySelectorAll('[data-jaxleak-fix] button')].find((b) => b.textContent === 'Apply to cell');
  const begun = performance.now();
  button.click();
  while (!cell.querySelector('.cm-content').textContent.includes('Partial'))
    await new Promise((resolve) => requestAnimationFrame(resolve));
  return performance.now() - begun;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-end", choices=["lab", "notebook"], action="append")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as home,
        running_browser() as browser,
        running_server(Path(folder), Path(home), [ROOT]) as server,
    ):
        for front_end in arguments.front_end or ["lab", "notebook"]:
            path = Path(folder) / f"{front_end}.ipynb"
            write_notebook(path, LOAD, CHECKED, PLAIN)
            server.attach(path.name, server.start_kernel())
            book = Book(browser.new_context(), server.address(front_end, path.name), path)
            _tell(front_end, _measure(book, arguments.rounds))
            book.close()


def _measure(book: Book, rounds: int) -> dict[str, list[float]]:
    book.run(0)
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        times = _round(book)
        if number:
            for name, value in times.items():
                found.setdefault(name, []).append(value)
    return found


def _round(book: Book) -> dict[str, float]:
    _watch(book, 1, "[data-jaxleak]", "visible")
    _watch(book, 1, "[data-jaxleak-fix] button", "armed")
    book.run(1)
    visible, armed = (book.page.evaluate(f"window.{name}") - _printed(book, 1, "END") for name in ("visible", "armed"))
    book.page.wait_for_timeout(1000)  # the picture comes
    applied = book.page.evaluate(APPLY, 1)
    book.button(1, "Undo").click()
    book.button(1, "Apply to cell")
    _watch(book, 2, "[data-jaxleak]", "plain")
    book.run(2)
    plain = book.page.evaluate("window.plain") - _printed(book, 2, "END")
    return {
        "plain HTML visible": plain,
        "report visible": visible,
        "  of it in the search": _printed(book, 2, "SPENT"),
        "report armed": armed,
        "Apply to editor": applied,
    }


def _watch(book: Book, index: int, selector: str, name: str) -> None:
    book.page.evaluate(WATCH, [index, selector, name])


def _printed(book: Book, index: int, word: str) -> float:
    text: Any = book.cell(index).locator(".jp-OutputArea").inner_text()
    return float(text.split(word)[1].split()[0])


def _tell(front_end: str, found: dict[str, list[float]]) -> None:
    print(f"\n{front_end}, {len(next(iter(found.values())))} rounds, ms: median (smallest to largest)")
    for name, values in found.items():
        print(f"  {name:<22}{statistics.median(values):7.0f}   ({min(values):.0f} to {max(values):.0f})")


if __name__ == "__main__":
    main()
