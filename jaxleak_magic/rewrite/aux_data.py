"""Values that sit in the aux data of a pytree without a function in between: their fields become children."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.pytree_classes import (
    class_named,
    constructor_calls,
    field_argument,
    is_registered,
    move_to_children,
    register,
)
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rows import map_uses


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
    map_uses(case, draft, draft.children[-1])
    draft.new_parameters |= {"children", "aux", "_"}
    return draft


def check_other_objects(program: Program, definition: ast.ClassDef, attribute: str) -> None:
    """Refuse where an object of the class may hold something in the field that is no array."""
    made = list(constructor_calls(program, definition))
    for call in made[1:] if len(made) > 1 else []:
        value = field_argument(definition, call, attribute)
        name = program.qualified(value.func) if isinstance(value, ast.Call) else None
        is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float, complex)
        if not is_number and not (name or "").startswith("jax.numpy."):
            raise Refused(
                f"Another `{definition.name}` is made on line {call.lineno}, and what its `{attribute}` holds is not "
                f"known. Where it is always an array, return `{attribute}` among the children."
            )
