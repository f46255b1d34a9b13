"""Hand-made reports on the running cell, as the notebook door shows them but without a check: for tests in a kernel."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from jaxleak_magic.diagnose.model import CellRef, Edit, Fix, Report, SourceText
from jaxleak_magic.magics import loaded_magics
from jaxleak_magic.magics.options import MagicOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "show"))

from sample_reports import one_leak, two_leaks

_remembered: list[tuple[str, CellRef]] = []


def _edit(text: str, cell: CellRef, old: str, new: str) -> Edit:
    changed = text.replace(old, new)
    diff = "\n".join(difflib.unified_diff(text.splitlines(), changed.splitlines(), lineterm=""))
    return Edit(cell, None, changed, diff)


def _show(report: Report, edits: tuple[Edit, ...], sources: tuple[SourceText, ...]) -> None:
    fix = Fix("lift_closure_to_argument", "Return `rate`", None, None, None, edits, "leak_free")
    leak = dataclasses.replace(report.leaks[0], fixes=(fix,))
    report = dataclasses.replace(report, leaks=(leak, *report.leaks[1:]), source=sources[-1], sources=sources)
    magics: Any = loaded_magics(get_ipython())  # type: ignore[arg-type]
    magics.shower.show(report, MagicOptions())


def _here() -> tuple[str, CellRef]:
    header = get_ipython().parent_header  # type: ignore[union-attr]
    return header["content"]["code"], CellRef(header["metadata"]["cellId"], 3)


def remember() -> None:
    """Note the running cell for `two`."""
    text, cell = _here()
    _remembered.append((text, CellRef(cell.id, 2)))


def one(old: str, new: str) -> None:
    """One leak, whose fix replaces ``old`` by ``new`` in the running cell."""
    text, cell = _here()
    _show(one_leak(), (_edit(text, cell, old, new),), (SourceText(text, cell),))


def two(old: str, new: str) -> None:
    """Two leaks; the fix of the first changes the running cell and the one that `remember` was called in."""
    text, cell = _here()
    earlier, before = _remembered[-1]
    edits = (_edit(earlier, before, old, new), _edit(text, cell, old, new))
    _show(two_leaks(), edits, (SourceText(earlier, before), SourceText(text, cell)))
