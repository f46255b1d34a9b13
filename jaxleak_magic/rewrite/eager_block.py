"""Statements that are computed at once, also where a transform is tracing: ``with jax.ensure_compile_time_eval()``."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.texts import Text, TextEdit


def compute_eagerly(program: Program, function: FunctionNode, body: Sequence[ast.stmt], draft: Draft) -> None:
    """Put statements of one block that follow each other under ``with jax.ensure_compile_time_eval():``.

    Args:
        program: all texts.
        function: the function in which they stand.
        body: the statements.
        draft: takes the edits.

    Raises:
        Refused: where the code cannot be indented, JAX has no name there, or they are computed so already.
    """
    text = program.text_of[function]
    name = function_name(program, function)
    eager = program.spelling("jax.ensure_compile_time_eval", function)
    if eager is None:
        raise Refused(
            f"`{name}` computes a constant inside the transform. Compute it before, or under "
            "`with jax.ensure_compile_time_eval():`."
        )
    if any(isinstance(n, ast.With) and eager in text.of(n) for s in body for n in ast.walk(s)):
        raise Refused("The value is computed under `ensure_compile_time_eval` already.")
    first = body[0]
    start = text.start(first)
    if isinstance(first, ast.FunctionDef | ast.ClassDef) and first.decorator_list:
        start = text.offset(first.decorator_list[0].lineno, first.col_offset)
    indent = text.indent_of_line(start)
    if indent is None:
        raise Refused(f"`{name}` is written on one line. Give its body lines of its own first.")
    unit = _unit(text, function)
    draft.add(text, [TextEdit(start, start, -1, f"with {eager}():{text.newline}{indent}{unit}")])
    for statement in body:
        refuse_long_strings(statement)
    draft.add(text, _indented(text, text.line_of(start) + 1, body[-1], unit))


def refuse_long_strings(statement: ast.stmt) -> None:
    """Refuse to move a statement to the side that holds a text over several lines."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            raise Refused(f"A text over several lines would have to be indented (line {node.lineno}). Do it by hand.")


def _unit(text: Text, function: FunctionNode) -> str:
    """One step of indentation, as the function has it."""
    if isinstance(function, ast.Lambda):
        return "    "
    outer = text.indent_of_line(text.offset(function.lineno, function.col_offset)) or ""
    inner = text.indent_of_line(text.start(function.body[0]))
    return inner[len(outer) :] if inner is not None and inner.startswith(outer) and inner != outer else "    "


def _indented(text: Text, first_line: int, last: ast.stmt, unit: str) -> list[TextEdit]:
    """Edits that move the lines from one to the end of a statement one step to the right."""
    edits: list[TextEdit] = []
    stop = last.end_lineno or last.lineno
    for line in range(first_line, stop + 1):
        start = text.offset(line, 0)
        if text.masked[start : start + 1] not in ("\r", "\n", ""):
            edits.append(TextEdit(start, start, -2, unit))
    return edits
