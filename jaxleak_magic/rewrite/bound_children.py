"""A function that a factory returns bound is kept in static fields still: those become pytree children too."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxleak_magic.diagnose.model import ClassFact
from jaxleak_magic.rewrite.constructors import is_nnx_module
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.pytree_classes import (
    class_named,
    constructor_calls,
    field_argument,
    is_registered,
    move_to_children,
)
from jaxleak_magic.rewrite.refusing import Refused


def make_fields_children(program: Program, fields: Sequence[ClassFact], draft: Draft) -> None:
    """Make the fields on the leak's path children of their classes, where a bound function reaches them by a call.

    Args:
        program: all texts.
        fields: the fields from the value outwards.
        draft: a lift that bound functions; takes the edits.

    Raises:
        Refused: where a field would go on to keep the function out of JAX's sight.
    """
    for fact in reversed(fields):
        definition = class_named(program, fact.name)
        if definition is None or (fact.name, fact.attribute) in draft.children or is_nnx_module(program, definition):
            continue  # nnx marks what is data where it is stored
        if not is_registered(program, definition):
            raise Refused(
                f"`{fact.name}` is no pytree, so JAX does not see what its `{fact.attribute}` holds. Register it as "
                "one, with that field among the children."
            )
        edits = move_to_children(program, definition, fact.attribute)
        if not edits:
            continue
        _check_all_bound(program, definition, fact.attribute, draft)
        draft.children.append((fact.name, fact.attribute))
        draft.new_parameters |= {"children", "aux", "_"}
        for node, edit in edits:
            draft.add(program.text_of[node], [edit])


def _check_all_bound(program: Program, definition: ast.ClassDef, attribute: str, draft: Draft) -> None:
    """Every object of the class must get what a factory returns that binds its function now."""
    factories = {program.enclosing_function(function) for function in draft.lifted}
    for call in constructor_calls(program, definition):
        value = field_argument(definition, call, attribute)
        made_by = program.definition(value.func) if isinstance(value, ast.Call) else None
        if made_by is None or made_by not in factories:
            raise Refused(
                f"It is not sure what `{attribute}` of the `{definition.name}` on line {call.lineno} holds. Bind "
                f"it with `jax.tree_util.Partial`, then make `{attribute}` a pytree child."
            )
