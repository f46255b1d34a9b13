"""Edits that add an argument to a call, a parameter to a function, or wrap an expression, in the style of the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.texts import Text, TextEdit, Unreadable


def append_arguments(text: Text, call: ast.Call, values: Sequence[str]) -> list[TextEdit]:
    """Add positional arguments after the last positional one of a call."""
    _refuse_bare_generator(text, call)
    if call.args:
        return [_after(text, call.args[-1], text.stop(call) - 1, values, call.args)]
    if call.keywords:
        start = _keyword_start(text, call.keywords[0])
        return [TextEdit(start, start, 0, ", ".join(values) + ", ")]
    opening = _opening_parenthesis(text, text.stop(call.func))
    return [TextEdit(opening + 1, opening + 1, 0, ", ".join(values))]


def prepend_arguments(text: Text, call: ast.Call, values: Sequence[str]) -> list[TextEdit]:
    """Add positional arguments before all others of a call."""
    _refuse_bare_generator(text, call)
    opening = _opening_parenthesis(text, text.stop(call.func))
    return [_before_first(text, opening, text.stop(call) - 1, values)]


def append_keywords(text: Text, call: ast.Call, values: Sequence[str]) -> list[TextEdit]:
    """Add keyword arguments (``"rate=rate"``) at the end of a call."""
    _refuse_bare_generator(text, call)
    everything: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if not everything:
        opening = _opening_parenthesis(text, text.stop(call.func))
        return [TextEdit(opening + 1, opening + 1, 0, ", ".join(values))]
    everything.sort(key=text.start)
    return [_after(text, everything[-1], text.stop(call) - 1, values, everything)]


def insert_keyword_after_positionals(text: Text, call: ast.Call, value: str) -> list[TextEdit]:
    """Add a keyword argument before the other keywords of a call."""
    return append_arguments(text, call, [value])


def append_parameters(text: Text, function: FunctionNode, names: Sequence[str]) -> list[TextEdit]:
    """Add parameters that can be given by position, after those that have no default."""
    arguments = function.args
    positional: list[ast.AST] = [*arguments.posonlyargs, *arguments.args]
    if positional and not arguments.args:
        # def f(a, /): after the slash, so that the value can also be given by name
        comma = text.skip_filler(text.after_parentheses(text.stop(positional[-1]), _parameters_end(text, function)))
        slash = text.skip_filler(comma + 1)
        if text.masked[comma] != "," or text.masked[slash] != "/":
            raise Unreadable("The head of a function is written in an unusual way.")
        return [TextEdit(slash + 1, slash + 1, 0, "".join(f", {name}" for name in names))]
    if positional:
        return [_after(text, positional[-1], _parameters_end(text, function), names, positional)]
    if arguments.vararg is None and not arguments.kwonlyargs and arguments.kwarg is None:
        return _only_parameters(text, function, names)
    return prepend_parameters(text, function, names)


def append_keyword_only(text: Text, function: FunctionNode, names: Sequence[str]) -> list[TextEdit]:
    """Add keyword-only parameters at the end, before ``**kwargs``."""
    arguments = function.args
    every: list[ast.AST] = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
    if arguments.vararg is not None:
        every.append(arguments.vararg)
    star = [] if arguments.vararg is not None or arguments.kwonlyargs else ["*"]
    if not every:
        return prepend_parameters(text, function, [*star, *names])
    last = max(every, key=text.stop)
    return [_after(text, last, _parameters_end(text, function), [*star, *names], every)]


def prepend_parameters(text: Text, function: FunctionNode, names: Sequence[str]) -> list[TextEdit]:
    """Add parameters before all others."""
    arguments = function.args
    if not (arguments.posonlyargs or arguments.args or arguments.vararg or arguments.kwonlyargs or arguments.kwarg):
        return _only_parameters(text, function, names)
    if isinstance(function, ast.Lambda):
        start = text.skip_filler(text.start(function) + len("lambda"))
        return [TextEdit(start, start, 0, ", ".join(names) + ", ")]
    return [_before_first(text, _parameters_opening(text, function), _parameters_end(text, function), names)]


def extend_tuple(text: Text, display: ast.Tuple, values: Sequence[str]) -> TextEdit:
    """Add elements at the end of a tuple that is not empty, with or without parentheses or a last comma."""
    has_parentheses = text.text[text.start(display)] == "("
    limit = text.stop(display) - has_parentheses
    end = text.after_parentheses(text.stop(display.elts[-1]), limit)
    comma = text.skip_filler(end)
    if comma < limit and text.masked[comma] == ",":
        return TextEdit(comma + 1, comma + 1, 5, " " + ", ".join(values))
    return TextEdit(end, end, 5, "".join(f", {value}" for value in values))


def wrap(text: Text, node: ast.expr, before: str, after: str) -> list[TextEdit]:
    """Put text directly around an expression."""
    start, stop = text.start(node), text.stop(node)
    return [TextEdit(start, start, 1, before), TextEdit(stop, stop, -1, after)]


def replace(text: Text, node: ast.AST, new: str) -> list[TextEdit]:
    """Put new text in place of a node."""
    return [TextEdit(text.start(node), text.stop(node), 0, new)]


def delete_statement(text: Text, statement: ast.stmt) -> TextEdit:
    """Take out a statement with its whole line.

    Raises:
        Unreadable: where other code stands on its line.
    """
    start, stop = text.start(statement), text.stop(statement)
    indent = text.indent_of_line(start)
    line_end = re.compile(r"[ \t]*(?:#[^\r\n]*)?(\r\n|\r|\n|$)").match(text.masked, stop)
    if indent is None or line_end is None:
        raise Unreadable("A statement that is not needed any more shares its line with others.")
    return TextEdit(start - len(indent), line_end.end(), 0, "")


def add_after_statement(text: Text, statement: ast.stmt, line: str) -> TextEdit:
    """Put a line of code below a statement, with its indentation.

    Raises:
        Unreadable: where other code stands on its lines.
    """
    start, stop = text.start(statement), text.stop(statement)
    indent = text.indent_of_line(start)
    rest = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|$)").match(text.masked, stop)
    if indent is None or rest is None:
        raise Unreadable("A line has to be added where several statements share one.")
    return TextEdit(rest.end(), rest.end(), 0, text.newline + indent + line)


# -- positions -------------------------------------------------------------------------------------------------------


def _only_parameters(text: Text, function: FunctionNode, names: Sequence[str]) -> list[TextEdit]:
    if isinstance(function, ast.Lambda):
        after = text.start(function) + len("lambda")
        return [TextEdit(after, after, 0, " " + ", ".join(names))]
    opening = _parameters_opening(text, function)
    return [TextEdit(opening + 1, opening + 1, 0, ", ".join(names))]


def _parameters_opening(text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    head = re.compile(r"(?:async\s+)?def\s+" + re.escape(function.name) + r"\s*").match(
        text.masked, text.start(function)
    )
    if head is None or text.masked[head.end() : head.end() + 1] != "(":
        raise Unreadable(f"The head of `{function.name}` is written in an unusual way.")
    return head.end()


def _parameters_end(text: Text, function: FunctionNode) -> int:
    """An index before which all parameters end: for a ``def`` that of its closing parenthesis, else of the colon."""
    arguments = function.args
    every: list[ast.AST] = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *arguments.defaults]
    every += [d for d in arguments.kw_defaults if d is not None]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    if isinstance(function, ast.Lambda):
        return text.start(function.body)
    position = max([text.stop(node) for node in every], default=_parameters_opening(text, function) + 1)
    depth_limit = text.start(function.body[0])
    last_closing = position
    while True:
        position = text.skip_filler(position)
        character = text.masked[position]
        if character == ")":
            last_closing = position
        elif character not in ",/*":
            return last_closing
        position += 1
        if position > depth_limit:
            raise Unreadable("The head of a function is written in an unusual way.")


def _opening_parenthesis(text: Text, index: int) -> int:
    """Index of a call's own opening parenthesis, given where the called expression ends."""
    while True:
        index = text.skip_filler(index)
        if text.masked[index] == "(":
            return index
        if text.masked[index] != ")":
            raise Unreadable("A call is written in an unusual way.")
        index += 1


def _keyword_start(text: Text, keyword: ast.keyword) -> int:
    return text.start(keyword)


def _refuse_bare_generator(text: Text, call: ast.Call) -> None:
    if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp):
        generator = call.args[0]
        if text.stop(generator) == text.stop(call) and not call.keywords:
            raise Unreadable("A call takes a bare generator, which allows no second argument.")


def _after(text: Text, node: ast.AST, limit: int, new: Sequence[str], items: Sequence[ast.AST]) -> TextEdit:
    """``, new`` after an item of a list; on lines of their own where the list has one item a line."""
    end = text.after_parentheses(text.stop(node), limit)
    separator = _separator(text, items)
    return TextEdit(end, end, 0, "".join(separator + name for name in new))


def _separator(text: Text, items: Sequence[ast.AST]) -> str:
    if len(items) < 2:
        return ", "
    last = sorted(items, key=text.start)[-1]
    start = text.start(last)
    indent = text.indent_of_line(start)
    previous = [text.stop(item) for item in items if item is not last and text.stop(item) <= start]
    if indent is None or not previous or text.line_of(max(previous)) == text.line_of(start):
        return ", "
    # Only where each item begins its line: a wrapped line goes on as it is.
    begins = [text.indent_of_line(text.start(item)) is not None for item in items]
    return "," + text.newline + indent if all(begins) else ", "


def _before_first(text: Text, opening: int, closing: int, new: Sequence[str]) -> TextEdit:
    first = text.skip_filler(opening + 1)
    joined = ", ".join(new)
    if first >= closing:
        return TextEdit(opening + 1, opening + 1, 0, joined)
    indent = text.indent_of_line(first)
    if indent is not None and text.line_of(first) != text.line_of(opening):
        return TextEdit(first, first, 0, "".join(f"{name},{text.newline}{indent}" for name in new))
    return TextEdit(first, first, 0, joined + ", ")
