"""Root causes: one leak seen in many tests, cells or files is told once, with where it was seen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Leak, Place, Report
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import name

NAMES_SHOWN = 3
"""Tests, cells or files of one cause that a summary names; the others are counted."""


@dataclass(frozen=True)
class Cause:
    """A root cause as plain text, the same wherever the same statement is to blame.

    Attributes:
        key: equal for equal causes.
        sentence: what leaked out of what, and what keeps it.
        place: where it was stored (else made, else where its transform ended), or empty.
    """

    key: str
    sentence: str
    place: str


@dataclass(frozen=True)
class SeenCause:
    """A cause with the names of the tests, cells or files in which it was seen, in order."""

    cause: Cause
    names: tuple[str, ...]


def causes_of(report: Report) -> list[Cause]:
    """The root causes of the leaks that are to be acted on."""
    return [_cause_of(leak, report) for leak in report.real_leaks]


def seen_causes(seen: Iterable[tuple[str, Cause]]) -> list[SeenCause]:
    """Causes with the names that they were seen under, the one that was seen most often first."""
    names: dict[str, list[str]] = {}
    first: dict[str, Cause] = {}
    for where, cause in seen:
        first.setdefault(cause.key, cause)
        names.setdefault(cause.key, []).append(where)
    order = sorted(names, key=lambda key: -len(names[key]))
    return [SeenCause(first[key], tuple(dict.fromkeys(names[key]))) for key in order]


def cause_lines(seen: SeenCause, what: str) -> list[str]:
    """A cause for a summary in a terminal.

    Args:
        seen: the cause and where it was seen.
        what: what the names are, in the singular: ``test``.
    """
    cause = seen.cause
    lines = [f"{words.plural(len(seen.names), what)}: {cause.sentence}"]
    if cause.place:
        lines.append(f"    {cause.place}")
    lines.append(f"    {named(seen.names)}")
    return lines


def named(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(map(name, names[:NAMES_SHOWN]))
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _cause_of(leak: Leak, report: Report) -> Cause:
    place, what = next(
        (
            (p, w)
            for p, w in ((leak.stored, "stored"), (leak.created, "made"), (leak.escaped, "ended"))
            if p is not None
        ),
        (None, ""),
    )
    where = "" if place is None else _where(place, report)
    holder = leak.holder.name if leak.holder is not None else ""
    # A list's place in memory, and so the path to it, differs from test to test: the statement is the cause.
    key = (leak.mechanism, where) if leak.stored is not None else (leak.mechanism, where, holder, leak.variable or "")
    return Cause(" | ".join(key), words.verdict_and_keeper(leak), f"{what} in {where}" if where else "")


def _where(place: Place, report: Report) -> str:
    file = place.file or report.file or ""
    if os.path.isabs(file) and not os.path.relpath(file).startswith(".."):
        file = os.path.relpath(file)
    cell = words.cell_title(place.cell, None) if place.cell is not None else ""
    return ", ".join(text for text in (name(file) if file else "", cell, f"line {place.line}") if text)
