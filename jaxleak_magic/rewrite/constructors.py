"""What a constructor or function does with one of its arguments, by its position or keyword."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.pytree_classes import constructor_fields


def is_nnx_module(program: Program, definition: ast.ClassDef) -> bool:
    """Whether a class is a module of flax.nnx, which treats an attribute as static unless ``nnx.data`` marks it."""
    return any(program.qualified(base) == "flax.nnx.Module" for base in definition.bases)


def stores_argument(definition: ast.ClassDef, place: int | str) -> bool:
    """Whether the constructor does nothing with the argument at a position or keyword but store it in an attribute."""
    init = next((s for s in definition.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
    parameter = parameter_for(init, place + 1 if isinstance(place, int) else place) if init is not None else None
    if init is None or parameter is None:
        return False
    loads = [n for n in ast.walk(init) if isinstance(n, ast.Name) and n.id == parameter]
    stores = [
        s
        for s in init.body
        if isinstance(s, ast.Assign)
        and len(s.targets) == 1
        and isinstance(s.targets[0], ast.Attribute)
        and s.value in loads
    ]
    return len(loads) == len(stores) == 1


def field_for_argument(definition: ast.ClassDef, place: int | str) -> str | None:
    """The attribute that simply takes the argument at this position or keyword of the class's constructor, or None."""
    fields = constructor_fields(definition)
    if fields is None:
        return None
    if isinstance(place, int):
        return fields[place][1] if place < len(fields) else None
    return next((attribute for parameter, attribute in fields if parameter == place), None)


def parameter_for(definition: ast.FunctionDef, place: int | str) -> str | None:
    """The parameter that takes an argument at a position or keyword, or None where it is gathered by ``*``."""
    positional = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args)]
    if isinstance(place, int):
        return positional[place] if place < len(positional) else None
    named = [a.arg for a in (*definition.args.args, *definition.args.kwonlyargs)]
    return place if place in named else None
