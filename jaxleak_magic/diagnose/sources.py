"""The texts of the cells and files that a report may speak of, by the file name under which Python compiled them."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from jaxleak_magic.diagnose.model import Place, SourceText


@dataclass(frozen=True)
class _Entry:
    source: SourceText
    line_offset: int


def lines_of_file(filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
    """The lines that ``linecache`` has of a file, with their ends; none where the name cannot be that of a file."""
    try:
        return linecache.getlines(filename, module_globals)
    except (ValueError, OSError):  # a surrogate or a null character in the name
        return []


class SourceBook:
    """Maps the file names in code objects to the user's texts and turns raw lines into places.

    A door fills it: the notebook door as cells run, the command line with the one file it was given.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, filename: str, source: SourceText, line_offset: int = 0) -> None:
        """Record a text.

        Args:
            filename: ``co_filename`` of the code compiled from it.
            source: the text as the user wrote it.
            line_offset: how many compiled lines stand before the first line of ``source.text`` (1 where the
                ``%%leakcheck`` line was turned into a comment).
        """
        self._entries[filename] = _Entry(source, line_offset)

    def get(self, filename: str) -> SourceText | None:
        """The text that was compiled as ``filename``, or None."""
        entry = self._entries.get(filename)
        return entry.source if entry else None

    def filenames(self) -> tuple[str, ...]:
        """All file names that were added, oldest first."""
        return tuple(self._entries)

    def line_in_text(self, filename: str, line: int) -> int:
        """1-based line of the recorded text (or of the file) for a line of the code object."""
        entry = self._entries.get(filename)
        return line - entry.line_offset if entry else line

    def lines(self, filename: str) -> list[str]:
        """The lines of a recorded text or, for a file that was not recorded, what ``linecache`` has of it."""
        entry = self._entries.get(filename)
        if entry:
            return source_lines(entry.source.text)
        return [line.rstrip("\r\n") for line in lines_of_file(filename)]

    def place(self, filename: str, line: int, column: int | None = None, function: str | None = None) -> Place:
        """The place of a raw (file name, line) pair of a code object.

        Args:
            filename: ``co_filename``.
            line: 1-based line as the code object has it.
            column: 0-based column, or None.
            function: qualified name of the function around it, or None at top level.
        """
        entry = self._entries.get(filename)
        own_line = line - entry.line_offset if entry else line
        lines = self.lines(filename)
        text = lines[own_line - 1] if 0 < own_line <= len(lines) else None
        if entry:
            return Place(entry.source.cell, entry.source.file, own_line, column, function, text)
        return Place(None, filename, own_line, column, function, text)


def source_lines(text: str) -> list[str]:
    """Lines as Python counts them: a form feed or U+2028 ends none, unlike in ``str.splitlines``."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
