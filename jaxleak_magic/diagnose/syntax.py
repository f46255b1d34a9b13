"""What the syntax of a user's text says: functions by their first line, statements by line, and the writes in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Write:
    """A statement that may put a value somewhere where it outlives the function.

    Attributes:
        kind: ``"name"``, ``"attribute"``, ``"item"`` (subscript) or ``"call"`` (``append`` and others).
        target: name, attribute, or, for items and calls, the last name of the container's expression.
        key: text of a constant subscript, or None.
        value: the expression that is stored, or None where the statement does not show it.
        line: 1-based first line of the statement.
        column: 0-based column in characters.
        function: the function around it, or None.
        method: for calls the method's name.
    """

    kind: str
    target: str
    key: str | None
    value: ast.expr | None
    line: int
    column: int
    function: FunctionNode | None
    method: str | None = None

    @property
    def value_name(self) -> str | None:
        """The name of the stored value where it is a plain name."""
        return self.value.id if isinstance(self.value, ast.Name) else None


MUTATORS = frozenset(
    {
        "append",
        "appendleft",
        "add",
        "extend",
        "extendleft",
        "insert",
        "update",
        "setdefault",
        "put",
        "put_nowait",
        "push",
    }
)
"""Methods of lists, deques, sets, dicts and queues that put a value into them."""


class Syntax:
    """The syntax tree of one text. Magics and shell lines are blanked first, so line numbers stay.

    Args:
        text: the user's source.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.tree = _parse(text)
        self._parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around ``node``."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, innermost first."""
        above = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement that contains ``node`` (or is it)."""
        while not isinstance(node, ast.stmt):
            above = self._parents.get(node)
            if above is None:
                return None
            node = above
        return node

    def function_around(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function that contains ``node``, not ``node`` itself."""
        return next((a for a in self.ancestors(node) if isinstance(a, FunctionNode)), None)

    def class_around(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose body holds ``node`` directly (a method's class), or None."""
        above = self._parents.get(node)
        return above if isinstance(above, ast.ClassDef) else None

    @cached_property
    def functions(self) -> list[FunctionNode]:
        """All functions and lambdas of the text."""
        return [node for node in ast.walk(self.tree) if isinstance(node, FunctionNode)]

    def function_at(self, line: int, name: str) -> FunctionNode | None:
        """The function of a code object with this first line and name; of several lambdas of one statement the first.

        ``co_firstlineno`` of a decorated function is its first decorator's line (Python >= 3.8).
        """
        found = [f for f in self.functions if first_line(f) == line and _name(f) == name]
        same_statement = len({id(self.statement(f)) for f in found}) == 1
        return found[0] if same_statement else None

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that covers a line."""
        best: ast.stmt | None = None
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            if best is None or node.lineno > best.lineno or (node.lineno == best.lineno and _inside(node, best)):
                best = node
        return best

    @cached_property
    def writes(self) -> list[Write]:
        """Every write of the text, in order of lines."""
        found = [write for node in ast.walk(self.tree) for write in self._writes_of(node)]
        return sorted(found, key=lambda write: (write.line, write.column))

    def loads(self, name: str, inside: ast.AST) -> list[ast.Name]:
        """Uses of a name inside a node, in order of lines."""
        found = [
            n for n in ast.walk(inside) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        ]
        return sorted(found, key=lambda n: (n.lineno, n.col_offset))

    def nested_users(self, name: str, inside: FunctionNode) -> list[FunctionNode]:
        """The functions nested in ``inside`` that use a variable of its."""
        around = [self.function_around(use) for use in self.loads(name, inside)]
        nested = [f for f in around if f is not None and f is not inside and not _binds(f, name)]
        return list(dict.fromkeys(nested))

    def local_origins(self, statement: ast.stmt, function: FunctionNode) -> dict[str, ast.stmt | FunctionNode]:
        """Local variables that a statement reads, each with what set it: an assignment before it, or the function."""
        arguments = function.args
        parameters = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]} - {"self", "cls"}
        found: dict[str, ast.stmt | FunctionNode] = {}
        for name in dict.fromkeys(
            n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        ):
            setters = [
                s
                for s in ast.walk(function)
                if isinstance(s, ast.Assign)
                and s.lineno < statement.lineno
                and any(_is_name(t, name) for t in s.targets)
            ]
            if len(setters) == 1 and name not in parameters:
                found[name] = setters[0]
            elif not setters and name in parameters:
                found[name] = function
        return found

    def _writes_of(self, node: ast.AST) -> Iterator[Write]:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from self._targets(node, target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            value = node.value if isinstance(node, ast.AnnAssign) else None
            yield from self._targets(node, node.target, value)
        elif isinstance(node, ast.NamedExpr):
            yield from self._targets(node, node.target, node.value)
        elif isinstance(node, ast.Call):
            yield from self._call(node)

    def _targets(self, statement: ast.AST, target: ast.expr, value: ast.expr | None) -> Iterator[Write]:
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            for element, part in zip(target.elts, values, strict=True):
                yield from self._targets(statement, element, part)
        elif isinstance(target, ast.Starred):
            yield from self._targets(statement, target.value, None)
        elif isinstance(target, ast.Attribute):
            yield self._write("attribute", target.attr, statement, value)
        elif isinstance(target, ast.Subscript):
            key = target.slice.value if isinstance(target.slice, ast.Constant) else None
            name = last_name(target.value)
            if name is not None:
                yield self._write("item", name, statement, value, key=None if key is None else str(key))
        elif isinstance(target, ast.Name):
            yield self._write("name", target.id, statement, value)

    def _call(self, node: ast.Call) -> Iterator[Write]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            name = last_name(node.func.value)
            if name is not None:
                value = node.args[-1] if node.args else None
                yield self._write("call", name, node, value, method=node.func.attr)
        elif last_name(node.func) == "finalize" and len(node.args) >= 2:
            yield self._write("call", "finalize", node, node.args[-1], method="finalize")
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "set" and len(node.args) == 1:
            name = last_name(node.func.value)
            if name is not None:
                yield self._write("call", name, node, node.args[0], method="set")
        elif isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                yield self._write("attribute", attribute.value, node, node.args[2])
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "__setattr__"
            and len(node.args) == 3
            and isinstance(node.args[1], ast.Constant)
        ):
            yield self._write("attribute", str(node.args[1].value), node, node.args[2])

    def _write(
        self,
        kind: str,
        target: str,
        node: ast.AST,
        value: ast.expr | None,
        key: str | None = None,
        method: str | None = None,
    ) -> Write:
        statement = self.statement(node)
        line = getattr(statement, "lineno", None) or getattr(node, "lineno", 1)
        column = self.column(line, getattr(statement, "col_offset", 0))
        return Write(kind, target, key, value, line, column, self.function_around(node), method)

    def column(self, line: int, byte_offset: int) -> int:
        """Column in characters of a UTF-8 byte offset, as ``ast`` and ``co_positions`` give it."""
        if not 0 < line <= len(self.lines):
            return byte_offset
        return len(self.lines[line - 1].encode("utf-8", "surrogatepass")[:byte_offset].decode("utf-8", "replace"))


def last_name(node: ast.expr) -> str | None:
    """The last name of an expression that names a container: ``net.externals`` gives ``externals``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return None


def first_line(function: FunctionNode) -> int:
    """``co_firstlineno`` of the function: the line of its first decorator (Python >= 3.8), else its own."""
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    return min([function.lineno, *(d.lineno for d in decorators)])


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _binds(function: FunctionNode, name: str) -> bool:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return any(argument is not None and argument.arg == name for argument in every)


def _name(function: FunctionNode) -> str:
    return "<lambda>" if isinstance(function, ast.Lambda) else function.name


def _inside(inner: ast.stmt, outer: ast.stmt) -> bool:
    return (inner.end_lineno or inner.lineno) <= (outer.end_lineno or outer.lineno)


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        pass
    try:
        return ast.parse(_without_magics(text))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _without_magics(text: str) -> str:
    """IPython's line magics, shell lines and help lines as ``pass``, so that the lines around them still parse."""
    lines: list[str] = []
    for line in text.split("\n"):
        bare = line.lstrip()
        magic = bare.startswith(("%", "!", "?")) or (bare.rstrip().endswith("?") and not bare.startswith("#"))
        if magic:
            lines.append(line[: len(line) - len(bare)] + "pass")
        elif " = !" in line or " = %" in line:
            lines.append(line.split(" = ")[0] + " = None")
        else:
            lines.append(line)
    return "\n".join(lines)
