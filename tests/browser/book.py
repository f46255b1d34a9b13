"""One notebook in a page of JupyterLab or Notebook 7, driven as a user drives it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

LONG = 90_000
"""Milliseconds: importing JAX in a cold kernel on a busy machine takes a while."""

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
  window.violations.push(`${violatedDirective} ${blockedURI}`));
"""


class Book:
    """One notebook in one page.

    Args:
        context: a Playwright browser context.
        address: the address of the notebook in its front end.
        path: its file.
    """

    def __init__(self, context: Any, address: str, path: Path) -> None:
        self.path = path
        self.page = context.new_page()
        self.page.set_default_timeout(LONG)
        self.page.add_init_script(_WATCH)
        self.page.goto(address)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait for the notebook and its kernel."""
        self.page.wait_for_selector(".jp-Notebook .jp-Cell .cm-content")
        self.answer_dialogs()

    def answer_dialogs(self) -> None:
        """Accept what the front end asks by itself before a cell has run, as on a slow machine: its server was not
        heard for a while, a kernel must be chosen. Such a dialog lies over the notebook, and a click on a cell would
        wait for ever. What it proposes first is a new kernel, for which it would shut down the notebook's own one.
        """
        dialog = self.page.locator(".jp-Dialog").first
        for _ in range(3):
            if dialog.count() == 0:
                return
            print(f"the front end asked: {dialog.inner_text()!r}")
            own = dialog.locator("option", has_text=self.path.name)
            if own.count() > 0:
                dialog.locator("select").select_option(own.first.get_attribute("value"))
            dialog.locator(".jp-mod-accept").click()
            self.page.wait_for_timeout(300)

    def cell(self, index: int) -> Any:
        """The element of a cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def report(self, index: int) -> Any:
        """The report in a cell's output."""
        return self.cell(index).locator("[data-jaxleak]")

    def text(self, index: int) -> str:
        """The source of a cell as its editor shows it."""
        return "\n".join(self.cell(index).locator(".cm-line").all_text_contents())

    def prompt(self, index: int) -> str:
        """What stands beside a cell: ``[ ]:``, ``[*]:`` or its number."""
        return self.cell(index).locator(".jp-InputPrompt").inner_text().strip()

    def number(self, index: int) -> int:
        """How often the kernel had run a cell when it ran this one; 0 before."""
        digits = self.prompt(index).strip("[]:* ")
        return int(digits) if digits else 0

    def wait_for_run(self, index: int, before: int) -> None:
        """Wait until a cell has run again, which had this number before."""
        self.page.wait_for_function(
            "([i, before]) => Number(document.querySelectorAll('.jp-Notebook .jp-InputPrompt')[i].innerText"
            ".replace(/\\D/g, '')) > before",
            arg=[index, before],
        )

    def add(self, source: str) -> int:
        """Add a cell at the end, and give its index."""
        index = self.page.locator(".jp-Notebook .jp-Cell").count()
        self.cell(index - 1).locator(".jp-InputPrompt").click()
        self.press("Escape", "b")
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.insert_text(source)
        assert self.text(index) == source
        return index

    def edit(self, index: int) -> None:
        """Put the cursor at the end of a cell."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Control+End")

    def start(self, index: int) -> None:
        """Run a cell in a kernel that is there, and do not wait for its end."""
        self.edit(index)
        self.press("Control+Enter")

    def run(self, index: int) -> None:
        """Run a cell and wait for its end.

        A run that is asked for before the kernel is there is dropped without a word: it is asked for again. One that
        has begun is never asked for again: the second one would make the report anew in the middle of a test.
        """
        before = self.prompt(index)
        for _ in range(9):
            self.answer_dialogs()
            self.start(index)
            for _ in range(100):
                self.page.wait_for_timeout(50)
                if self.prompt(index) not in (before, "[ ]:"):
                    self.wait_for_end(index)
                    break
            if self.prompt(index) not in (before, "[ ]:"):
                return
        raise AssertionError(f"cell {index} did not run")

    def wait_for_end(self, index: int) -> None:
        """Wait until a cell that runs has ended."""
        self.page.wait_for_function(
            "i => !document.querySelectorAll('.jp-Notebook .jp-InputPrompt')[i].innerText.includes('*')", arg=index
        )

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def button(self, index: int, name: str) -> Any:
        """A button of the report in a cell, when it is there."""
        found = self.report(index).get_by_role("button", name=name, exact=True).first
        found.wait_for()
        return found

    def said(self, index: int, text: str) -> None:
        """Wait until the report in a cell says something."""
        self.report(index).get_by_text(text).first.wait_for()

    def saved(self) -> dict[str, Any]:
        """Save the notebook, and give what its file holds then."""
        before = self.path.stat().st_mtime_ns
        self.press("Control+s")
        for _ in range(100):
            self.page.wait_for_timeout(100)
            with contextlib.suppress(json.JSONDecodeError):  # it is being written
                if self.path.stat().st_mtime_ns != before:
                    return json.loads(self.path.read_text())
        return json.loads(self.path.read_text())

    def reload(self) -> None:
        """Load the page anew."""
        self.page.reload()
        self.wait_until_ready()

    def close(self) -> None:
        """Close the page; nothing may have been fetched or run that the content security policy forbids."""
        violations = self.page.evaluate("window.violations")
        self.page.close(run_before_unload=False)
        assert violations == []
