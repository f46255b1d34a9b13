"""An integer for a function whose arguments are differentiated: the float to pass in its place."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode


@dataclass(frozen=True)
class Element:
    """The one element of an array that the integer picks, passed instead of the integer.

    Attributes:
        parameter: name of the parameter that takes it.
        nodes: the expressions in the function that it replaces, all of the same text.
        text: their text (``RATES[species]``).
        is_float: whether the array is certainly one of floats.
    """

    parameter: str
    nodes: tuple[ast.expr, ...]
    text: str
    is_float: bool


def is_used_as_number(program: Program, function: FunctionNode, variable: str) -> bool:
    """Whether an integer is only added, subtracted, multiplied and divided, with a float in the end.

    A float of the same value then gives the same results, which it may not as an index, a power, or after ``//``.
    """
    loads = _loads(program, function, variable)
    return bool(loads) and all(_ends_as_float(program, function, load) for load in loads)


def picked_element(program: Program, function: FunctionNode, variable: str) -> Element | None:
    """What an integer picks where it is only the index of one array from outside of the function, or None."""
    loads = _loads(program, function, variable)
    parents = [program.parent[load] for load in loads]
    picked = [parent for parent in parents if isinstance(parent, ast.Subscript) and parent.slice in loads]
    text = program.text_of[function]
    texts = {text.of(each) for each in picked}
    if not picked or len(picked) != len(loads) or len(texts) != 1 or not isinstance(picked[0].value, ast.Name):
        return None
    array = picked[0].value
    owner = program.owner(array)
    site = program.only_site(owner, array.id) if owner is not None else None
    if owner is None or site is None or owner.is_inside(program.own_scope[function]):
        return None
    name = _singular(array.id)
    if name == array.id or any(name in scope.sites for scope in (*program.own_scope.values(), owner.module)):
        return None
    value = program.assigned_value(site)
    is_float = value is not None and any(
        isinstance(node, ast.Constant) and type(node.value) is float for node in ast.walk(value)
    )
    return Element(name, tuple(picked), texts.pop(), is_float)


def _loads(program: Program, function: FunctionNode, variable: str) -> list[ast.Name]:
    own = program.own_scope[function]
    owner = own.lookup(variable)
    if owner is None:
        return []
    return [load for load in program.loads(owner, variable) if program.scope_at[load].is_inside(own)]


def _ends_as_float(program: Program, function: FunctionNode, load: ast.expr) -> bool:
    node: ast.expr = load
    while True:
        parent = program.parent[node]
        match parent:
            case ast.BinOp(op=ast.Div()):
                return True
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult(), left=left, right=right):
                if _has_parameter(program, function, right if left is node else left):
                    return True
                node = parent
            case ast.UnaryOp(op=ast.USub()):
                node = parent
            case _:
                return False


def _has_parameter(program: Program, function: FunctionNode, node: ast.expr) -> bool:
    """Whether an operand is one of the function's own arguments, which are floats, or a sum or product with one."""
    match node:
        case ast.Name():
            own = program.own_scope[function]
            site = program.only_site(own, node.id)
            return program.owner(node) is own and site is not None and site.kind == "parameter"
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), left=left, right=right):
            return _has_parameter(program, function, left) or _has_parameter(program, function, right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _has_parameter(program, function, operand)
        case _:
            return False


def _singular(name: str) -> str:
    lower = name.lower()
    if lower.endswith("ies"):
        return lower[:-3] + "y"
    return lower[:-1] if lower.endswith("s") and not lower.endswith("ss") else lower
