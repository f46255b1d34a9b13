"""A leak whose trace was born before this run: what can still be known of it, and which cell to check for the rest.

A notebook's usual order of events: the value leaks in one cell that nobody checks, and a later cell fails with it. Its
trace is not in the census, so the places come from what the tracer carries and from the syntax of the recorded cells.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.diagnose.referrers import function_name
from jaxleak_magic.diagnose.storage import Storage, bare
from jaxleak_magic.diagnose.syntax import FunctionNode, Syntax
from jaxleak_magic.diagnose.trace_stack import Places, file_of
from jaxleak_magic.heap import Step


@dataclass(frozen=True)
class EarlierStory:
    """What can still be known.

    Attributes:
        created: where the value was computed or entered its trace, or None.
        is_argument: whether it entered as an argument.
        escaped: the line whose transform had ended, or None.
        traced: name of the function that was transformed, or None.
        check_at: the cell to check and why, in words (``In [3], which runs `step```), or None.
    """

    created: Place | None
    is_argument: bool
    escaped: Place | None = None
    traced: str | None = None
    check_at: str | None = None


def earlier_story(
    steps: Sequence[Step],
    storage: Storage,
    created: Place | None,
    is_argument: bool,
    places: Places,
    checked_file: str | None,
) -> EarlierStory:
    """The story of a leak of an earlier run.

    Args:
        steps: the best path, tracer to root.
        storage: the storing statement.
        created: what the tracer itself tells: of a vmap tracer that is an argument, the line that called vmap.
        is_argument: whether the tracer tells that it is an argument.
        places: places and syntax of the user's texts.
        checked_file: ``co_filename`` of the checked text, or None.
    """
    scope = _storing_function(steps, storage, places)
    if scope is None:
        return EarlierStory(created, is_argument, check_at=_check_at(created, None, places, checked_file))
    filename, function = scope
    syntax = places.syntax(filename)
    outermost = [f for f in (function, *syntax.ancestors(function)) if isinstance(f, ast.FunctionDef)][-1:]
    runs = outermost[0].name if outermost else None
    check_at = _check_at(created, runs, places, checked_file)
    variable = storage.variable
    if variable is None or is_argument:
        return EarlierStory(created, is_argument, check_at=check_at)
    if created is None:
        return EarlierStory(_computed_at(variable, filename, function, places), False, check_at=check_at)
    name = getattr(function, "name", None)
    if name and _binds_once(syntax, function, variable) and _calls_transform_of(name, created, places):
        definition = places.in_text(filename, function.lineno, function.col_offset, name)
        return EarlierStory(definition, True, created, name, check_at)
    return EarlierStory(created, False, check_at=check_at)


def computed_place(steps: Sequence[Step], storage: Storage, places: Places) -> Place | None:
    """Where the kept variable was computed, by syntax alone: its only assignment in the function that stores it."""
    scope = _storing_function(steps, storage, places)
    return None if scope is None or storage.variable is None else _computed_at(storage.variable, *scope, places)


def _storing_function(steps: Sequence[Step], storage: Storage, places: Places) -> tuple[str, FunctionNode] | None:
    """File name and syntax of the function whose variable is kept: around the closure, or around the statement."""
    first = steps[0] if steps else None
    if first is not None and first.kind == "closure_cell" and first.filename is not None and first.line is not None:
        closure = places.definition(first.filename, first.line, function_name(first))
        around = None if closure is None else places.syntax(first.filename).function_around(closure)
        return None if around is None or bare(first.name) != storage.variable else (first.filename, around)
    if storage.filename is None or storage.statement is None:
        return None
    around = places.syntax(storage.filename).function_around(storage.statement)
    return None if around is None else (storage.filename, around)


def _own_bindings(syntax: Syntax, function: FunctionNode, variable: str) -> list[ast.AST]:
    stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == variable]
    return [n for n in stores if not isinstance(n.ctx, ast.Load) and syntax.function_around(n) is function]


def _parameters(function: FunctionNode) -> list[str]:
    arguments = function.args
    return [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


def _binds_once(syntax: Syntax, function: FunctionNode, variable: str) -> bool:
    """Whether the variable is a parameter that nothing else in the function binds."""
    return variable in _parameters(function) and not _own_bindings(syntax, function, variable)


def _computed_at(variable: str, filename: str, function: FunctionNode, places: Places) -> Place | None:
    """The only assignment of the variable, where it computes something and does not only pass it on."""
    syntax = places.syntax(filename)
    bindings = _own_bindings(syntax, function, variable)
    if len(bindings) != 1 or variable in _parameters(function):
        return None
    statement = syntax.parent(bindings[0])
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call | ast.BinOp | ast.UnaryOp):
        return None
    return places.in_text(filename, statement.lineno, statement.col_offset, getattr(function, "name", "<lambda>"))


def _calls_transform_of(name: str, call: Place, places: Places) -> bool:
    """Whether the statement at ``call`` mentions the function: it is what was transformed there."""
    filename = file_of(call, places)
    if filename is None:
        return False
    statement = places.syntax(filename).statement_at(call.line)
    return statement is not None and bool(places.syntax(filename).loads(name, statement))


def _check_at(created: Place | None, runs: str | None, places: Places, checked_file: str | None) -> str | None:
    called = f", which runs `{runs}`" if runs else ""
    if created is not None and created.cell is not None and created.function is None:
        return _cell_name(created) + called
    if runs is None:
        return None
    for filename in reversed(places.sources.filenames()):
        source = places.sources.get(filename)
        if filename == checked_file or source is None or source.cell is None:
            continue
        syntax = places.syntax(filename)
        uses = [use for use in syntax.loads(runs, syntax.tree) if syntax.function_around(use) is None]
        if uses:
            return _cell_name(places.in_text(filename, uses[-1].lineno, 0, None)) + called
    return f"the cell that runs `{runs}`"


def _cell_name(place: Place) -> str:
    count = None if place.cell is None else place.cell.execution_count
    return "the earlier cell" if count is None else f"In [{count}]"
