"""Text on a stream whose encoding may not have all of its characters."""

from __future__ import annotations

from typing import TextIO


def write_text(to: TextIO, text: str) -> None:
    """Write a text at once; what the stream cannot encode is written as escapes."""
    encoding = to.encoding or "utf-8"
    to.write(text.encode(encoding, "backslashreplace").decode(encoding))
    to.flush()
