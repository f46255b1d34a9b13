"""Caches that were filled while a transform was tracing: what fills them, and whether it needs anything traced."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite.call_paths import self_parameter
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_case import text_at
from jaxleak_magic.rewrite.state_writes import Write, writes_in
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
            same = text.of(target.value) == text.of(container) and text.of(target.slice) == text.of(key)
            return above if same else None
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return above if text.of(left) == text.of(target) else None
        case ast.UnaryOp(
            op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant() as key])
        ):
            same = isinstance(target, ast.Attribute) and text.of(target.value) == text.of(owner)
            return above if same and target.attr == key.value else None  # type: ignore[attr-defined]
        case ast.UnaryOp(op=ast.Not(), operand=ast.Attribute() | ast.Name() as flag):
            return above if _sets_flag(text, above, flag) else None
        case _:
            return None


def _sets_flag(text: Text, guard: ast.If, flag: ast.expr) -> bool:
    """Whether a block ends by setting the flag that guards it."""
    return any(
        isinstance(s, ast.Assign)
        and text.of(s.targets[0]) == text.of(flag)
        and isinstance(s.value, ast.Constant)
        and s.value.value is True
        for s in guard.body
    )


class Inputs:
    """What the filling of a cache depends on.

    Args:
        program: all texts.
        function: the function that fills it.
    """

    def __init__(self, program: Program, function: ast.FunctionDef) -> None:
        self.program = program
        self.function = function
        self._asked: set[str] = set()

    def traced_name(self, nodes: Sequence[ast.stmt | ast.expr]) -> str | None:
        """A name in some code that may stand for a traced value, or None where it certainly has none."""
        for node in nodes:
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and self._may_be_traced(each):
                    return each.id
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and self._is_traced_field(each):
                    return self.program.text_of[each].of(each)
        return None

    def _may_be_traced(self, name: ast.Name) -> bool:
        owner = self.program.owner(name)
        own = self.program.own_scope[self.function]
        if owner is None or owner.kind == "module":
            return False
        if owner is not own:
            return not owner.is_inside(own)
        parameter = self_parameter(self.program, self.function)
        if parameter is not None and parameter.arg == name.id:
            return False
        if name.id in self._asked:
            return False
        self._asked.add(name.id)
        for site in self.program.sites(owner, name.id):
            if site.kind == "parameter":
                return True
            value = self.program.assigned_value(site)
            if value is not None and self.traced_name([value]) is not None:
                return True
        self._asked.discard(name.id)
        return False

    def _is_traced_field(self, attribute: ast.Attribute) -> bool:
        """An attribute of the object that a method writes with something that may be traced."""
        parameter = self_parameter(self.program, self.function)
        if parameter is None or not isinstance(attribute.value, ast.Name) or attribute.value.id != parameter.arg:
            return False
        around = self.program.scope_at[self.function]
        for method in around.node.body if isinstance(around.node, ast.ClassDef) else []:
            if not isinstance(method, ast.FunctionDef) or method is self.function or method.name == "__init__":
                continue
            for write in writes_in(self.program, method):
                if isinstance(write.target, ast.Attribute) and write.target.attr == attribute.attr:
                    return True
        return False


# -- edits -------------------------------------------------------------------------------------------------------------


def compute_once(program: Program, memo: Memo, draft: Draft) -> None:
    """Fill the cache with a concrete value, also where a transform is tracing.

    Raises:
        Refused: where the code cannot be indented, or JAX has no name there.
    """
    function = memo.function
    text = program.text_of[function]
    eager = program.spelling("jax.ensure_compile_time_eval", function)
    if eager is None:
        raise Refused(
            f"`{function.name}` computes a constant inside the transform. Compute it before, or under "
            "`with jax.ensure_compile_time_eval():`."
        )
    body = memo.guard.body if memo.guard is not None else function.body
    if memo.guard is None and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if any(isinstance(n, ast.With) and eager in text.of(n) for s in body for n in ast.walk(s)):
        raise Refused("The value is computed under `ensure_compile_time_eval` already.")
    first, last = body[0], body[-1]
    start = text.start(first)
    if isinstance(first, ast.FunctionDef | ast.ClassDef) and first.decorator_list:
        start = text.offset(first.decorator_list[0].lineno, first.col_offset)
    indent = text.indent_of_line(start)
    if indent is None:
        raise Refused(f"`{function.name}` is written on one line. Give its body lines of its own first.")
    draft.add(
        text, [TextEdit(start, start, -1, f"with {eager}():{text.newline}{indent}{_unit(program, text, function)}")]
    )
    draft.add(text, indented(text, text.line_of(start) + 1, last, _unit(program, text, function)))


def _unit(program: Program, text: Text, function: FunctionNode) -> str:
    """One step of indentation, as the function has it."""
    outer = text.indent_of_line(text.offset(function.lineno, function.col_offset)) or ""
    inner = text.indent_of_line(text.start(function.body[0]))  # type: ignore[index]
    del program
    return inner[len(outer) :] if inner is not None and inner.startswith(outer) and inner != outer else "    "


def indented(text: Text, first_line: int, last: ast.stmt, unit: str) -> list[TextEdit]:
    """Edits that move the lines from one to the end of a statement one step to the right."""
    _refuse_long_strings(last)
    edits: list[TextEdit] = []
    stop = last.end_lineno or last.lineno
    for line in range(first_line, stop + 1):
        start = text.offset(line, 0)
        if text.masked[start : start + 1] not in ("\r", "\n", ""):
            edits.append(TextEdit(start, start, -2, unit))
    return edits


def _refuse_long_strings(statement: ast.stmt) -> None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            raise Refused(f"A text over several lines would have to be indented (line {node.lineno}). Do it by hand.")


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
    _refuse_long_strings(guard)
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
