"""Values that sit in the aux data of a pytree without a function in between: their fields become children."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.pytree_classes import (
    class_named,
    field_argument,
    is_registered,
    is_unflatten_call,
    move_to_children,
    register,
)
from jaxleak_magic.rewrite.refusing import Refused

_AXIS_MAKERS = ("vmap", "scan", "map", "pmap", "shard_map", "while_loop", "fori_loop")


def children_of_case(case: Case) -> Draft | None:
    """Make each field on the leak's path a pytree child.

    Returns:
        The draft; None where the leak is not of this kind.

    Raises:
        Refused: where a class or a use of its objects is not understood.
    """
    facts, program = case.leak.facts, case.program
    if not facts.in_aux_data or not facts.attributes or facts.captured:
        return None
    definitions = [(class_named(program, fact.name), fact.attribute) for fact in facts.attributes]
    if any(definition is None for definition, _ in definitions):
        return None
    draft = Draft()
    for definition, attribute in reversed(definitions):
        assert definition is not None
        if is_registered(program, definition):
            edits = move_to_children(program, definition, attribute)
            if edits:
                check_other_objects(program, definition, attribute)
            draft.children += [(definition.name, attribute)] if edits else []
        elif draft.children:
            edits = register(program, definition)
            draft.registered.append(definition)
        else:
            return None
        for node, edit in edits:
            draft.add(program.text_of[node], [edit])
    if not draft.children:
        return None
    check_new_axis(case, draft.children[-1])
    draft.new_parameters |= {"children", "aux", "_"}
    return draft


def check_other_objects(program: Program, definition: ast.ClassDef, attribute: str) -> None:
    """Refuse where an object of the class may hold something in the field that is no array."""
    made: list[ast.Call] = []
    for load in program.loads(program.scope_at[definition], definition.name):
        call = program.parent[load]
        inside = program.scope_at[load].is_inside(program.own_scope[definition])
        if isinstance(call, ast.Call) and call.func is load and not inside and not is_unflatten_call(program, call):
            made.append(call)
    for call in made[1:] if len(made) > 1 else []:
        value = field_argument(definition, call, attribute)
        name = program.qualified(value.func) if isinstance(value, ast.Call) else None
        is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float, complex)
        if not is_number and not (name or "").startswith("jax.numpy."):
            raise Refused(
                f"Another `{definition.name}` is made on line {call.lineno}, and what its `{attribute}` holds is not "
                f"known. Where it is always an array, return `{attribute}` among the children."
            )


def check_new_axis(case: Case, field: tuple[str, str]) -> None:
    """A child comes out of a map or scan with one more axis; refuse where a use might take it for the value itself."""
    makers = [level.transform for level in case.leak.trace_stack if level.transform.rpartition(".")[2] in _AXIS_MAKERS]
    if not makers:
        return
    place = case.leak.escaped
    if place is None or not _only_mapped_again(case.program, place.line, case):
        raise Refused(
            f"`{field[0]}.{field[1]}` would come out of `{makers[-1]}` with one more axis, as the other arrays of the "
            f"object do. Return it among the children, and index or broadcast it (`[:, None]`) where it is used."
        )


def _only_mapped_again(program: Program, line: int, case: Case) -> bool:
    """Whether the object made on a line is only read in functions that are mapped over it."""
    from jaxleak_magic.rewrite.call_sites import rows_of

    place = case.leak.escaped
    for node, text in program.text_of.items():
        same = place is not None and (text.source.cell, text.source.file) == (place.cell, place.file)
        if not same or not isinstance(node, ast.Assign) or not node.lineno <= line <= (node.end_lineno or line):
            continue
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return False
        target = node.targets[0]
        owner = program.owner(target)
        if owner is None or program.only_site(owner, target.id) is None:
            return False
        for load in program.loads(owner, target.id):
            call = program.parent[load]
            if isinstance(call, ast.Expr):
                continue
            if not isinstance(call, ast.Call) or load not in call.args or not isinstance(call.func, ast.Call):
                return False
            if not any(row.axes for row in rows_of(program.qualified(call.func.func) or "")):
                return False
        return True
    return False
