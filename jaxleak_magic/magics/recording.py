"""The texts of all cells, as they run, under the file names that IPython compiles them with."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.diagnose.model import CellRef, SourceText
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.magics.checked_cell import CheckedCell, blank_lines_above, read_checked_cell
from jaxleak_magic.magics.front_end import front_end_id

_TIMED_FILES = ("<timed exec>", "<timed eval>")
"""File names that ``%%time`` compiles its cell under (IPython 7.34 to 9)."""


@dataclass(frozen=True)
class CellInfo:
    """A cell as it runs.

    Attributes:
        raw: its text as the user wrote it.
        transformed: the Python text that IPython compiles.
        ref: its id and execution count.
    """

    raw: str
    transformed: str
    ref: CellRef


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
        running = self._running_number
        pairs = zip(history.input_hist_raw, history.input_hist_parsed, strict=False)
        for count, (raw, transformed) in enumerate(pairs):
            if raw.strip():
                ref = CellRef(front_end_id(self._shell) if count == running else None, count)
                self._add(self._name_in_history(raw, transformed, count), raw, ref)

    def cell_info(self, info: Any) -> CellInfo:
        """What IPython's ``pre_run_cell`` event says of the cell that is about to run."""
        count = self._running_number if info.store_history else self._shell.execution_count
        cell_id = getattr(info, "cell_id", None) or front_end_id(self._shell)
        transformed = getattr(info, "transformed_cell", None) or self._transformed(info.raw_cell)
        return CellInfo(info.raw_cell, transformed, CellRef(cell_id, count))

    def record(self, cell: CellInfo) -> str:
        """Record a cell that is about to run, and give the file name that IPython will compile it under."""
        name = self._file_name(cell.raw, cell.transformed, cell.ref.execution_count)
        self._add(name, cell.raw, cell.ref)
        return name

    def record_nested(self, cell: CellInfo, outer: CellInfo) -> None:
        """Record the part of a cell that a magic (``%%capture``) runs as a cell of its own."""
        whole = _source(outer.raw, outer.ref)
        part = cell.raw.rstrip()
        if not whole.text.rstrip().endswith(part):
            return
        lines_above = whole.text[: whole.text.rstrip().rindex(part)].count("\n")
        name = self._file_name(cell.raw, cell.transformed, cell.ref.execution_count)
        self.book.add(name, whole, -lines_above - blank_lines_above(cell.raw))

    def record_body(self, name: str, checked: CheckedCell, outer: CellInfo, line_offset: int) -> None:
        """Record the part of a cell that our own magic compiles under ``name``."""
        self.book.add(name, SourceText(checked.text, outer.ref, magic=checked.magic), line_offset)

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
        ends = [("\n" * n, "\n" * max(n, 1)) for n in range(10)]
        names = [self._file_name(raw + end, transformed + end_too, count) for end, end_too in ends]
        # IPython 7.34 has no format_code_name, and keeps what it compiled here.
        compiled = getattr(self._shell.compile, "format_code_name", getattr(linecache, "_ipython_cache", {}).get)
        return next((name for name in names if compiled(name)), names[0])

    def _transformed(self, raw: str) -> str:
        """What IPython compiles, for versions whose event does not tell it (7.34, 8.15)."""
        try:
            return self._shell.transform_cell(raw)
        except Exception:  # Transformers of others may raise anything; IPython then compiles the raw text.
            return raw

    @property
    def _running_number(self) -> int:
        """``n`` of the running cell's ``In [n]``. IPython 9 counts up before a cell runs, 8 after it."""
        hook: Any = self._shell.displayhook
        return hook.prompt_count

    def _file_name(self, raw: str, transformed: str, count: int | None) -> str:
        return self._shell.compile.get_code_name(raw, transformed, count or 0)


def _source(raw: str, ref: CellRef) -> SourceText:
    cell = read_checked_cell(raw)
    return SourceText(raw, ref) if cell is None else SourceText(cell.text, ref, magic=cell.magic)
