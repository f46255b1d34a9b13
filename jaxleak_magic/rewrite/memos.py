"""Caches that were filled while a transform was tracing: what fills them, and whether it needs anything traced."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.eager_block import compute_eagerly, refuse_long_strings
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.state_case import text_at
from jaxleak_magic.rewrite.state_writes import Write, sets_flag, writes_in
from jaxleak_magic.rewrite.texts import Text, TextEdit

CACHES = frozenset(("functools.lru_cache", "functools.cache"))
PROPERTIES = frozenset(("functools.cached_property",))


@dataclass(frozen=True)
class Memo:
    """A cache.

    Attributes:
        function: the function that fills it.
        decorator: the decorator that keeps its results, or None.
        guard: the ``if`` under which it is filled once, or None.
        write: the statement that fills it, or None where a decorator does.
    """

    function: ast.FunctionDef
    decorator: ast.expr | None = None
    guard: ast.If | None = None
    write: Write | None = None


def memo_of(case: Case) -> Memo | None:
    """The cache that keeps a leaked value, or None where it is none of the user's."""
    place = case.leak.stored
    text = text_at(case.program, place)
    if place is None or text is None:
        return None
    program = case.program
    for function in program.functions():
        if program.text_of[function] is not text or not isinstance(function, ast.FunctionDef):
            continue
        for decorator in function.decorator_list:
            name = program.qualified(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if place.line in (decorator.lineno, function.lineno) and name in CACHES | PROPERTIES:
                return Memo(function, decorator)
        for write in writes_in(program, function):
            stop = write.statement.end_lineno or write.statement.lineno
            if write.statement.lineno <= place.line <= stop and (guard := guard_of(program, write)) is not None:
                return Memo(function, guard=guard, write=write)
    return _default_memo(case, text)


def _default_memo(case: Case, text: Text) -> Memo | None:
    """A mutable default that a function fills once."""
    place, program = case.leak.stored, case.program
    assert place is not None
    for function in program.functions():
        if program.text_of[function] is not text or not isinstance(function, ast.FunctionDef):
            continue
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        with_default = positional[len(positional) - len(arguments.defaults) :]
        for statement in ast.walk(function):
            match statement:
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name)) as target]):
                    pass
                case _:
                    continue
            if statement.lineno != place.line or name not in [a.arg for a in with_default]:
                continue
            write = Write(function, statement, target, statement.value)
            if (guard := guard_of(program, write)) is not None:
                return Memo(function, guard=guard, write=write)
    return None


def guard_of(program: Program, write: Write) -> ast.If | None:
    """The ``if`` that lets a cache be filled only once, directly around its write."""
    above = program.parent[write.statement]
    if not isinstance(above, ast.If) or write.statement not in above.body or above.orelse:
        return None
    text = program.text_of[above]
    target = write.target
    match above.test:
        case ast.Compare(left=key, ops=[ast.NotIn()], comparators=[container]) if isinstance(target, ast.Subscript):
            same = _same_place(target.value, container) and _same_place(target.slice, key)
            return above if same else None
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            same = _same_place(left, target) or _was_looked_up(program, left, target)
            return above if same else None
        case ast.UnaryOp(
            op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant() as key])
        ):
            same = isinstance(target, ast.Attribute) and text.of(target.value) == text.of(owner)
            return above if same and target.attr == key.value else None  # type: ignore[attr-defined]
        case ast.UnaryOp(op=ast.Not(), operand=ast.Attribute() | ast.Name() as flag):
            return above if sets_flag(text, above, flag) else None
        case _:
            return None


def _same_place(one: ast.expr, other: ast.expr) -> bool:
    """Whether two expressions are written alike, but for parentheses, spaces, and whether they are read or written."""
    return re.sub("ctx=[A-Za-z]+", "", ast.dump(one)) == re.sub("ctx=[A-Za-z]+", "", ast.dump(other))


def _was_looked_up(program: Program, name: ast.expr, target: ast.expr) -> bool:
    """Whether a name holds ``container.get(key)`` of the item that is written, and else only what is stored there."""
    owner = program.owner(name) if isinstance(name, ast.Name) else None
    if owner is None or not isinstance(name, ast.Name) or not isinstance(target, ast.Subscript):
        return False
    first = [program.assigned_value(site) for site in program.sites(owner, name.id)][:1]
    match first:
        case [ast.Call(func=ast.Attribute(value=container, attr="get"), args=[key] | [key, ast.Constant(value=None)])]:
            return _same_place(container, target.value) and _same_place(key, target.slice)
        case _:
            return False


# -- edits -------------------------------------------------------------------------------------------------------------


def compute_once(program: Program, memo: Memo, draft: Draft) -> None:
    """Fill the cache with a concrete value, also where a transform is tracing.

    Raises:
        Refused: where the code cannot be indented, or JAX has no name there.
    """
    function = memo.function
    body = memo.guard.body if memo.guard is not None else function.body
    if memo.guard is None and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    compute_eagerly(program, function, body, draft)


def drop_decorator(program: Program, memo: Memo, draft: Draft) -> None:
    """Let the function compute its result at each call."""
    function, decorator = memo.function, memo.decorator
    assert decorator is not None
    text = program.text_of[function]
    owner = program.scope_at[function].lookup(function.name)
    loads = program.loads(owner, function.name) if owner is not None else []
    for load in loads:
        parent = program.parent[load]
        if isinstance(parent, ast.Attribute):
            raise Refused(
                f"`{short_text(program, parent)}` is used on line {parent.lineno}. Take the cache off "
                f"`{function.name}` and that line by hand."
            )
    line = text.offset(decorator.lineno, 0)
    stop = text.stop(decorator)
    rest = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n)").match(text.masked, stop)
    if rest is None or text.masked[line : text.start(decorator)].strip() != "@":
        raise Refused("A decorator is written in an unusual way.")
    draft.add(text, [TextEdit(line, rest.end(), 0, "")])


def without_cache(program: Program, memo: Memo, draft: Draft) -> str:
    """Compute the value at each call: the guard goes, and its block moves to the left. Gives the value's name.

    Raises:
        Refused: where something else reads the cache.
    """
    write, guard, function = memo.write, memo.guard, memo.function
    assert write is not None and guard is not None and isinstance(write.statement, ast.Assign)
    text = program.text_of[function]
    name = function_name(program, function)
    place = text.of(write.target)
    if guard.body[-1] is not write.statement or len(write.statement.targets) != 1:
        raise _by_hand(place, name, "is not filled by the last statement of its block")
    if not isinstance(write.statement.value, ast.Name):
        raise _by_hand(place, name, "is filled with a value that has no name of its own")
    if not isinstance(write.target, ast.Subscript):
        raise _by_hand(place, name, "is an attribute that others may read")
    local = write.statement.value.id
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and text.of(node) == place:
            if text.start(node) < text.stop(guard):
                raise _by_hand(place, name, "is read before it is filled")
            draft.add(text, [TextEdit(text.start(node), text.stop(node), 0, local)])
    _check_other_reads(program, memo, place, name)
    start, indent = text.start(guard), text.indent_of_line(text.start(guard))
    inner = text.indent_of_line(text.start(guard.body[0]))
    if indent is None or inner is None or not inner.startswith(indent) or len(guard.body) < 2:
        raise _by_hand(place, name, "is filled on one line")
    refuse_long_strings(guard)
    removed = len(inner) - len(indent)
    draft.add(text, [TextEdit(start, text.start(guard.body[0]), 0, "")])
    last = guard.body[-2]
    for line in range(guard.body[0].lineno + 1, (last.end_lineno or last.lineno) + 1):
        begin = text.offset(line, 0)
        if text.masked[begin : begin + removed].strip(" \t") == "" and text.masked[begin] not in "\r\n":
            draft.add(text, [TextEdit(begin, begin + removed, 0, "")])
    end = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n|\Z)").match(text.masked, text.stop(write.statement))
    assert end is not None
    draft.add(text, [TextEdit(text.offset(write.statement.lineno, 0), end.end(), 0, "")])
    return local


def _check_other_reads(program: Program, memo: Memo, place: str, name: str) -> None:
    assert memo.write is not None and isinstance(memo.write.target, ast.Subscript)
    container = memo.write.target.value
    word = container.attr if isinstance(container, ast.Attribute) else getattr(container, "id", None)
    if word is None:
        raise _by_hand(place, name, "is reached in an unusual way")
    text = program.text_of[memo.function]
    inside = set(ast.walk(memo.function))
    for node in program.scope_at:
        same = (isinstance(node, ast.Attribute) and node.attr == word) or (
            isinstance(node, ast.Name) and node.id == word
        )
        if not same or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            continue
        parent = program.parent[node]
        if node in inside and (
            (isinstance(parent, ast.Subscript) and text.of(parent) == place)
            or (isinstance(parent, ast.Compare) and program.parent[parent] is memo.guard)
        ):
            continue
        if isinstance(parent, ast.Attribute) and parent.attr == word:
            continue
        raise _by_hand(place, name, f"is read on line {node.lineno} too")  # type: ignore[attr-defined]


def _by_hand(place: str, name: str, why: str) -> Refused:
    return Refused(
        f"`{place}` keeps a value that depends on an argument, and it {why}. Compute it in `{name}` at each call, and "
        "keep nothing."
    )
