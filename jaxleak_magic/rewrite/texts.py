"""One source text: its syntax tree, exact positions in it, and edits that leave every other character alone.

Edits are spans of the original text, never a printed tree, so that comments, spacing, line endings and IPython's own
syntax stay as they are and undo is exact.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import re
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import SourceText

_LINE_END = re.compile(r"\r\n|\r|\n")
_FILLER = re.compile(r"(?:[ \t\f\r\n]|\\(?:\r\n|\r|\n)|#[^\r\n]*)+")


class Unreadable(Exception):
    """The text cannot be analysed; the message says why in one plain sentence."""


@dataclass(frozen=True, order=True)
class TextEdit:
    """Replace the characters ``start:stop`` by ``new``; edits at one place are applied in the order of ``rank``."""

    start: int
    stop: int
    rank: int
    new: str


class Text:
    """A cell or file, parsed.

    Args:
        source: the text as the user wrote it.

    Raises:
        Unreadable: where it is not Python, also after IPython's own syntax was masked.
    """

    def __init__(self, source: SourceText) -> None:
        from jaxleak_magic.rewrite.masking import mask

        self.source = source
        self.text = source.text
        self.masked, self.masked_spans, tree = mask(self.text)
        if tree is None:
            raise Unreadable("The code could not be read as Python, so it was not rewritten.")
        self.tree = tree
        self._line_starts = [0] + [m.end() for m in _LINE_END.finditer(self.masked)]
        self._wide_lines: dict[int, list[int]] = {}

    @property
    def newline(self) -> str:
        r"""The line ending that the text uses first, or ``"\\n"``."""
        first = _LINE_END.search(self.text)
        return first.group() if first else "\n"

    def offset(self, line: int, byte_column: int) -> int:
        """Index in the text of a (1-based line, UTF-8 byte column) pair as `ast` gives it."""
        start = self._line_starts[line - 1]
        stop = self._line_starts[line] if line < len(self._line_starts) else len(self.masked)
        row = self.masked[start:stop]
        if row.isascii():
            return start + byte_column
        return start + len(row.encode("utf-8", "surrogatepass")[:byte_column].decode("utf-8", "surrogatepass"))

    def first_of_line(self, line: int) -> int:
        """Index of the first character of a 1-based line that is no white space, or of its end."""
        start = self._line_starts[line - 1]
        stop = self._line_starts[line] if line < len(self._line_starts) else len(self.masked)
        row = self.masked[start:stop].rstrip("\r\n")
        return start + len(row) - len(row.lstrip())

    def start(self, node: ast.AST) -> int:
        """Index of a node's first character."""
        return self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def stop(self, node: ast.AST) -> int:
        """Index after a node's last character."""
        return self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        return self.text[self.start(node) : self.stop(node)]

    def line_of(self, index: int) -> int:
        """1-based line of an index."""
        return bisect.bisect_right(self._line_starts, index)

    def skip_filler(self, index: int) -> int:
        """First index at or after ``index`` that is no space, line end, comment or line continuation."""
        found = _FILLER.match(self.masked, index)
        return found.end() if found else index

    def after_parentheses(self, index: int, limit: int) -> int:
        """Index after the closing parentheses that directly follow ``index`` and end before ``limit``."""
        while True:
            following = self.skip_filler(index)
            if following < limit and self.masked[following] == ")":
                index = following + 1
            else:
                return index

    def indent_of_line(self, index: int) -> str | None:
        """The white space between the line's start and ``index``, or None where other characters stand there."""
        before = self.masked[self._line_starts[self.line_of(index) - 1] : index]
        return before if not before.strip(" \t\f") else None


def apply_edits(text: str, edits: list[TextEdit]) -> str:
    """The text with all edits made.

    Raises:
        Unreadable: where two edits overlap.
    """
    parts: list[str] = []
    position = 0
    for edit in sorted(set(edits)):
        if edit.start < position:
            raise Unreadable("Two changes of this rewrite touch the same place.")
        parts += (text[position : edit.start], edit.new)
        position = edit.stop
    parts.append(text[position:])
    return "".join(parts)


class Shift:
    """Where an index of the old text stands in the new one."""

    def __init__(self, edits: list[TextEdit]) -> None:
        self._edits = sorted(set(edits))
        self._starts = [edit.start for edit in self._edits]
        self._sums = [0]
        for edit in self._edits:
            self._sums.append(self._sums[-1] + len(edit.new) - (edit.stop - edit.start))

    def __call__(self, index: int) -> int | None:
        """The index in the new text, or None where the old one's character was replaced."""
        number = bisect.bisect_right(self._starts, index)
        if any(edit.start <= index < edit.stop for edit in self._edits[max(0, number - 3) : number]):
            return None
        return index + self._sums[number]


def undo_edits(edits: list[TextEdit], original: str) -> list[TextEdit]:
    """The edits that turn the rewritten text back into ``original``."""
    undone: list[TextEdit] = []
    shift = 0
    for edit in sorted(set(edits)):
        start = edit.start + shift
        undone.append(TextEdit(start, start + len(edit.new), edit.rank, original[edit.start : edit.stop]))
        shift += len(edit.new) - (edit.stop - edit.start)
    return undone


def unified_diff(old: str, new: str, name: str) -> str:
    """A unified diff of two texts, with ``name`` in its header; empty where they are equal."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"{name} (before)", f"{name} (after)"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
