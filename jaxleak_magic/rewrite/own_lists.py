"""A list outside to which a function appends in a loop or under a condition: a list of the function's own comes out."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterator

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_writes import Values, Write, writes_in
from jaxleak_magic.rewrite.states import Collected, State, starts_as_empty_list, state_at


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
    if not (_is_only_name(program, state, targets) if not state.path else _is_only_attribute(program, state, targets)):
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


def _is_only_name(program: Program, state: State, targets: set[ast.expr]) -> bool:
    if state.owner.kind != "module" or not starts_as_empty_list(program, state.owner, state.root):
        return False
    inside = [n for n in program.loads(state.owner, state.root) if program.enclosing_function(n) is not None]
    return targets.issuperset(inside)


def _is_only_attribute(program: Program, state: State, targets: set[ast.expr]) -> bool:
    """Whether an attribute of this name, of whatever object, is set to an empty list once and not used elsewhere."""
    name = state.path.rpartition(".")[2]
    if state.path != f".{name}":
        return False
    stores = 0
    for node in _named(program, name):
        if not isinstance(node, ast.Attribute):
            return False  # a class attribute, or the name in a string
        function = program.enclosing_function(node)
        if isinstance(node.ctx, ast.Load):
            if function is not None and node not in targets:
                return False
            continue
        stores += 1
        if not _begins_empty(program, node, function):
            return False
    return stores == 1


def _named(program: Program, name: str) -> Iterator[ast.AST]:
    """Attributes of a name, and what may be one: a variable of a class body, or the name in a string."""
    for node in program.text_of:
        match node:
            case ast.Attribute(attr=attribute) if attribute == name:
                yield node
            case ast.Constant(value=str() as text) if text == name:
                yield node
            case ast.Name(id=variable) if variable == name and program.scope_at[node].kind == "class":
                yield node
            case _:
                pass


def _begins_empty(program: Program, target: ast.Attribute, function: FunctionNode | None) -> bool:
    """Whether ``self.kept = []`` in ``__init__``, or ``net.kept = []`` at top level, sets the attribute."""
    if function is not None and getattr(function, "name", None) != "__init__":
        return False
    match program.parent[target]:
        case ast.Assign(targets=[_], value=ast.List(elts=[])):
            return True
        case ast.AnnAssign(value=ast.List(elts=[])):
            return True
        case _:
            return False
