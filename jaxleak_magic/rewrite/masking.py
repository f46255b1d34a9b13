"""Hides IPython's own syntax from Python's parser without moving a single character.

``%magic``, ``!shell``, ``name = %magic``, ``name = !shell``, ``obj?`` and leading ``%%magic`` lines are replaced by
Python of the same length, so that positions in the masked text are positions in the user's text.
"""

from __future__ import annotations

import ast
import re
import warnings

Span = tuple[int, int]

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_CELL_MAGIC = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*(%%[^\r\n]*)")


def parse(text: str) -> ast.Module | None:
    """The tree of a text, or None where it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def mask(text: str) -> tuple[str, tuple[Span, ...], ast.Module | None]:
    """Replace IPython's syntax by Python of the same length.

    Args:
        text: a cell or file as the user wrote it.

    Returns:
        The masked text, the (start, stop) spans that were replaced, and the tree of the masked text. A text that is
        Python already comes back as it is, and so does what cannot be masked (IPython is not installed, or it does not
        know the syntax either), then without a tree.
    """
    if (tree := parse(text)) is not None:
        return text, (), tree
    spans: list[Span] = []
    masked, position = text, 0
    while first := _CELL_MAGIC.match(masked, position):
        spans.append(first.span(1))
        position = first.end()
        masked = masked[: first.start(1)] + "#" * len(first.group(1)) + masked[position:]
    while (tree := parse(masked)) is None:
        span = _next_special(masked)
        if span is None or span in spans:
            break
        spans.append(span)
        start, stop = span
        # A line that goes on keeps its backslash and line end.
        blank = re.sub(r"[^\r\n]", " ", text[start:stop])
        blank = re.sub(r" (?=\r\n|\r|\n)", r"\\", blank)
        masked = masked[:start] + "0" + blank[1:] + masked[stop:]
    return masked, tuple(sorted(spans)), tree


def _next_special(text: str) -> Span | None:
    """Span of the first piece of IPython syntax that IPython's own detectors find."""
    try:
        from IPython.core import inputtransformer2 as ipython
    except ImportError:
        return None
    rows = [m for m in _LINE.finditer(text) if m.group()]
    lines = [m.group(1) + "\n" for m in rows]
    try:
        tokens = ipython.make_tokens_by_line(lines)
        found = [
            match
            for detector in (ipython.MagicAssign, ipython.SystemAssign, ipython.EscapedCommand, ipython.HelpEnd)
            if (match := detector.find(tokens)) is not None
        ]
    except Exception:  # IPython's tokenizer may fail in any way on what is no Python
        return None
    if not found:
        return None
    match = min(found, key=lambda m: (m.start_line, m.start_col))
    last = match.q_line if isinstance(match, ipython.HelpEnd) else match.start_line
    while not isinstance(match, ipython.HelpEnd) and lines[last].endswith("\\\n") and last + 1 < len(lines):
        last += 1
    return rows[match.start_line].start() + match.start_col, rows[last].end(1)


def names_in_spans(text: str, spans: tuple[Span, ...]) -> frozenset[str]:
    """All words in the masked pieces: names that a magic may use, also as ``$x`` or ``{x}``; ``obj?`` only looks."""
    pieces = (text[start:stop].strip() for start, stop in spans)
    return frozenset(
        word for piece in pieces if "?" not in (piece[:1], piece[-1:]) for word in re.findall(r"[^\W\d]\w*", piece)
    )
