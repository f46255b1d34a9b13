"""The last expression of a text, whose value a notebook shows."""

from __future__ import annotations

import ast
import io
import tokenize

_NO_CODE = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT)


def split_last_expression(tree: ast.Module) -> tuple[ast.Module, ast.Expression | None]:
    """The statements of a parsed text, and the expression that stands last, or None where the last is a statement."""
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        return ast.Module(tree.body[:-1], tree.type_ignores), ast.Expression(last.value)
    return tree, None


def ends_with_semicolon(text: str) -> bool:
    """Whether the last token is ``;``: a notebook then shows no value. IPython has the same from 8 on."""
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE:
                last = token.string
    except (tokenize.TokenError, SyntaxError):  # compiling the text will say what is wrong with it
        return False
    return last == ";"
