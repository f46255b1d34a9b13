"""``%leakwatch``: every cell is watched by the census alone, and a leak is told in one line."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.detect.watch import LeakWatch
from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.diagnose.sources import SourceBook

WATCH = "leakwatch"

WATCHED_SHELLS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Shells whose user has said ``on``. It outlives the magics, so that a reload of the extension goes on watching."""


class CellWatch:
    """Watches one shell's cells.

    Args:
        book: the texts of the cells.
        namespace: the user's namespace.
        notify: shows the line on a leak.
    """

    def __init__(self, book: SourceBook, namespace: Mapping[str, Any], notify: Callable[[Report], None]) -> None:
        self.cells = 0
        self.leaking_cells = 0
        self.seconds = 0.0
        self._book = book
        self._namespace = namespace
        self._notify = notify
        self._watch = LeakWatch(book.filenames)

    def start(self) -> bool:
        """Import JAX and put the hook in; False where it has no place for it. Raises RuntimeError inside a check."""
        return self._watch.install()

    def stop(self) -> None:
        """Take the hook out again. Raises RuntimeError inside a check."""
        self._watch.uninstall()

    def begin(self) -> None:
        """A cell begins."""
        self.cells += 1
        self._watch.begin()

    def end(self, file: str | None, error: BaseException | None) -> Report | None:
        """The cell has ended: look for leaks, and show the line where there is one.

        Args:
            file: name that the cell was compiled under.
            error: what it raised, or None.

        Returns:
            the full report of a cell that leaked.
        """
        begun = time.perf_counter()
        check = self._watch.end()
        if check is None:
            return None
        options = CheckOptions(retrace=False, notes=False, fast=True)
        out = {"Out": self._namespace.get("Out")}
        report = CheckedRun(self._book, self._namespace, file, options, out).explain_watched(check, error)
        self.seconds += time.perf_counter() - begun
        if report is not None:
            self.leaking_cells += 1
            self._notify(report)
        return report

    def forget(self) -> None:
        """Let go of what is known of the last cell."""
        self._watch.forget()

    def __str__(self) -> str:
        from jaxleak_magic.show.words import plural

        said = f"%{WATCH} is on: {plural(self.cells, 'cell')} watched, {self.leaking_cells or 'none'} of them leaked"
        return f"{said}, {self.seconds:.1f} s spent searching."
