"""What ``%%leakexplain`` and ``%leakcheck --last`` explain: a pasted text, and the exception that was raised last."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError

from jaxleak_magic.checked_run import LAST_ONLY, CheckedRun
from jaxleak_magic.diagnose.errors import message_of
from jaxleak_magic.diagnose.messages import explain_text
from jaxleak_magic.diagnose.model import Report, SourceText
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.heap.objects import class_name, is_a

EXPLAIN = "leakexplain"


def explain_pasted(text: str, book: SourceBook) -> Report:
    """The report of a pasted text; lines are given in the cells that ran in this notebook."""
    return explain_text(text, _cells(book), book)


def explain_last(book: SourceBook, namespace: Mapping[str, Any]) -> Report:
    """The report of the exception that was raised last. Raises UsageError where there is none.

    A traced value that its frames still hold is searched for in the heap; else its text is explained.
    """
    error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not is_a(error, BaseException):
        raise UsageError("%leakcheck --last: no exception was raised yet in this session")
    if "jax" in sys.modules:
        run = CheckedRun(book, namespace, extra_roots={"Out": namespace.get("Out")})
        report = run.explain(error)
        if report is not None:
            return report
    return _explained_by_text(error, book)


def _explained_by_text(error: BaseException, book: SourceBook) -> Report:
    report = explain_text(_as_text(error), _cells(book), book)
    unchecked = (LAST_ONLY, *report.checked.unchecked[1:])
    python = ".".join(map(str, sys.version_info[:3]))
    jax = getattr(sys.modules.get("jax"), "__version__", report.jax_version)
    checked = dataclasses.replace(report.checked, unchecked=unchecked)
    return dataclasses.replace(report, checked=checked, python_version=python, jax_version=str(jax))


def _as_text(error: BaseException) -> str:
    """The traceback as Python prints it, without running the exception's own ``__str__``."""
    lines = ["Traceback (most recent call last):"]
    traceback: TracebackType | None = BaseException.__traceback__.__get__(error)  # type: ignore[attr-defined]
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}')
        traceback = traceback.tb_next
    return "\n".join([*lines, f"{class_name(type(error))}: {message_of(error)}"])


def _cells(book: SourceBook) -> list[SourceText]:
    """The recorded cells, but for those that hold a pasted text."""
    found = dict.fromkeys(source for name in book.filenames() if (source := book.get(name)))
    return [source for source in found if not source.text.lstrip().startswith(f"%%{EXPLAIN}")]
