"""A refusal, and the words it is made of."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxleak_magic.rewrite.program import Program


class Refused(Exception):
    """No certain rewrite; the message says why and what to do by hand, in one or two plain sentences."""


def listed(names: Sequence[str]) -> str:
    """```a`, `b` and `c```."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " and " + quoted[-1]


def short_text(program: Program, node: ast.AST, limit: int = 60) -> str:
    """A node's text on one line, cut where it is long."""
    text = " ".join(program.text_of[node].of(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def plural(word: str) -> str:
    """A simple English plural of a name."""
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ies"
    if len(word) == 1:
        return word + "s"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")
