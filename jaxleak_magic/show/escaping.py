"""What is done to every text of the user's before it is shown: nothing invisible, nothing endless, no escapes."""

from __future__ import annotations

import unicodedata

NAME_LIMIT = 80
"""Characters of a name, label or path step that are shown; more is cut and counted."""

LINE_LIMIT = 400
"""Characters of a source or diff line that are shown."""

TEXT_LIMIT = 2000
"""Characters of a sentence, message or reason that are shown."""


def visible(text: str) -> str:
    """``text`` with every character that Python calls unprintable written as its escape.

    That is: control characters (so also terminal escapes, tabs and newlines), bidirectional and zero-width
    characters, lone surrogates, unassigned and private-use characters, and spaces other than U+0020.

    Returns:
        a string that can always be encoded as UTF-8 and holds no line break.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text`` and, where some were cut, a word on how many."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"


def name(text: str) -> str:
    """A name, label or path step: visible and of a bounded length."""
    return visible(clip(text, NAME_LIMIT))


def sentence(text: str) -> str:
    """A sentence or message on one line: runs of white space become one blank, the rest is made visible."""
    return visible(clip(" ".join(text.split()), TEXT_LIMIT))


def source_line(text: str) -> str:
    """A line of source for showing: tabs become blanks, the rest is made visible."""
    return visible(clip(text.expandtabs(4), LINE_LIMIT))


def code(text: str) -> str:
    """A name between back-ticks, the mark-up that `show` knows for code."""
    return "`" + name(text).replace("`", r"\x60") + "`"


def columns(text: str) -> int:
    """Terminal columns that ``text`` takes: wide East Asian characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Break ``text`` at blanks so that no line is wider than ``width`` columns; a word wider than a line is cut.

    Args:
        text: visible text.
        width: columns of a line, with its indent.
        first, rest: indents of the first and the following lines.
    """
    lines: list[str] = []
    line, empty = first, True
    for word in text.split():
        gap = "" if empty else " "
        if not empty and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line, gap = rest, ""
        while columns(line) + len(gap) + columns(word) > width:
            room = width - columns(line) - len(gap)
            taken = _prefix(word, max(room, 2))
            lines.append(line + gap + taken)
            word, line, gap = word[len(taken) :], rest, ""
        line, empty = line + gap + word, False
    if not empty or not lines:
        lines.append(line)
    return [each.rstrip() for each in lines]


def _prefix(word: str, room: int) -> str:
    taken = 0
    for index, c in enumerate(word):
        taken += columns(c)
        if taken > room and index:
            return word[:index]
    return word
