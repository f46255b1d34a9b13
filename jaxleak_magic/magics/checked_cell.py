"""A cell whose first line is ``%%leakcheck``, and its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxleak_magic.magics.options import MAGIC

_MAGIC_LINE = re.compile(rf"[ \t]*%%{MAGIC}(?![\w?])(.*)", re.DOTALL)


@dataclass(frozen=True)
class CheckedCell:
    """The parts of a checked cell.

    Attributes:
        options_line: what follows ``%%leakcheck`` on its line.
        magic: the magic's whole line, with its line ending.
        index: 0-based line of the magic in the cell: 0 but for blank lines or another magic above it.
        text: the cell without the magic's line, every other byte as the user wrote it.
    """

    options_line: str
    magic: str
    index: int
    text: str

    @property
    def body(self) -> str:
        """What stands below the magic's line."""
        return "".join(self.text.splitlines(keepends=True)[self.index :])

    @property
    def body_is_magic(self) -> bool:
        """Whether another cell magic stands directly below, which only works as the first line of what is run."""
        return self.body.lstrip().startswith("%%")

    def with_text(self, text: str, magic: str | None = None) -> str:
        """The whole cell with a new text, the magic's line back in its place (or another line instead of it)."""
        lines = text.splitlines(keepends=True)
        return "".join([*lines[: self.index], self.magic if magic is None else magic, *lines[self.index :]])


def blank_lines_above(raw: str) -> int:
    """How many blank lines stand before the first other line; IPython takes them off before it compiles."""
    lines = raw.splitlines()
    return next((i for i, line in enumerate(lines) if line.strip()), 0)


def read_checked_cell(raw: str) -> CheckedCell | None:
    """The parts of a cell whose first line that is not blank is ``%%leakcheck``; None for any other cell."""
    return _split_at(raw, blank_lines_above(raw))


def find_magic_line(raw: str) -> CheckedCell | None:
    """The parts of a cell with ``%%leakcheck`` on any line, for one that stands below another magic, or None."""
    found = (_split_at(raw, i) for i in range(len(raw.splitlines())))
    return next((cell for cell in found if cell), None)


def _split_at(raw: str, index: int) -> CheckedCell | None:
    lines = raw.splitlines(keepends=True)
    match = _MAGIC_LINE.fullmatch(lines[index]) if index < len(lines) else None
    if match is None:
        return None
    return CheckedCell(match[1].strip(), lines[index], index, "".join(lines[:index] + lines[index + 1 :]))
