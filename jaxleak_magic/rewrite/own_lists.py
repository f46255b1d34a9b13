"""A list outside to which a function appends in a loop or under a condition: a list of the function's own comes out."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Set

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.state_writes import Values, Write, writes_in
from jaxleak_magic.rewrite.states import (
    Collected,
    State,
    is_only_attribute,
    may_get_another_name,
    starts_as_empty_list,
    state_at,
)


def own_list(program: Program, write: Write, values: Values) -> Collected | None:
    """The list that is to come out of a function, or None where that is not sure, or where a plain move will do.

    Sure it is where the list begins empty, the function does nothing with it but append arrays, and no other function
    touches it: one that is called in between would see it without the new values.
    """
    function = write.function
    state = state_at(program, write.target, function)
    if state is None or not write.is_call:
        return None
    appends = [w for w in writes_in(program, function) if state_at(program, w.target, function) == state]
    if not all(_appends_array(each, values) for each in appends):
        return None
    if all(each.statement in getattr(function, "body", []) for each in appends):
        return None
    targets = {each.target for each in appends}
    if not (is_only_attribute(program, state.path, targets) if state.path else _is_only_name(program, state, targets)):
        return None
    name = state.stem
    if not name.isidentifier() or keyword.iskeyword(name):
        return None
    return Collected(state.owner, state.root, f"{state.path}@list", name, appends[0].statement)


def _appends_array(write: Write, values: Values) -> bool:
    match write.statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[stored], keywords=[])):
            return values.is_array(stored)
        case _:
            return False


def _is_only_name(program: Program, state: State, targets: Set[ast.expr]) -> bool:
    if state.owner.kind != "module" or not starts_as_empty_list(program, state.owner, state.root):
        return False
    others = [node for node in program.loads(state.owner, state.root) if node not in targets]
    return not any(program.enclosing_function(n) is not None or may_get_another_name(program, n) for n in others)
