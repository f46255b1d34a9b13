"""A value that becomes a pytree child comes out of a map or scan with one more axis: what its uses then mean."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.call_sites import rows_of
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.insertions import wrap
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused

_AXIS_MAKERS = ("vmap", "scan", "map", "pmap", "shard_map", "while_loop", "fori_loop")
_OPERATORS = (ast.BinOp, ast.UnaryOp)


def map_uses(case: Case, draft: Draft, field: tuple[str, str]) -> None:
    """Map each use of the new child that would mix it with other arrays over the rows.

    Args:
        case: the leak; its transforms and the line where the value got out say whether there are rows.
        draft: takes the edits.
        field: (class, attribute) of the child.

    Raises:
        Refused: where a use might take the child for the value of one row.
    """
    makers = [level.transform for level in case.leak.trace_stack if level.transform.rpartition(".")[2] in _AXIS_MAKERS]
    if not makers:
        return
    program, target = case.program, _stacked_name(case)
    owner = program.owner(target) if target is not None else None
    if target is None or owner is None or program.only_site(owner, target.id) is None:
        raise _refused(field, makers[-1])
    for load in program.loads(owner, target.id):
        if _is_mapped_again(program, load):
            continue
        row = _row_expression(program, load)
        if row is None or not _is_of_one_object(program, row, load):
            raise _refused(field, makers[-1])
        if not any(isinstance(node, ast.Attribute) and node.attr == field[1] for node in ast.walk(row)):
            continue
        if isinstance(row, ast.Attribute) and isinstance(program.parent[row], ast.Expr):
            continue
        vmap = program.spelling("jax.vmap", row)
        if vmap is None or not isinstance(row, _OPERATORS):
            raise _refused(field, makers[-1])
        draft.rows += [n for n in ast.walk(row) if isinstance(n, ast.Name)]
        draft.add(program.text_of[row], wrap(program.text_of[row], row, f"{vmap}(lambda {load.id}: ", f")({load.id})"))


def _refused(field: tuple[str, str], maker: str) -> Refused:
    return Refused(
        f"`{field[0]}.{field[1]}` would come out of `{maker}` with one more axis, as the other arrays of the "
        f"object do. Return it among the children, and index or broadcast it (`[:, None]`) where it is used."
    )


def _stacked_name(case: Case) -> ast.Name | None:
    """The name to which the line where the value got out assigns the stacked object."""
    place = case.leak.escaped
    if place is None:
        return None
    for node, text in case.program.text_of.items():
        same = (text.source.cell, text.source.file) == (place.cell, place.file)
        if not same or not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        if not node.lineno <= place.line <= (node.end_lineno or node.lineno):
            continue
        match node.targets[0], node.value:
            case ast.Name() as name, ast.Call():
                return name
            case ast.Name() as name, ast.Subscript(value=ast.Call(func=func), slice=ast.Constant(value=1)):
                return name if case.program.qualified(func) == "jax.lax.scan" else None
            case ast.Tuple(elts=[_, ast.Name() as name]), ast.Call(func=func):
                return name if case.program.qualified(func) == "jax.lax.scan" else None
            case _:
                return None
    return None


def _is_mapped_again(program: Program, load: ast.Name) -> bool:
    """Whether a use only shows the object, or hands it to a function that is mapped over it."""
    call = program.parent[load]
    if isinstance(call, ast.Expr):
        return True
    if not isinstance(call, ast.Call) or load not in call.args or not isinstance(call.func, ast.Call):
        return False
    return any(row.axes for row in rows_of(program.qualified(call.func.func) or ""))


def _row_expression(program: Program, load: ast.Name) -> ast.expr | None:
    """The widest expression of operators around an attribute of the object; None for any other use."""
    attribute = program.parent[load]
    if not isinstance(attribute, ast.Attribute) or not isinstance(attribute.ctx, ast.Load):
        return None
    expression: ast.expr = attribute
    while isinstance(parent := program.parent[expression], _OPERATORS):
        expression = parent
    return expression


def _is_of_one_object(program: Program, row: ast.expr, load: ast.Name) -> bool:
    """Whether an expression is made of attributes of one object, numbers and operators."""
    for node in ast.walk(row):
        match node:
            case ast.Name():
                if node.id != load.id or not isinstance(program.parent[node], ast.Attribute):
                    return False
            case ast.BinOp(op=ast.MatMult()):
                return False
            case ast.BinOp() | ast.UnaryOp() | ast.Attribute() | ast.expr_context() | ast.operator() | ast.unaryop():
                continue
            case ast.Constant(value=int() | float() | complex()):
                continue
            case _:
                return False
    return True
