"""A made-up check, for testing what a door does around one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import IPython

from jaxleak_magic.diagnose.model import Checked, Report


def empty_report(**changes: Any) -> Report:
    """A report of a clean run."""
    report = Report("0.0.0", "3.11.0", None, Checked(True, True, True))
    return dataclasses.replace(report, **changes)


class FakeRun:
    """A check that checks nothing and tells what a door did with it."""

    made: list[FakeRun]
    report: Callable[[FakeRun, BaseException | None], Report]
    start_error: BaseException | None = None

    def __init__(
        self, sources: Any, namespace: Any, checked_file: Any = None, options: Any = None, extra_roots: Any = None
    ) -> None:
        self.sources, self.namespace, self.checked_file, self.options = sources, namespace, checked_file, options
        self.extra_roots = extra_roots or {}
        self.calls: list[str] = []
        self.error: BaseException | None = None
        type(self).made.append(self)

    def start(self) -> None:
        self.calls.append("start")
        if self.start_error is not None:
            raise self.start_error

    def stop(self) -> None:
        self.calls.append("stop")

    def finish(self, error: BaseException | None = None) -> Report:
        self.calls.append("finish")
        self.error = error
        return type(self).report(self, error)

    @property
    def running(self) -> bool:
        return "stop" not in self.calls


def points_at(traceback: str, cell: int, line: int, function: str | None = None) -> bool:
    """Whether a traceback of IPython names a line of a cell; that of 7.34 has an arrow and no words for it."""
    if IPython.version_info >= (8,):
        return f"Cell In[{cell}], line {line}" + (f", in {function}" if function else "") in traceback
    return re.search(rf"-> {line} ", traceback) is not None and (function is None or f" in {function}" in traceback)
