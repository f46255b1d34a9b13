"""Follows a function from its definition to everything that calls it, and says how one more value gets there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from jaxleak_magic.rewrite.call_sites import Row, rows_of
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope


class Refused(Exception):
    """No certain rewrite; the message says why and what to do by hand, in one or two plain sentences."""


@dataclass(frozen=True)
class Use:
    """What has to be done at one place so that the lifted values reach the function.

    Attributes:
        kind: ``call``: the call hands the values on; ``tuple`` / ``slot``: its ``args`` does; ``axes``: a vmap gets
            entries for them; ``bind``: the expression is bound with ``jax.tree_util.Partial``; ``field``: the same for
            the field of an object.
        node: the call, or the expression to bind.
        row: the table's row, where there is one.
        direct: whether the call calls the function itself or what a wrapper made of it, not a consumer.
        keywords: whether a direct call names its arguments, so that the values must be named too.
    """

    kind: Literal["call", "tuple", "slot", "axes", "bind", "field"]
    node: ast.expr
    row: Row | None = None
    direct: bool = False
    keywords: bool = False
    field_of: ast.ClassDef | None = None
    field_name: str | None = None


@dataclass(frozen=True)
class Wrapping:
    """What wrappers around the function allow: the rows passed through, outermost last."""

    rows: tuple[tuple[Row, ast.Call | None], ...] = ()
    arguments_before: int = 0

    def through(self, row: Row, call: ast.Call | None) -> Wrapping:
        """The same with one more wrapper."""
        return replace(self, rows=(*self.rows, (row, call)))


@dataclass
class Flow:
    """The uses of one function.

    Args:
        program: all texts.
        function: the function to follow.
        variables: the names that must reach it.
        owners: the scope that binds each of them.
        fields: (class, attribute) pairs that may hold the function once its field is a pytree child.
    """

    program: Program
    function: FunctionNode
    variables: Sequence[str]
    owners: dict[str, Scope]
    fields: frozenset[tuple[str, str]] = frozenset()
    uses: list[Use] = field(default_factory=list)
    carriers: list[FunctionNode] = field(default_factory=list)
    _seen: set[ast.AST] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The function in the user's words."""
        return function_name(self.program, self.function)

    def run(self) -> None:
        """Fill ``uses`` and ``carriers``.

        Raises:
            Refused: where a use is not understood.
        """
        if isinstance(self.function, ast.Lambda):
            self._value(self.function, Wrapping())
            return
        wrapping = Wrapping()
        for decorator in reversed(self.function.decorator_list):
            wrapping = self._decorator(decorator, wrapping)
        scope = self.program.scope_at[self.function]
        if scope.kind == "class":
            raise Refused(f"`{self.name}` is a method. Give it the value as an argument by hand.")
        self._name(scope, self.function.name, wrapping)

    # -- names ------------------------------------------------------------------------------------------------------

    def _name(self, scope: Scope, name: str, wrapping: Wrapping) -> None:
        owner = scope.lookup(name)
        if owner is None or self.program.only_site(owner, name) is None:
            raise Refused(
                f"`{name}` is bound in more than one place, so it is not sure which function is called. "
                f"Rename one of them, then pass {self._values()} as an argument."
            )
        if self.program.is_called_in_magic(name):
            raise Refused(f"`{name}` is used in a magic or shell line, which is not rewritten.")
        for load in self.program.loads(owner, name):
            self._value(load, wrapping)

    def _decorator(self, decorator: ast.expr, wrapping: Wrapping) -> Wrapping:
        name = self.program.qualified(decorator)
        call: ast.Call | None = None
        if isinstance(decorator, ast.Call):
            call = decorator
            name = self.program.qualified(decorator.func)
            if name == "functools.partial" and decorator.args:
                if len(decorator.args) > 1:
                    name = None
                else:
                    name = self.program.qualified(decorator.args[0])
            elif name == "functools.wraps":
                return wrapping
            elif decorator.args:
                name = None
        rows = [row for row in rows_of(name or "") if row.way == "calls" and row.position == 0]
        if not rows:
            raise Refused(
                f"`{self.name}` is decorated with `{self._text(decorator)}`, which is not known well enough. "
                f"Give `{self.name}` the parameter {self._values()} by hand and pass it at each call."
            )
        self._check_keywords(rows[0], call)
        return wrapping.through(rows[0], call)

    # -- values -----------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, wrapping: Wrapping) -> None:
        """Decide what to do where ``node`` evaluates to the function (or to what wrappers made of it)."""
        if node in self._seen:
            return
        self._seen.add(node)
        parent = self.program.parent[node]
        match parent:
            case ast.Call(func=func) if func is node:
                self._called(parent, wrapping)
            case ast.Call():
                self._argument(parent, node, self._position(parent, node), wrapping)
            case ast.keyword():
                call = self.program.parent[parent]
                if not isinstance(call, ast.Call) or parent.arg is None:
                    raise self._unknown(node)
                self._argument(call, node, parent.arg, wrapping)
            case ast.Assign(targets=[ast.Name() as target]):
                self._name(self.program.scope_at[target], target.id, wrapping)
            case ast.NamedExpr() if parent.value is node:
                raise self._unknown(node)
            case ast.Return():
                self._returned(node)
            case ast.Lambda() if parent.body is node:
                self._returned(node)
            case ast.Expr():
                pass
            case _:
                raise self._unknown(node)

    def _called(self, call: ast.Call, wrapping: Wrapping) -> None:
        self._reach(call)
        if any(isinstance(a, ast.Starred) for a in call.args) and any(row.axes for row, _ in wrapping.rows):
            raise Refused(f"`{self.name}` is mapped and called with `*` arguments. Pass {self._values()} by hand.")
        keywords = bool(call.keywords)
        if keywords and any(not row.keywords_pass for row, _ in wrapping.rows):
            raise Refused(
                f"A mapped `{self.name}` is called with keyword arguments. "
                f"Call it by position, then pass {self._values()} with `None` in `in_axes`."
            )
        for row, wrapper in wrapping.rows:
            if row.axes:
                if wrapper is None:
                    raise Refused(f"`{self.name}` is decorated with vmap. Pass {self._values()} by hand, `in_axes` None.")
                self.uses.append(Use("axes", wrapper, row))
        self.uses.append(Use("call", call, wrapping.rows[-1][0] if wrapping.rows else None, True, keywords))

    def _position(self, call: ast.Call, node: ast.expr) -> int | str:
        if any(isinstance(a, ast.Starred) for a in call.args[: call.args.index(node)]):
            raise self._unknown(node)
        return call.args.index(node)

    def _argument(self, call: ast.Call, node: ast.expr, place: int | str, wrapping: Wrapping) -> None:
        name = self.program.qualified(call.func)
        rows = rows_of(name) if name else ()
        row = next((r for r in rows if place in (r.position, r.keyword)), None)
        if row is None:
            self._given_to_users_code(call, node, place)
            return
        self._check_keywords(row, call)
        if row.way == "calls":
            self._value(call, wrapping.through(row, call))
        elif row.way == "bind":
            self._reach(node)
            self.uses.append(Use("bind", node, row))
        elif wrapping.rows and any(r.axes for r, _ in wrapping.rows):
            raise Refused(f"A mapped `{self.name}` is given to `{self._text(call.func)}`. Pass {self._values()} by hand.")
        elif row.way == "operands":
            self._operands(call, row)
        elif row.way == "args_tuple":
            self._reach(call)
            self.uses.append(Use("tuple", call, row))
        elif row.way == "solver":
            self._solver(call, row)
        else:
            raise self._unknown(node)

    def _operands(self, call: ast.Call, row: Row) -> None:
        self._reach(call)
        if len(call.args) < row.operands_from or any(
            isinstance(a, ast.Starred) for a in call.args[: row.operands_from]
        ):
            raise Refused(
                f"`{self._text(call.func)}` is called in a form that leaves no safe place for one more operand. "
                f"Pass {self._values()} to it by hand and take it as a parameter of `{self.name}`."
            )
        self.uses.append(Use("call", call, row))

    def _check_keywords(self, row: Row, call: ast.Call | None) -> None:
        if call is None:
            return
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in row.refuse_with:
                raise Refused(
                    f"`{self._text(call.func)}` is called with `{keyword.arg or '**'}`, with which no argument is added "
                    f"automatically. Pass {self._values()} as an argument of `{self.name}` by hand."
                )
            if keyword.arg in row.numbers and not _counts_from_the_front(keyword.value):
                raise Refused(
                    f"`{keyword.arg}` of `{self._text(call.func)}` is not made of plain numbers from 0 on, and one more "
                    f"argument could change what it means. Pass {self._values()} by hand."
                )
        first_option = row.position + 1
        for extra in call.args[first_option:] if row.way == "calls" else []:
            # grad(f, 0): the option by position
            if not _counts_from_the_front(extra) and not row.axes:
                raise Refused(f"`{self._text(call)}` has options by position. Write them as keywords first.")

    # -- objects ----------------------------------------------------------------------------------------------------

    def _solver(self, call: ast.Call, row: Row) -> None:
        """Every method call on the solver that this call makes hands its further arguments to the function."""
        parent = self.program.parent[call]
        holders: list[ast.expr] = []
        if isinstance(parent, ast.Attribute):
            holders.append(call)
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            target = parent.targets[0]
            owner = self.program.scope_at[target].lookup(target.id)
            if owner is None or self.program.only_site(owner, target.id) is None:
                raise Refused(f"`{target.id}` is bound in more than one place. Pass {self._values()} to its `run` by hand.")
            holders.extend(self.program.loads(owner, target.id))
        else:
            raise Refused(
                f"The solver made by `{self._text(call.func)}` is kept where its calls cannot all be seen. "
                f"Make {self._values()} a parameter of `{self.name}` and pass it to each `run` and `update`."
            )
        counts = dict(row.methods)
        for holder in holders:
            attribute = self.program.parent[holder]
            method = self.program.parent.get(attribute)
            if (
                not isinstance(attribute, ast.Attribute)
                or not isinstance(method, ast.Call)
                or method.func is not attribute
                or attribute.attr not in counts
            ):
                raise Refused(
                    f"`{self._text(attribute if isinstance(attribute, ast.Attribute) else holder)}` is used in a way in "
                    f"which {self._values()} cannot be passed automatically. Pass it to each call of the solver by hand."
                )
            self._operands(method, replace(row, operands_from=counts[attribute.attr]))

    def _returned(self, node: ast.expr) -> None:
        raise Refused(
            f"`{self.name}` is returned. Return `jax.tree_util.Partial({self.name}, ...)` with {self._values()} bound, or "
            f"return {self._values()} too and pass it at each call."
        )

    def _given_to_users_code(self, call: ast.Call, node: ast.expr, place: int | str) -> None:
        definition = self.program.definition(call.func)
        if isinstance(definition, ast.ClassDef):
            attribute = field_for_argument(definition, place)
            if attribute is not None and (definition.name, attribute) in self.fields:
                self._reach(node)
                self.uses.append(Use("field", node, field_of=definition, field_name=attribute))
                return
            raise Refused(
                f"`{self.name}` is kept in an object of class `{definition.name}`. Keep {self._values()} in the object too, "
                f"or store `jax.tree_util.Partial({self.name}, ...)` in a field that is a pytree child."
            )
        raise Refused(
            f"`{self.name}` is given to `{self._text(call.func)}`, and how that calls it is not known. "
            f"Pass {self._values()} through it by hand."
        )

    # -- scopes -----------------------------------------------------------------------------------------------------

    def _reach(self, node: ast.expr) -> None:
        """Make sure that the variables mean the same at a node as in the function, and note functions in between."""
        scope = self.program.scope_at[node]
        for variable in self.variables:
            owner = self.owners[variable]
            if scope.lookup(variable) is not owner:
                raise Refused(
                    f"`{variable}` is not visible where `{self.name}` is called (line {node.lineno}). "
                    f"Return `{variable}` from the function that computes it and pass it there."
                )
            between: Scope | None = scope
            while between is not None and between is not owner:
                if isinstance(between.node, FunctionNode) and between.node is not self.function:
                    inside = self.program.own_scope[self.function]
                    if not between.is_inside(inside) and between.node not in self.carriers:
                        self.carriers.append(between.node)
                if between.kind == "class":
                    raise Refused(f"`{self.name}` is used in a class body. Pass `{variable}` there by hand.")
                between = between.parent

    # -- words ------------------------------------------------------------------------------------------------------

    def _text(self, node: ast.AST) -> str:
        text = " ".join(self.program.text_of[node].of(node).split())
        return text if len(text) <= 60 else text[:57] + "..."

    def _values(self) -> str:
        return " and ".join(f"`{variable}`" for variable in self.variables)

    def _unknown(self, node: ast.expr) -> Refused:
        return Refused(
            f"On line {node.lineno}, `{self.name}` is used in a way that is not understood well enough. "
            f"Give it the parameter {self._values()} and pass it wherever it is called."
        )


def field_for_argument(definition: ast.ClassDef, place: int | str) -> str | None:
    """The attribute that simply takes the argument at this position or keyword of the class's constructor, or None."""
    from jaxleak_magic.rewrite.pytree_classes import constructor_fields

    fields = constructor_fields(definition)
    if fields is None:
        return None
    if isinstance(place, int):
        return fields[place][1] if place < len(fields) else None
    return next((attribute for parameter, attribute in fields if parameter == place), None)


def function_name(program: Program, function: FunctionNode) -> str:
    """What the user calls a function: its name, the name that a lambda is assigned to, or its short text."""
    if not isinstance(function, ast.Lambda):
        return function.name
    parent = program.parent[function]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return parent.targets[0].id
    text = " ".join(program.text_of[function].of(function).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _counts_from_the_front(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_counts_from_the_front, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0
