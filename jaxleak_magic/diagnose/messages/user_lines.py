"""Finds the lines that a text names in the user's own cells and files, and what stands there."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxleak_magic.diagnose.messages.reading import Spot
from jaxleak_magic.diagnose.model import CellRef, Place, SourceText
from jaxleak_magic.diagnose.sources import SourceBook, source_lines

_LIBRARY = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3[.\d]*[/\\]|^<frozen |^<__array_function__"
    r"|[/\\]jax[/\\](?:_src|interpreters|lax|numpy|experimental)[/\\]|[/\\]jax[/\\]\w+\.py$"
)
_ABSTRACT = {
    "jit",
    "filter_jit",
    "scan",
    "cond",
    "switch",
    "while_loop",
    "fori_loop",
    "map",
    "checkpoint",
    "remat",
    "pmap",
    "make_jaxpr",
    "eval_shape",
    "pallas_call",
    "shard_map",
}
"""Transforms under which JAX makes a ``DynamicJaxprTrace``."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_library(spot: Spot) -> bool:
    """Whether a line is JAX's, Python's or another installed package's."""
    return spot.file is not None and _LIBRARY.search(spot.file) is not None


class UserLines:
    """The lines of the user's sources.

    Args:
        sources: cells and files that the text may speak of; where none fits, a place has the text's own words.
        book: knows the cells by the file names under which they were compiled, or None.
    """

    def __init__(self, sources: Sequence[SourceText], book: SourceBook | None = None) -> None:
        self._book = book
        self._sources = [_Source(source) for source in sources]

    def place(self, spot: Spot) -> Place:
        """The place that a text names, in the user's cell or file where one fits, and only one."""
        if self._book is not None and spot.file is not None and self._book.get(spot.file) is not None:
            return self._book.place(spot.file, spot.line, spot.column, spot.function)
        found = None if is_library(spot) else self._find(spot)
        if found is not None:
            source, line = found
            text = source.lines[line - 1]
            return Place(source.of.cell, source.of.file, line, spot.column, spot.function, text)
        cell = CellRef(None, spot.count) if spot.count is not None else None
        file = None if cell is not None else spot.file
        return Place(cell, file, spot.line, spot.column, spot.function, spot.source)

    def source_at(self, place: Place | None) -> SourceText | None:
        """The source in which a place stands, or None."""
        found = self._source_of(place)
        return found.of if found else None

    def assigned_at(self, place: Place | None) -> str | None:
        """The variable that the statement at a place assigns, where it is a single one."""
        source = self._source_of(place)
        if source is None or place is None:
            return None
        names = {
            statement.targets[0].id
            for statement in source.statements()
            if isinstance(statement, ast.Assign) and statement.lineno <= place.line <= (statement.end_lineno or 0)
            if len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
        }
        return names.pop() if len(names) == 1 else None

    def stored_at(self, near: Place | None, name: str) -> Place | None:
        """The one statement inside a function that writes to a global or fills the container of this name."""
        source = self._source_of(near)
        if source is None or not name.isidentifier():
            return None
        found = [
            (function, statement)
            for function in source.functions
            for statement in _own_statements(function)
            if _writes(statement, name, function)
        ]
        if len(found) != 1:
            return None
        function, statement = found[0]
        line = statement.lineno
        text = source.lines[line - 1]
        return Place(source.of.cell, source.of.file, line, statement.col_offset, function.name, text)

    def transform_of(self, near: Place | None, function: str | None) -> str | None:
        """The one abstract transform (jit, scan, ...) to which the source gives a function of this name."""
        source = self._source_of(near)
        if source is None or function is None or source.tree is None:
            return None
        names: set[str] = set()
        for node in ast.walk(source.tree):
            if isinstance(node, _Function) and node.name == function:
                names |= {_last_name(decorator) for decorator in node.decorator_list}
            elif isinstance(node, ast.Call) and any(isinstance(a, ast.Name) and a.id == function for a in node.args):
                names.add(_last_name(node))
        found = {"checkpoint" if name == "remat" else name for name in names & _ABSTRACT}
        return found.pop() if len(found) == 1 else None

    def _source_of(self, place: Place | None) -> _Source | None:
        if place is None:
            return None
        return next((s for s in self._sources if (s.of.cell, s.of.file) == (place.cell, place.file)), None)

    def _find(self, spot: Spot) -> tuple[_Source, int] | None:
        for fitting in (self._by_name(spot), self._sources):
            found = [(source, line) for source in fitting if (line := source.line_of(spot, certain=len(fitting) == 1))]
            if found:
                return found[0] if len(found) == 1 else None
        return None

    def _by_name(self, spot: Spot) -> list[_Source]:
        if spot.count is not None:
            return [s for s in self._sources if s.of.cell is not None and s.of.cell.execution_count == spot.count]
        base = _base(spot.file)
        return [s for s in self._sources if s.of.file is not None and _base(s.of.file) == base] if base else []


@dataclass(frozen=True)
class _Source:
    of: SourceText

    @cached_property
    def lines(self) -> list[str]:
        return source_lines(self.of.text)

    @cached_property
    def tree(self) -> ast.Module | None:
        """The parsed text; lines that are IPython's and not Python's count as empty. None where it is no Python."""
        plain = "\n".join("" if re.match(r"\s*[%!?]", line) else line for line in self.lines)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(plain)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def functions(self) -> list[_Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, _Function)] if self.tree else []

    def statements(self) -> Iterator[ast.stmt]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)) if self.tree else iter(())

    def line_of(self, spot: Spot, *, certain: bool) -> int | None:
        """The line of a spot in this text; where it is not certain that the spot is of this text, it must show it."""
        above = self.of.magic.count("\n") if self.of.cell is not None else 0
        line = spot.line - above
        inside = 0 < line <= len(self.lines)
        if spot.source:
            shown = spot.source.strip()
            if inside and self.lines[line - 1].strip() == shown:
                return line
            same = [n for n, text in enumerate(self.lines, 1) if text.strip() == shown]
            return same[0] if len(same) == 1 else None
        if not inside or not self.lines[line - 1].strip():
            return None
        if spot.function is None:
            return line if certain and self._named_like(spot) else None
        names = spot.function.split(".")
        return (
            line
            if any(f.name == names[-1] and _first(f) <= line <= (f.end_lineno or 0) for f in self.functions)
            or (names[-1] == "<lambda>" and certain and "lambda" in self.lines[line - 1])
            else None
        )

    def _named_like(self, spot: Spot) -> bool:
        if spot.count is not None:
            return self.of.cell is not None and self.of.cell.execution_count == spot.count
        return self.of.file is not None and _base(self.of.file) == _base(spot.file)


def _base(file: str | None) -> str:
    return re.split(r"[/\\]", file)[-1] if file else ""


def _first(function: _Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _own_statements(function: _Function) -> Iterator[ast.stmt]:
    """The statements of a function, without those of the functions inside it."""
    inner = {id(n) for f in ast.walk(function) if isinstance(f, _Function) and f is not function for n in ast.walk(f)}
    return (n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function and id(n) not in inner)


def _writes(statement: ast.stmt, name: str, function: _Function) -> bool:
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        declared = any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(function))
        return any(
            (isinstance(target, ast.Name) and target.id == name and declared)
            or (isinstance(target, ast.Subscript | ast.Attribute) and _root(target) == name)
            for target in targets
        )
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        return isinstance(called, ast.Attribute) and _root(called) == name and bool(statement.value.args)
    return False


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _last_name(node: ast.expr) -> str:
    """``jit`` of ``jax.jit``, ``jax.jit(f)``, ``partial(jax.jit, ...)``."""
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        return _last_name(node.args[0]) if name == "partial" and node.args else name
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
