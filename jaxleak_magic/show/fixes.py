"""The fixes of a report in the order of their numbers, and their diffs as lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from jaxleak_magic.diagnose.model import CellRef, Fix, Leak, Report
from jaxleak_magic.diagnose.sources import source_lines
from jaxleak_magic.show.escaping import source_line

DiffKind = Literal["same", "added", "removed", "gap"]

_HUNK = re.compile(r"@@ -(\d+)")


@dataclass(frozen=True)
class DiffLine:
    """A line of a diff, made visible: what became of it and its text without the sign."""

    kind: DiffKind
    text: str


@dataclass(frozen=True)
class Diff:
    """The change of one cell or file."""

    cell: CellRef | None
    file: str | None
    lines: tuple[DiffLine, ...]


def offered_fixes(report: Report) -> dict[int, Fix]:
    """The fixes that can be applied, by their number: 1, 2, ... over the leaks, the error and the notes, in this order.

    Equal fixes, as of two leaks that one rewrite mends, have one number. The doors must use this numbering for
    ``%leakfix N``, so that it is the one on screen.
    """
    groups = [leak.fixes for leak in (*report.real_leaks, *other_leaks(report))]
    groups += [report.error.fixes] if report.error else []
    groups += [note.fixes for note in report.notes]
    offered = dict.fromkeys(fix for group in groups for fix in group if fix.refusal is None)
    return dict(enumerate(offered, 1))


def fix_numbers(report: Report) -> dict[Fix, int]:
    """The number of each offered fix; a refused one has none."""
    return {fix: number for number, fix in offered_fixes(report).items()}


def other_leaks(report: Report) -> tuple[Leak, ...]:
    """What was found and needs no action: every verdict but ``leak``."""
    return tuple(leak for leak in report.leaks if leak.verdict != "leak")


def diffs(fix: Fix) -> list[Diff]:
    """The diffs of a fix, one for each cell or file that it changes."""
    if fix.edits:
        return [Diff(edit.cell, edit.file, diff_lines(edit.diff)) for edit in fix.edits]
    return [Diff(None, None, diff_lines(fix.diff))] if fix.diff else []


def diff_lines(diff: str) -> tuple[DiffLine, ...]:
    """The lines of a unified diff without its file names; a hunk's head becomes a gap with the old line number.

    Blank lines of context at the start of a hunk and at the end of the diff are left out.
    """
    found: list[DiffLine] = []
    number: int | None = None
    kinds: dict[str, DiffKind] = {"+": "added", "-": "removed", " ": "same"}
    for line in source_lines(diff):
        hunk = _HUNK.match(line)
        if hunk:
            number = int(hunk[1])
            found.append(DiffLine("gap", f"line {number}"))
        elif number is not None and line[:1] in kinds:
            shown = DiffLine(kinds[line[:1]], source_line(line[1:]))
            if shown == DiffLine("same", "") and found[-1].kind == "gap":
                number += 1
                found[-1] = DiffLine("gap", f"line {number}")
            else:
                found.append(shown)
    while found and found[-1] == DiffLine("same", ""):
        found.pop()
    return tuple(found)
