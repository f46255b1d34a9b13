"""What the scripts of the widget and of the bridge are told of a report's fixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxleak_magic.diagnose.model import CellRef, Edit, Fix, Report, SourceText
from jaxleak_magic.show import words
from jaxleak_magic.show.fixes import offered_fixes


def script(file: str) -> str:
    """The module of a script in this room, with the buttons it uses in front; no comments and no indents, to be short.

    The scripts keep to this: a comment has its line for itself, and no text runs over several lines.
    """
    folder = Path(__file__).parent
    lines = "\n".join((folder / name).read_text(encoding="utf-8") for name in ("buttons.js", file)).split("\n")
    return "\n".join(line.strip() for line in lines if line.strip() and not line.strip().startswith("//"))


def live_fixes(report: Report) -> list[dict[str, Any]]:
    """Each offered fix as plain data for a script.

    Returns:
        ``{"number", "applicable", "edits": [{"title", "cell_id", "old", "new"}]}``: ``old`` is the exact text that the
        cell had when it ran, with its magic line, and ``new`` what it is to be replaced by. ``applicable`` is False
        where that is not known for every edit; then there is nothing to compare a cell's text with.
    """
    return [_live_fix(number, fix, report) for number, fix in offered_fixes(report).items()]


def _live_fix(number: int, fix: Fix, report: Report) -> dict[str, Any]:
    home = report.source or SourceText("")
    edits = fix.edits or (Edit(home.cell, home.file, fix.source or "", fix.diff or ""),)
    plain: list[dict[str, Any]] = []
    applicable = report.file is None
    for edit in edits:
        source = _source(report, edit.cell, edit.file)
        known = source is not None and source.complete and edit.file is None and edit.cell is not None
        applicable = applicable and known and edit.cell is not None and edit.cell.id is not None
        magic = source.magic if source else ""
        plain.append(
            {
                "title": words.cell_title(edit.cell, edit.file),
                "cell_id": edit.cell.id if edit.cell else None,
                "old": sendable(magic + source.text) if source else "",
                "new": sendable(magic + edit.source),
            }
        )
    return {"number": number, "applicable": applicable, "edits": plain}


def _source(report: Report, cell: CellRef | None, file: str | None) -> SourceText | None:
    sources = (*([report.source] if report.source else []), *report.sources)
    return next((source for source in sources if (source.cell, source.file) == (cell, file)), None)


def sendable(text: str) -> str:
    """Text that a comm can carry: a lone surrogate cannot be in a notebook's cell, and is replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
