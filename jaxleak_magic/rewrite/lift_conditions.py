"""What keeps a variable from being lifted, whatever calls the function."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.flow import Flow
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope

_MUTATORS = frozenset(
    (
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "add",
        "discard",
        "appendleft",
        "extendleft",
        "popleft",
        "rotate",
        "put",
    )
)


def check_calls(program: Program, flow: Flow) -> None:
    """Refuse a function that looks at its own names, or that takes any keyword where one is added."""
    function = flow.function
    for node, scope in program.scope_at.items():
        if isinstance(node, ast.Call) and scope.is_inside(program.own_scope[function]):
            name = program.qualified(node.func)
            if name in ("builtins.locals", "builtins.eval", "builtins.exec", "builtins.vars", "builtins.dir"):
                raise Refused(f"`{flow.name}` looks at its own names (line {node.lineno}). Pass its values by hand.")
    if function.args.kwarg is None:
        return
    for use in flow.uses:
        if isinstance(use.node, ast.Call) and any(
            keyword.arg is None or keyword.arg in flow.variables for keyword in use.node.keywords
        ):
            raise Refused(f"`{flow.name}` takes any keyword, one of which may be {listed(flow.variables)} already.")


def check_variable(program: Program, function: FunctionNode, name: str, variable: str, owner: Scope) -> None:
    """Refuse a variable that is written elsewhere, changed in place, or used where no tree sees it."""
    if variable.startswith("__"):
        raise Refused(f"`{variable}` may be a name that Python mangles. Pass it to `{name}` by hand.")
    if program.is_called_in_magic(variable):
        raise Refused(f"`{variable}` is used in a magic or shell line, which is not rewritten.")
    for node, scope in program.scope_at.items():
        if isinstance(node, ast.Nonlocal) and variable in node.names and scope.lookup(variable) is owner:
            raise Refused(
                f"`{variable}` is written through `nonlocal`. Return its new value from the function that writes it."
            )
    for load in program.loads(owner, variable):
        if _inside(program, load, function) and (how := _changed_in_place(program, load)):
            raise Refused(
                f"`{name}` changes `{variable}` in place ({how}). Return the new value from `{name}` and use that."
            )


def _inside(program: Program, node: ast.AST, function: FunctionNode) -> bool:
    return program.scope_at[node].is_inside(program.own_scope[function])


def _changed_in_place(program: Program, load: ast.Name) -> str | None:
    parent = program.parent[load]
    if isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is load:
        if not isinstance(parent.ctx, ast.Load):
            return f"line {load.lineno}"
        call = program.parent[parent]
        if (
            isinstance(parent, ast.Attribute)
            and parent.attr in _MUTATORS
            and isinstance(call, ast.Call)
            and call.func is parent
        ):
            return f"`{load.id}.{parent.attr}(...)`, line {load.lineno}"
    return None
