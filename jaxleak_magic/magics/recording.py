"""The texts of all cells, as they run, under the file names that IPython compiles them with."""

from __future__ import annotations

import linecache
from typing import Any

from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

from jaxleak_magic.diagnose.model import CellRef, SourceText
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.magics.checked_cell import CheckedCell, blank_lines_above, read_checked_cell

_TIMED_FILES = ("<timed exec>", "<timed eval>")
"""File names that ``%%time`` compiles its cell under (IPython 8 and 9)."""


class CellRecorder:
    """Fills a `SourceBook` with the cells of a shell.

    Args:
        shell: the shell whose cells are recorded.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.book = SourceBook()
        self._shell = shell

    def record_history(self) -> None:
        """Record the cells that ran before the extension was loaded, as far as IPython still knows them."""
        history = self._shell.history_manager
        if history is None:
            return
        running = self._shell.execution_count - 1
        pairs = zip(history.input_hist_raw, history.input_hist_parsed, strict=False)
        for count, (raw, transformed) in enumerate(pairs):
            if raw.strip():
                ref = CellRef(self._front_end_id() if count == running else None, count)
                self._add(self._name_in_history(raw, transformed, count), raw, ref)

    def record(self, info: ExecutionInfo) -> str:
        """Record a cell that is about to run, and give its file name.

        Args:
            info: what IPython's ``pre_run_cell`` event hands over.
        """
        count = self.execution_count(info)
        raw = info.raw_cell
        transformed = getattr(info, "transformed_cell", None) or raw
        name = self._shell.compile.get_code_name(raw, transformed, count)
        self._add(name, raw, CellRef(self.cell_id(info), count))
        return name

    def record_nested(self, info: ExecutionInfo, outer: ExecutionInfo) -> None:
        """Record the part of a cell that a magic (``%%capture``) runs as a cell of its own."""
        whole = _source(outer.raw_cell, CellRef(self.cell_id(outer), self.execution_count(outer)))
        part = info.raw_cell.rstrip()
        if not whole.text.rstrip().endswith(part):
            return
        lines_above = whole.text[: whole.text.rstrip().rindex(part)].count("\n")
        transformed = getattr(info, "transformed_cell", None) or info.raw_cell
        name = self._shell.compile.get_code_name(info.raw_cell, transformed, self._shell.execution_count)
        self.book.add(name, whole, -lines_above - blank_lines_above(info.raw_cell))

    def record_body(self, name: str, cell: CheckedCell, info: ExecutionInfo, line_offset: int) -> None:
        """Record the part of a cell that our own magic compiles under ``name``."""
        ref = CellRef(self.cell_id(info), self.execution_count(info))
        self.book.add(name, SourceText(cell.text, ref, magic=cell.magic), line_offset)

    def execution_count(self, info: ExecutionInfo) -> int:
        """``n`` of the running cell's ``In [n]``."""
        return self._shell.execution_count - (1 if info.store_history else 0)

    def cell_id(self, info: ExecutionInfo) -> str | None:
        """The front end's id of the running cell, or None where it gives none."""
        return getattr(info, "cell_id", None) or self._front_end_id()

    def _add(self, name: str, raw: str, ref: CellRef) -> None:
        source, cell = _source(raw, ref), read_checked_cell(raw)
        # The magic's line is compiled as a comment, but for a magic below it, which then is the first line.
        comments = 1 if cell and not cell.body_is_magic else 0
        self.book.add(name, source, comments - blank_lines_above(raw))
        self._add_timed(source)

    def _add_timed(self, source: SourceText) -> None:
        above = blank_lines_above(source.text)
        lines = source.text.splitlines()
        if above < len(lines) and lines[above].lstrip().startswith("%%time"):
            for name in _TIMED_FILES:
                self.book.add(name, source, -above - 1)

    def _name_in_history(self, raw: str, transformed: str, count: int) -> str:
        """History drops trailing newlines, which the name is made of too: take the name that was compiled."""
        texts = [(raw + a, transformed + b) for a in ("", "\n", "\n\n") for b in ("\n", "")]
        names = [self._shell.compile.get_code_name(raw, transformed, count) for raw, transformed in texts]
        return next((name for name in names if name in linecache.cache), names[0])

    def _front_end_id(self) -> str | None:
        header: Any = getattr(self._shell, "parent_header", None)
        metadata: Any = header.get("metadata") if isinstance(header, dict) else None
        found: Any = metadata.get("cellId") if isinstance(metadata, dict) else None
        return found if isinstance(found, str) else None


def _source(raw: str, ref: CellRef) -> SourceText:
    cell = read_checked_cell(raw)
    return SourceText(raw, ref) if cell is None else SourceText(cell.text, ref, magic=cell.magic)
