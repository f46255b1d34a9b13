"""The user's own lines around a leak, marked where the value was made and stored and where its transform ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jaxleak_magic.diagnose.model import CellRef, ErrorInfo, Leak, Place, Report
from jaxleak_magic.diagnose.sources import source_lines
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import code, source_line

MarkKind = Literal["made", "stored", "ended", "raised"]

JOINED_GAP = 4
"""Lines between two marked ones up to which all of them are shown; beyond it a gap is shown."""


@dataclass(frozen=True)
class Mark:
    """What happened at a line: the word for it and a short text with back-ticked names."""

    kind: MarkKind
    text: str


@dataclass(frozen=True)
class Line:
    """A line of source, made visible; ``number`` None stands for a gap."""

    number: int | None
    text: str
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Excerpt:
    """Lines of one cell or file; ``title`` is None where there is only the checked one."""

    title: str | None
    lines: tuple[Line, ...]


def leak_excerpts(report: Report, leak: Leak) -> list[Excerpt]:
    """Excerpts for a leak, in the order made, stored, ended; a place that is not known has no mark."""
    who = words.subject(leak)
    marked: list[tuple[Place, Mark]] = []
    if leak.created:
        marked.append((leak.created, Mark("made", _made(leak, who))))
    if leak.stored:
        marked.append((leak.stored, Mark("stored", f"from here on {who} is kept")))
    if leak.escaped:
        transform = code(leak.trace_stack[-1].transform) if leak.trace_stack else "the transform"
        ending = "was still alive" if leak.verdict == "leak" else "was alive"
        marked.append((leak.escaped, Mark("ended", f"{transform} ended here; {who} {ending}")))
    return _excerpts(report, marked)


def error_excerpts(report: Report, error: ErrorInfo) -> list[Excerpt]:
    """The user's line at which the code raised."""
    place = error.place
    if place is None:
        if error.line is None or report.source is None:
            return []
        place = Place(report.source.cell, report.source.file, error.line, error.column)
    return _excerpts(report, [(place, Mark("raised", f"{code(error.type)} was raised here"))])


def _made(leak: Leak, who: str) -> str:
    source = (leak.created.source or "").lstrip() if leak.created else ""
    if leak.created_as_argument or source.startswith(("def ", "async def ")):
        transform = f"{code(leak.trace_stack[-1].transform)} here" if leak.trace_stack else "here"
        return f"{who} enters {transform} as a tracer"
    return f"{who} was made here"


def _excerpts(report: Report, marked: Iterable[tuple[Place, Mark]]) -> list[Excerpt]:
    groups: dict[tuple[CellRef | None, str | None], dict[int, tuple[Place, list[Mark]]]] = {}
    for place, mark in marked:
        lines = groups.setdefault((place.cell, place.file), {})
        lines.setdefault(place.line, (place, []))[1].append(mark)
    found: list[Excerpt] = []
    for (cell, file), lines in groups.items():
        home = report.source
        own = len(groups) == 1 and home is not None and (cell, file) == (home.cell, home.file)
        found.append(Excerpt(None if own else words.cell_title(cell, file), _lines(_text(report, cell, file), lines)))
    return found


def _text(report: Report, cell: CellRef | None, file: str | None) -> list[str]:
    for source in (report.source, *report.sources):
        if source is not None and (source.cell, source.file) == (cell, file):
            return source_lines(source.text)
    return []


def _lines(text: list[str], marked: dict[int, tuple[Place, list[Mark]]]) -> tuple[Line, ...]:
    found: list[Line] = []
    last: int | None = None
    for number in sorted(marked):
        place, marks = marked[number]
        between = range(last + 1, number) if last is not None else range(0)
        if len(between) <= JOINED_GAP and all(n <= len(text) for n in between):
            found += [Line(n, source_line(text[n - 1])) for n in between]
        elif between:
            found.append(Line(None, ""))
        own = place.source if place.source is not None else text[number - 1] if 0 < number <= len(text) else ""
        found.append(Line(number, source_line(own), tuple(marks)))
        last = number
    return tuple(found)
