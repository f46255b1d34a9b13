"""How a value is written at a place: by its own name, by the argument it came from, or by returning it first."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, replace

from jaxleak_magic.rewrite.call_sites import rows_of
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope


@dataclass(frozen=True)
class Return:
    """A value that a function has to return as well, to the one statement that calls it, where the value is needed."""

    function: ast.FunctionDef
    variable: str
    statement: ast.Assign | ast.Expr


@dataclass(frozen=True)
class Reached:
    """How a value is written at a place.

    Attributes:
        text: what to write.
        carriers: functions around the place that would close over the value.
        returned: what has to be returned first, or None.
        axis: the axis along which the value stands for many, where its function was mapped; else None.
    """

    text: str
    carriers: tuple[FunctionNode, ...] = ()
    returned: Return | None = None
    axis: int | None = None


@dataclass(frozen=True)
class _OnlyCall:
    """The one call of a function, and the ``vmap`` through which it goes."""

    call: ast.Call
    vmap: ast.Call | None


@dataclass(frozen=True)
class Reach:
    """Finds how values of one function are written elsewhere.

    Args:
        program: all texts.
        function: the function that is being lifted.
        name: what the user calls it.
    """

    program: Program
    function: FunctionNode
    name: str

    def at(self, variable: str, owner: Scope, place: ast.expr) -> Reached:
        """How a variable of a scope is written at a place.

        Raises:
            Refused: where its value is not certainly at hand there.
        """
        return self._at(variable, owner, place, 6)

    def _at(self, variable: str, owner: Scope, place: ast.expr, depth: int) -> Reached:
        scope = self.program.scope_at[place]
        if scope.lookup(variable) is owner and (owner.kind == "function" or self._is_constant(variable, owner)):
            return Reached(variable, self._carriers(variable, owner, scope))
        argument, axis = self._argument_of(variable, owner)
        if isinstance(argument, ast.Name) and depth:
            source = self.program.scope_at[argument].lookup(argument.id)
            if source is not None and self._follows(argument, place) and self._is_constant(argument.id, source):
                found = self._at(argument.id, source, place, depth - 1)
                if axis is None or found.axis is None:
                    return replace(found, axis=found.axis if axis is None else axis)
        return self._returned(variable, owner, place)

    def _follows(self, argument: ast.Name, place: ast.expr) -> bool:
        """Whether a place is reached after the call with this argument, in the same run of the function around it."""
        calling, at = self.program.scope_at[argument].function(), self.program.scope_at[place].function()
        if calling is None:
            return self._comes_before(self._statement(argument), place)
        if at is None:
            return True  # decided by the call of the function around it
        return at.is_inside(calling) and self._comes_before(self._statement(argument), place)

    def _statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.program.parent[node]
        return node

    def is_called_before(self, scope: Scope, place: ast.expr) -> bool:
        """Whether a function's one call is a statement before a place, of the module or of the function around it."""
        found = self._only_call(scope.node) if isinstance(scope.node, ast.FunctionDef) else None
        return found is not None and self._runs_before(self._statement(found.call), place)

    def _runs_before(self, statement: ast.stmt, place: ast.expr) -> bool:
        """Whether a statement of the module or of the function around a place has run when the place is reached."""
        level = self.program.scope_at[place].function()
        body = self.program.parent[statement]
        same = isinstance(body, ast.Module) if level is None else body is level.node
        return same and self._comes_before(statement, place)

    # -- in scope ---------------------------------------------------------------------------------------------------

    def _carriers(self, variable: str, owner: Scope, scope: Scope) -> tuple[FunctionNode, ...]:
        found: list[FunctionNode] = []
        own = self.program.own_scope[self.function]
        between: Scope | None = scope
        while between is not None and between is not owner and owner.kind != "module":
            if between.kind == "class":
                raise Refused(f"`{self.name}` is used in a class body. Pass `{variable}` there by hand.")
            if isinstance(between.node, FunctionNode) and not between.is_inside(own):
                found.append(between.node)
            between = between.parent
        return tuple(found)

    def _is_constant(self, name: str, owner: Scope) -> bool:
        site = self.program.only_site(owner, name)
        return site is not None and site.kind in ("parameter", "assign") and not self._in_loop(site.node, owner)

    def _in_loop(self, node: ast.AST | None, owner: Scope) -> bool:
        while node is not None and node is not owner.node:
            if isinstance(node, ast.For | ast.AsyncFor | ast.While):
                return True
            node = self.program.parent.get(node)
        return False

    # -- from the argument ------------------------------------------------------------------------------------------

    def _only_call(self, function: ast.FunctionDef) -> _OnlyCall | None:
        """The one call of a function, directly or through ``jit`` and one ``vmap``; None where there are other uses."""
        owner = self.program.scope_at[function].lookup(function.name)
        if owner is None or self.program.only_site(owner, function.name) is None:
            return None
        loads = self.program.loads(owner, function.name)
        if len(loads) != 1 or self.program.is_called_in_magic(function.name):
            return None
        for decorator in function.decorator_list:
            expression = decorator.func if isinstance(decorator, ast.Call) else decorator
            if not self._is_jit(expression):
                return None
        value: ast.expr = loads[0]
        parent = self.program.parent[value]
        vmap: ast.Call | None = None
        while isinstance(parent, ast.Call) and parent.func is not value:
            if parent.args[:1] != [value]:
                return None
            if vmap is None and self.program.qualified(parent.func) == "jax.vmap":
                vmap = parent
            elif not self._is_jit(parent.func):
                return None
            value, parent = parent, self.program.parent[parent]
        return _OnlyCall(parent, vmap) if isinstance(parent, ast.Call) else None

    def _is_jit(self, expression: ast.expr) -> bool:
        name = self.program.qualified(expression)
        return name in ("jax.jit", "equinox.filter_jit") and bool(rows_of(name))

    def _argument_of(self, variable: str, owner: Scope) -> tuple[ast.expr | None, int | None]:
        """The expression given for a parameter that is never assigned, where its function is called once; its axis."""
        function = owner.node
        site = self.program.only_site(owner, variable)
        if not isinstance(function, ast.FunctionDef) or site is None or site.kind != "parameter":
            return None, None
        found = self._only_call(function)
        if found is None:
            return None, None
        call = found.call
        for keyword in call.keywords:
            if keyword.arg is None or found.vmap is not None:
                return None, None
            if keyword.arg == variable:
                return keyword.value, None
        positional = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if variable not in positional or any(isinstance(a, ast.Starred) for a in call.args):
            return None, None
        number = positional.index(variable)
        if number >= len(call.args):
            return None, None
        if found.vmap is None:
            return call.args[number], None
        known, axis = _axis(found.vmap, number)
        return (call.args[number], axis) if known else (None, None)

    # -- by returning it --------------------------------------------------------------------------------------------

    def _returned(self, variable: str, owner: Scope, place: ast.expr) -> Reached:
        function = owner.node
        if not isinstance(function, ast.FunctionDef):
            raise self._not_visible(variable, place)
        found = self._only_call(function)
        if found is None:
            raise self._not_visible(variable, place)
        statement = self.program.parent[found.call]
        axis: int | None = None
        if found.vmap is not None:
            if any(k.arg in (None, "out_axes") for k in found.vmap.keywords) or len(found.vmap.args) > 2:
                raise self._not_visible(variable, place)
            axis = 0
        if not isinstance(statement, ast.Assign | ast.Expr) or not self._runs_before(statement, place):
            raise self._not_visible(variable, place)
        level = self.program.scope_at[found.call]
        if not self._is_set_once(function, variable, owner):
            raise self._not_visible(variable, place)
        result = self._only_return(function)
        if result is None:
            raise self._not_visible(variable, place)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            bound = _matching_target(result, statement.targets[0], variable)
            if bound is not None and self.program.only_site(level, bound) is not None:
                return Reached(bound, axis=axis)
        if variable in level.sites or level.lookup(variable) is not None or hasattr(builtins, variable):
            raise self._not_visible(variable, place)
        if isinstance(statement, ast.Assign) and not (
            len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name | ast.Tuple)
        ):
            raise self._not_visible(variable, place)
        return Reached(variable, (), Return(function, variable, statement), axis)

    def _comes_before(self, statement: ast.stmt, place: ast.expr) -> bool:
        one, other = self.program.text_of[statement], self.program.text_of[place]
        if one is other:
            return one.stop(statement) <= other.start(place)
        in_order = self.program.texts
        return in_order.index(one) < in_order.index(other)

    def _is_set_once(self, function: ast.FunctionDef, variable: str, owner: Scope) -> bool:
        site = self.program.only_site(owner, variable)
        if site is None:
            return False
        if site.kind == "parameter":
            return True
        statement = self.program.parent[site.node]
        while isinstance(statement, ast.Tuple | ast.List):
            statement = self.program.parent[statement]
        return site.kind == "assign" and statement in function.body

    def _only_return(self, function: ast.FunctionDef) -> ast.expr | None:
        own = self.program.own_scope[function]
        returns = [
            node
            for node, scope in self.program.scope_at.items()
            if scope is own and isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)
        ]
        last = function.body[-1]
        if len(returns) != 1 or returns[0] is not last or not isinstance(last, ast.Return):
            return None
        return last.value

    def _not_visible(self, variable: str, place: ast.expr) -> Refused:
        return Refused(
            f"`{variable}` is not visible where `{self.name}` is called (line {place.lineno}). "
            f"Return `{variable}` from the function that computes it, and pass it there as an argument."
        )


def _matching_target(result: ast.expr, target: ast.expr, variable: str) -> str | None:
    """The name that a call's result is unpacked to where the function returns the variable already."""
    match result, target:
        case ast.Name(id=returned), ast.Name(id=bound) if returned == variable:
            return bound
        case ast.Tuple(elts=results), ast.Tuple(elts=targets) if len(results) == len(targets):
            for one, other in zip(results, targets, strict=True):
                if isinstance(one, ast.Name) and one.id == variable and isinstance(other, ast.Name):
                    return other.id
            return None
        case _:
            return None


def _axis(vmap: ast.Call, number: int) -> tuple[bool, int | None]:
    """(whether it is known, the axis) along which a ``vmap`` maps an argument."""
    given = next((k.value for k in vmap.keywords if k.arg == "in_axes"), None)
    if given is None and len(vmap.args) > 1:
        given = vmap.args[1]
    if isinstance(given, ast.Tuple | ast.List) and number < len(given.elts):
        given = given.elts[number]
    match given:
        case None:
            return True, 0
        case ast.Constant(value=None):
            return True, None
        case ast.Constant(value=int(axis)):
            return True, axis
        case _:
            return False, None
