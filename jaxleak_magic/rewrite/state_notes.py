"""Numbers that a function counts outside of itself while it is traced: they go in and come out as arrays."""

from __future__ import annotations

import ast
import re

from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.state_case import is_memo, thread
from jaxleak_magic.rewrite.state_units import StateUnits
from jaxleak_magic.rewrite.state_writes import write_at
from jaxleak_magic.rewrite.states import State, starts_as_number, state_at
from jaxleak_magic.rewrite.texts import Text


def thread_plain_state(program: Program, text: Text, line: int) -> tuple[str, Draft] | None:
    """The threading of a number that is written on a line; None where something else is written there.

    Raises:
        Refused: where the number could not be an array, or the meaning would not certainly stay.
    """
    write = write_at(program, line, text)
    if write is None or write.is_call or is_memo(program, write):
        return None
    state = state_at(program, write.target, write.function)
    if state is None or not starts_as_number(program, state):
        return None
    if re.search("compil|trac", state.stem, re.IGNORECASE):
        return None  # it counts compilations, and does so rightly
    units = StateUnits(program, [(write.function, state)])
    for function in units.units:
        for access in units.accesses_in(function, units_state(units, function)):
            _check_use(program, access.node, function_name(program, function))
        for site in units.paths.of(function):
            _check_call(program, site.call, function_name(program, function))
    threaded = thread(program, [(write, frozenset(), True)])
    return threaded.title, threaded.draft


def units_state(units: StateUnits, function: ast.AST) -> State:
    """The one state that goes through a function."""
    unit = units.units[function]  # type: ignore[index]
    return next(iter([*unit.gives, *unit.needs]))


def _check_call(program: Program, call: ast.Call, name: str) -> None:
    """Nothing is broken here, so only a small change is offered: one more result at calls that are statements."""
    if not isinstance(program.parent[call], ast.Assign | ast.Expr | ast.Return):
        raise Refused(
            f"`{name}` is called inside a larger expression (line {call.lineno}). Pass the number to it and return the "
            "new one, or count outside of the compiled function."
        )


def _check_use(program: Program, node: ast.expr, name: str) -> None:
    """An array is no Python number: it decides no branch, counts no loop, indexes no list and prints as a tracer."""
    current: ast.AST = node
    while not isinstance(current, ast.stmt):
        above = program.parent[current]
        plain = isinstance(above, ast.BinOp | ast.UnaryOp | ast.Tuple | ast.keyword | ast.Compare)
        if isinstance(above, ast.Call):
            plain = (program.qualified(above.func) or "").startswith("jax.") and current is not above.func
        if isinstance(above, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return):
            plain = True
        if not plain:
            raise Refused(
                f"`{short_text(program, node)}` is used as a Python number in `{name}` (line {node.lineno}). It is "
                "written once a compilation; count outside of the compiled function instead."
            )
        current = above
