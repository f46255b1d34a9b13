"""What the scripts of the widget and of the bridge are told of a report's fixes."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

from jaxleak_magic.diagnose.model import CellRef, Edit, Fix, Report, SourceText
from jaxleak_magic.show import words
from jaxleak_magic.show.fixes import offered_fixes


def script(file: str) -> str:
    """The text of a script in this room, with the pieces that it uses in front: one module, without its comments.

    The scripts keep to this: a comment has its line for itself, and no text runs over several lines.
    """
    folder = Path(__file__).parent
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("buttons.js", "exploring.js", file)]
    return "\n".join(line for line in "\n".join(texts).split("\n") if line and not line.lstrip().startswith("//"))


_LOADER = """\
const packed = Uint8Array.from(atob("DATA"), (c) => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const source = new Blob([await new Response(stream).text()], { type: "text/javascript" });
const url = URL.createObjectURL(source);
const module = await import(url);
URL.revokeObjectURL(url);
export default module.default;
"""


def packed_script(file: str) -> str:
    """The module of `script`, compressed, as a module that unpacks it: a widget sends it with each report."""
    data = gzip.compress(script(file).encode(), mtime=0)
    return _LOADER.replace("DATA", base64.b64encode(data).decode("ascii"))


def live_fixes(report: Report) -> list[dict[str, Any]]:
    """Each offered fix as plain data for a script.

    Returns:
        ``{"number", "applicable", "edits": [{"title", "cell_id", "old", "new"}]}``: ``old`` is the exact text that the
        cell had when it ran, with its magic line, and ``new`` what it is to be replaced by. ``applicable`` is False
        where that is not known for every edit; then there is nothing to compare a cell's text with.
    """
    return [_live_fix(number, fix, report) for number, fix in offered_fixes(report).items()]


def live_nodes(report: Report) -> list[tuple[str, str]]:
    """Name and facts of each node of the graph, in the order of `graph.node_facts`."""
    from jaxleak_magic.show.graph import node_facts

    return [(sendable(title), sendable(facts)) for title, facts in node_facts(report)]


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
