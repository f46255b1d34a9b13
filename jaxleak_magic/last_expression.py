"""The last expression of a text, whose value a notebook shows."""

from __future__ import annotations

import ast


def split_last_expression(tree: ast.Module) -> tuple[ast.Module, ast.Expression | None]:
    """The statements of a parsed text, and the expression that stands last, or None where the last is a statement."""
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        return ast.Module(tree.body[:-1], tree.type_ignores), ast.Expression(last.value)
    return tree, None
