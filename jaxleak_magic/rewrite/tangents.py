"""Whether anything is differentiated with respect to a value, as far as a leak's facts and the texts show."""

from __future__ import annotations

import ast

from jaxleak_magic.diagnose.model import Leak, Place
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope

_DIFFERENTIATING = ("grad", "jvp", "vjp", "linearize", "jacfwd", "jacrev", "hessian", "value_and_grad")
_GRADS = ("jax.grad", "jax.value_and_grad", "jax.jacfwd", "jax.jacrev", "jax.hessian")


def has_no_tangent(program: Program, leak: Leak, owner: Scope, variable: str, dtype: str | None) -> bool:
    """Whether a value certainly has no tangent in the run that leaked.

    Args:
        program: all texts.
        leak: the leak with its facts.
        owner: the scope that binds the value's name.
        variable: the name.
        dtype: the value's dtype, or None where it is not known.

    Returns:
        True for integers; where no transform around the value differentiates; and where each that does is a ``grad``
        of the function around the name, with respect to other arguments than those that the value is computed from.
    """
    if dtype is not None and dtype.startswith(("int", "uint", "bool", "key")):
        return True
    if not leak.facts.differentiated:
        return True
    levels = [x for x in leak.trace_stack if x.transform.rpartition(".")[2].removeprefix("filter_") in _DIFFERENTIATING]
    if not levels or not isinstance(owner.node, ast.FunctionDef):
        return False
    for level in levels:
        differentiated = _differentiated_arguments(program, level.place, owner.node)
        if differentiated is None or not _is_apart_from(program, owner, variable, differentiated, 8):
            return False
    return True


def _differentiated_arguments(program: Program, place: Place | None, function: FunctionNode) -> set[str] | None:
    """Parameters with respect to which the one ``grad`` call at a place differentiates a function, or None."""
    if place is None:
        return None
    calls = [
        node
        for node, text in program.text_of.items()
        if isinstance(node, ast.Call)
        and (text.source.cell, text.source.file) == (place.cell, place.file)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
        and program.qualified(node.func) in _GRADS
    ]
    if len(calls) != 1 or not calls[0].args or program.definition(calls[0].args[0]) is not function:
        return None
    given = next((k.value for k in calls[0].keywords if k.arg == "argnums"), None)
    given = calls[0].args[1] if given is None and len(calls[0].args) > 1 else given
    items = [ast.Constant(0)] if given is None else given.elts if isinstance(given, ast.Tuple) else [given]
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    found: set[str] = set()
    for item in items:
        if not isinstance(item, ast.Constant) or type(item.value) is not int or not 0 <= item.value < len(names):
            return None
        found.add(names[item.value])
    return found


def _is_apart_from(program: Program, owner: Scope, variable: str, arguments: set[str], depth: int) -> bool:
    """Whether a name's value is computed without any of these arguments of its function."""
    site = program.only_site(owner, variable)
    if site is None or not depth:
        return False
    if site.kind == "parameter":
        return variable not in arguments
    value = program.assigned_value(site)
    if value is None:
        return False
    for node in ast.walk(value):
        if not isinstance(node, ast.Name):
            continue
        home = program.owner(node)
        if home is owner and not _is_apart_from(program, owner, node.id, arguments, depth - 1):
            return False
        if home is not None and home is not owner and home.kind != "module":
            return False
    return True
