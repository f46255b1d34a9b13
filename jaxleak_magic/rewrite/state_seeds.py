"""What has to come out of a function so that a write can be made outside of it."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_moves import carried_values
from jaxleak_magic.rewrite.state_writes import Values, Write, cannot_move
from jaxleak_magic.rewrite.states import State, state_at


def seeds_for(
    program: Program, write: Write, known: frozenset[str], stored_is_tracer: bool
) -> list[tuple[FunctionNode, State]]:
    """What has to come out of the function so that a write can be made outside.

    Args:
        program: all texts.
        write: the write.
        known: names that are known to hold a tracer.
        stored_is_tracer: whether the stored value is known to be a tracer itself.

    Raises:
        Refused: where it is not sure that it can come out.
    """
    function = write.function
    values = Values(program, function, known)
    state = None if write.is_call else state_at(program, write.target, function)
    assert write.value is not None
    tuple_target = not write.is_call and program.parent[write.target] is not write.statement
    if state is not None and (
        stored_is_tracer or tuple_target or isinstance(write.statement, ast.AugAssign) or values.is_array(write.value)
    ):
        _check_root(program, state)
        return [(function, state)]
    if isinstance(write.statement, ast.AugAssign) or tuple_target:
        raise cannot_move(program, write)
    return carried_values(program, write, values)


def _check_root(program: Program, state: State) -> None:
    if state.of_self:
        definition = state.owner.node
        assert isinstance(definition, ast.ClassDef)
        if any(not (isinstance(b, ast.Name) and b.id == "object") for b in definition.bases) or definition.keywords:
            raise Refused(
                f"`{definition.name}` has base classes, which may treat attributes in their own way. Return "
                f"`self{state.path}` from the method instead of writing it, and assign it outside of the transform."
            )
        if any(_makes_attributes_special(node) for node in definition.body):
            raise Refused(
                f"`{definition.name}` computes `{state.path[1:]}` or takes a hand in how attributes are set. Return "
                "the value from the method and keep it outside."
            )
        for node in definition.body:
            if isinstance(node, ast.FunctionDef) and node.name == state.path[1:]:
                raise Refused(f"`{state.path[1:]}` is a method or property of `{definition.name}`.")


def _makes_attributes_special(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in ("__setattr__", "__getattr__", "__getattribute__")
