"""Follows a function from its definition to everything that calls it, and says how one more value gets there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxleak_magic.rewrite.call_sites import Row, rows_of
from jaxleak_magic.rewrite.constructors import field_for_argument, is_nnx_module, parameter_for, stores_argument
from jaxleak_magic.rewrite.custom_rules import CustomRule
from jaxleak_magic.rewrite.float_arguments import Element, is_used_as_number, picked_element
from jaxleak_magic.rewrite.locations import location_of
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.reaching import Reach, Reached
from jaxleak_magic.rewrite.refusing import Refused, listed, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.stored_order import StoredOrder
from jaxleak_magic.rewrite.uses import Shape, Use


@dataclass
class Flow:
    """The uses of one function.

    Args:
        program: all texts.
        function: the function to follow.
        variables: the names that must reach it.
        owners: the scope that binds each of them.
        fields: (class, attribute) pairs that may hold the function once its field is a pytree child.
        no_floats: variables that are not certainly of a floating dtype.
        no_pytrees: variables whose objects JAX would not take as an argument.
        rule: the function's own derivative rule, where it has one that can be mended.
        probing: only look where the function goes, whether or not the values can reach it there.
    """

    program: Program
    function: FunctionNode
    variables: Sequence[str]
    owners: dict[str, Scope]
    fields: frozenset[tuple[str, str]] = frozenset()
    probing: bool = False
    no_floats: frozenset[str] = frozenset()
    no_pytrees: frozenset[str] = frozenset()
    rule: CustomRule | None = None
    uses: list[Use] = field(default_factory=list)
    carriers: list[FunctionNode] = field(default_factory=list)
    stores: list[ast.expr | ast.stmt] = field(default_factory=list)
    keeps_closures: bool = True
    reached: list[Reached] = field(default_factory=list)
    elements: dict[str, Element] = field(default_factory=dict)
    _seen: set[ast.AST] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The function in the user's words."""
        return function_name(self.program, self.function)

    def run(self) -> None:
        """Fill ``uses``, ``carriers`` and ``stores``.

        Raises:
            Refused: where a use is not understood.
        """
        if isinstance(self.function, ast.Lambda):
            self._value(self.function, Shape())
            return
        shape = Shape()
        for decorator in reversed(self.function.decorator_list):
            shape = self._decorated(decorator, shape)
        scope = self.program.scope_at[self.function]
        if scope.kind == "class":
            raise Refused(f"`{self.name}` is a method. Give it the value as an argument by hand.")
        self._name(scope, self.function.name, shape)

    # -- names ------------------------------------------------------------------------------------------------------

    def _name(self, scope: Scope, name: str, shape: Shape) -> None:
        owner = scope.lookup(name)
        site = self.program.only_value_site(owner, name) if owner is not None else None
        if owner is None or site is None:
            raise Refused(
                f"`{name}` is bound in more than one place, so it is not sure which function is called. "
                f"Rename one of them, then pass {self._values()} as an argument."
            )
        if self.program.is_called_in_magic(name):
            raise Refused(f"`{name}` is used in a magic or shell line, which is not rewritten.")
        loads = self.program.loads(owner, name)
        if owner is not scope and isinstance(site.node, ast.expr | ast.stmt):  # ``global`` or ``nonlocal``
            self.stores.append(site.node)
            for load in loads:
                self._order.check(site.node, load)
        for load in loads:
            self._value(load, shape)

    def _decorated(self, decorator: ast.expr, shape: Shape) -> Shape:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = self.program.qualified(call.func if call else decorator)
        if call is not None:
            if name == "functools.partial" and len(call.args) == 1:
                name = self.program.qualified(call.args[0])
            elif name == "functools.wraps":
                return shape
            elif call.args:
                name = None
        row = next((r for r in rows_of(name or "") if r.way == "calls" and r.position == 0), None)
        if name in ("jax.custom_vjp", "jax.custom_jvp") and self.rule is not None:
            return shape
        if name in ("jax.custom_vjp", "jax.custom_jvp"):
            raise self._derivative_rule(self.name, "cotangent" if name == "jax.custom_vjp" else "tangent")
        if row is None:
            raise Refused(
                f"`{self.name}` is decorated with `{self.short(decorator)}`, which is not known well enough. "
                f"Give `{self.name}` the parameter {self._values()} by hand and pass it at each call."
            )
        self._check_options(row, call)
        return replace(shape, wrappers=(*shape.wrappers, (row, call)))

    # -- values -----------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, shape: Shape) -> None:
        """Decide what to do where ``node`` evaluates to the function, or to what wrappers made of it."""
        if node in self._seen:
            return
        self._seen.add(node)
        parent = self.program.parent[node]
        match parent:
            case ast.Call(func=func) if func is node:
                self._called(parent, shape)
            case ast.Call():
                if any(isinstance(a, ast.Starred) for a in parent.args[: parent.args.index(node)]):
                    raise self._unknown(node)
                self._argument(parent, node, parent.args.index(node), shape)
            case ast.keyword(arg=str(keyword)) if isinstance(call := self.program.parent[parent], ast.Call):
                self._argument(call, node, keyword, shape)
            case ast.Assign(targets=[target]) if parent.value is node:
                self._stored(target, node, shape)
            case ast.Return():
                self._returned(node, shape)
            case ast.Lambda() if parent.body is node:
                self._returned(node, shape)
            case ast.Attribute(attr="defvjp" | "defjvp") if self.rule is not None and shape.plain:
                pass  # the rules are mended with the function
            case ast.Attribute() if shape.solver is not None and shape.calls == 0:
                self._method(parent, shape)
            case ast.ListComp() if parent.elt is node and not shape.many:
                self._value(parent, replace(shape, many=True))
            case ast.List() | ast.Tuple() if not shape.many and isinstance(parent.ctx, ast.Load):
                self._collected(parent, node, shape)
            case ast.comprehension() | ast.For() if parent.iter is node and shape.many:
                if not isinstance(parent.target, ast.Name):
                    raise self._unknown(node)
                self._name(self.program.scope_at[parent.target], parent.target.id, replace(shape, many=False))
            case ast.Subscript() if parent.value is node and shape.many and isinstance(parent.ctx, ast.Load):
                self._value(parent, replace(shape, many=False))
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
                if left is not node:
                    raise self._unknown(node)
            case ast.Expr():
                pass
            case _:
                raise self._unknown(node)

    def _collected(self, node: ast.List | ast.Tuple, element: ast.expr, shape: Shape) -> None:
        """A list or tuple literal: the branches of a switch, or a list of this one function."""
        call = self.program.parent[node]
        name = self.program.qualified(call.func) if isinstance(call, ast.Call) else None
        if name == "jax.lax.switch" and isinstance(call, ast.Call) and call.args[1:2] == [node]:
            self.uses.append(Use("bind", element, self._reach(element), rows_of(name)[0]))
            return
        if len(node.elts) != 1:
            raise Refused(
                f"`{self.name}` stands in a list with other values. Bind {self._values()} there with "
                f"`jax.tree_util.Partial`, or pass it wherever the functions of the list are called."
            )
        self._value(node, replace(shape, many=True))

    def _called(self, call: ast.Call, shape: Shape) -> None:
        if shape.calls:
            self._value(call, replace(shape, calls=shape.calls - 1))
            return
        if shape.solver is not None or shape.many:
            raise self._unknown(call)
        if self.no_pytrees and shape.wrappers:
            raise self.no_argument(call)
        values = self._reach(call, may_map=True)
        if any(axis is not None for axis in self._axes(call)):
            if shape.mapped or call.keywords or any(isinstance(a, ast.Starred) for a in call.args):
                raise self._many_rows(call)
            self.uses.append(Use("mapped", call, values, direct=True, axes=self._axes(call)))
            return
        if any(isinstance(a, ast.Starred) for a in call.args) and shape.mapped:
            raise Refused(f"`{self.name}` is mapped and called with `*` arguments. Pass {self._values()} by hand.")
        keywords = bool(call.keywords) or any(
            wrapper is not None and wrapper.keywords
            for row, wrapper in shape.wrappers
            if row.names[0] == "functools.partial"
        )
        if keywords and any(not row.keywords_pass for row, _ in shape.wrappers):
            raise Refused(
                f"A mapped `{self.name}` is called with keyword arguments. "
                f"Call it by position, then pass {self._values()} with `None` in `in_axes`."
            )
        for row, wrapper in shape.wrappers:
            if row.axes:
                if wrapper is None or self.program.parent.get(wrapper) is self.function:
                    raise Refused(
                        f"`{self.name}` is decorated with vmap. Pass {self._values()} by hand, `in_axes` None."
                    )
                self.uses.append(Use("axes", wrapper, row=row))
        last = shape.wrappers[-1][0] if shape.wrappers else None
        cached = any(row.caches for row, _ in shape.wrappers)
        self.uses.append(Use("call", call, values, last, True, keywords, cached=cached))

    def _argument(self, call: ast.Call, node: ast.expr, place: int | str, shape: Shape) -> None:
        name = self.program.qualified(call.func)
        row = next((r for r in rows_of(name or "") if place in (r.position, r.keyword)), None)
        if row is None:
            self._given_away(call, node, place, shape)
            return
        made_a_term = shape.solver is not None and shape.solver.way == "term"
        if shape.calls or shape.many or (shape.solver is not None) != (made_a_term and row.way == "args_slot"):
            raise self._unknown(node)
        if not row.keeps_closures:
            self.keeps_closures = False
        if self.no_pytrees:
            raise self.no_argument(call)
        self._check_options(row, call)
        if name == "jax.tree_util.Partial" and shape.plain and self._is_visible(node):
            self.uses.append(Use("bind", node, self._reach(node)))  # what is bound there already gets company
        elif row.way == "calls":
            self._value(call, replace(shape, wrappers=(*shape.wrappers, (row, call))))
        elif row.way == "bind":
            self.uses.append(Use("bind", node, self._reach(node), row))
        elif shape.mapped:
            raise Refused(
                f"A mapped `{self.name}` is given to `{self.short(call.func)}`. Pass {self._values()} by hand."
            )
        elif row.way == "operands":
            self._operands(call, row)
        elif row.way == "args_tuple":
            self.uses.append(Use("tuple", call, self._reach(call), row, cached=True))
        elif row.way == "args_slot":
            self.uses.append(Use("slot", call, self._reach(call), row, cached=True))
        elif row.way in ("solver", "term"):
            if row.way == "term":
                self.uses.append(Use("term", node, self._values_if_visible(node), row))
            self._value(call, replace(shape, solver=row))
        else:
            raise self._unknown(node)

    def _operands(self, call: ast.Call, row: Row) -> None:
        others = [k for k in call.keywords if k.arg not in row.own_keywords]
        if others and not row.hands_keywords:
            raise Refused(
                f"`{self.short(call.func)}` gets arguments of `{self.name}` by keyword. Give them by position, then "
                "pass "
                f"{self._values()} after them."
            )
        before = call.args[: row.operands_from]
        if len(before) < row.operands_from or any(isinstance(a, ast.Starred) for a in before):
            raise Refused(
                f"`{self.short(call.func)}` is called in a form that leaves no safe place for one more operand. "
                f"Pass {self._values()} to it by hand and take it as a parameter of `{self.name}`."
            )
        if row.way == "solver" and any(axis is not None for axis in self._axes(call)):
            values = self._reach(call, may_map=True)
            self.uses.append(Use("mapped", call, values, row, axes=self._axes(call)))
            return
        values = self._as_floats(call, self._reach(call)) if row.floats_only else self._reach(call)
        self.uses.append(Use("call", call, values, row, keywords=bool(others), cached=row.caches))

    def _as_floats(self, call: ast.Call, values: tuple[str, ...]) -> tuple[str, ...]:
        """The values for a call that differentiates its arguments, which must be floats there."""
        if self.probing:
            return values
        return tuple(
            self._as_float(call, variable, value) if variable in self.no_floats else value
            for variable, value in zip(self.variables, values, strict=True)
        )

    def _as_float(self, call: ast.Call, variable: str, value: str) -> str:
        as_array = self.program.spelling("jax.numpy.asarray", call)
        if as_array is not None and is_used_as_number(self.program, self.function, variable):
            return f"{as_array}({value}, float)"
        element = picked_element(self.program, self.function, variable)
        if element is not None and value == variable and (element.is_float or as_array is not None):
            self.elements[variable] = element
            return element.text if element.is_float else f"{as_array}({element.text}, float)"
        raise Refused(
            f"`{self.short(call.func)}` takes only floating-point arguments where it is differentiated, and "
            f"`{variable}` may be an integer. Compute what `{self.name}` needs of it as a float before the call, and "
            f"pass that."
        )

    def _check_options(self, row: Row, call: ast.Call | None) -> None:
        if call is None or row.names[0] == "functools.partial":
            return
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in row.refuse_with:
                raise Refused(
                    f"`{self.short(call.func)}` is called with `{keyword.arg or '**'}`, with which no argument is "
                    "added "
                    f"automatically. Pass {self._values()} as an argument of `{self.name}` by hand."
                )
            if keyword.arg in row.numbers and not _counts_from_the_front(keyword.value):
                raise Refused(
                    f"`{keyword.arg}` of `{self.short(call.func)}` is not made of plain numbers from 0 on, and one "
                    "more "
                    f"argument could change what it means. Pass {self._values()} by hand."
                )
        options = call.args[row.position + 1 :] if row.way == "calls" and call.args else []
        # grad(f, 0): the option by position
        if any(not _counts_from_the_front(option) for option in options) and not row.axes:
            raise Refused(f"`{self.short(call)}` has options by position. Write them as keywords first.")

    # -- objects and places -----------------------------------------------------------------------------------------

    def _method(self, attribute: ast.Attribute, shape: Shape) -> None:
        """A method call on a solver: it hands its further arguments to the function."""
        assert shape.solver is not None
        counts = dict(shape.solver.methods)
        if attribute.attr in shape.solver.silent:
            return
        call = self.program.parent[attribute]
        if not isinstance(call, ast.Call) or call.func is not attribute or attribute.attr not in counts or shape.many:
            raise Refused(
                f"`{self.short(attribute)}` is used in a way in which {self._values()} cannot be passed automatically. "
                f"Make it a parameter of `{self.name}` and pass it to each call of the solver."
            )
        position = counts[attribute.attr]
        if shape.solver.slot is not None:
            row = replace(shape.solver, slot=(shape.solver.slot[0], position))
            self.uses.append(Use("slot", call, self._reach(call), row))
        else:
            self._operands(call, replace(shape.solver, operands_from=position))

    def _stored(self, target: ast.expr, node: ast.expr, shape: Shape) -> None:
        if isinstance(target, ast.Name):
            self._name(self.program.scope_at[target], target.id, shape)
            return
        location = location_of(self.program, target)
        if location is None:
            raise self._unknown(node)
        self.stores.append(target)
        loads = location.loads()
        if location.holds_another_at_first():
            self._order.check_never_another(target, loads)
        for load in loads:
            if not isinstance(self.program.parent[load], ast.Compare):
                self._order.check(target, load)
            self._value(load, shape)

    def _returned(self, node: ast.expr, shape: Shape) -> None:
        factory = self.program.enclosing_function(node)
        assert factory is not None
        if not self.probing and shape.plain and self._is_contained(node) and self._is_visible(node):
            self.uses.append(Use("bind", node, self._reach(node)))
            return
        if isinstance(factory, ast.Lambda):
            self._value(factory, replace(shape, calls=shape.calls + 1))
            return
        if factory.decorator_list or any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(factory)):
            raise Refused(
                f"`{self.name}` is returned by `{factory.name}`, which is transformed or a generator. Return "
                f"`jax.tree_util.Partial({self.name}, ...)` with {self._values()} bound, or return {self._values()} "
                "too."
            )
        if isinstance(factory, ast.AsyncFunctionDef):
            raise self._unknown(node)
        scope = self.program.scope_at[factory]
        if scope.kind == "class":
            raise Refused(
                f"`{self.name}` is returned by the method `{factory.name}`. Return {self._values()} too and pass it "
                "at each "
                f"call, or return `jax.tree_util.Partial({self.name}, ...)` with it bound."
            )
        self._name(scope, factory.name, replace(shape, calls=shape.calls + 1))

    def _is_contained(self, node: ast.expr) -> bool:
        """Whether all that becomes of a returned function is known, and nothing stores it."""
        probe = replace(self, probing=True, uses=[], carriers=[], stores=[], reached=[], _seen=set())
        try:
            probe._returned(node, Shape())
        except Refused:
            return False
        return not probe.stores and probe.keeps_closures

    def _is_visible(self, node: ast.expr) -> bool:
        scope = self.program.scope_at[node]
        return not self.probing and all(scope.lookup(name) is self.owners[name] for name in self.variables)

    def _derivative_rule(self, name: str, kind: str) -> Refused:
        return Refused(
            f"`{name}` has its own derivative rule, which would need a {kind} for {self._values()} too. Make it an "
            f"argument of `{name}` and of its rules, and return its derivative there (zeros only where nothing is "
            f"differentiated with respect to it)."
        )

    def _given_away(self, call: ast.Call, node: ast.expr, place: int | str, shape: Shape) -> None:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("defvjp", "defjvp", "def_fwd", "def_bwd"):
            kind = "tangent" if call.func.attr == "defjvp" else "cotangent"
            raise self._derivative_rule(self.short(call.func.value), kind)
        definition = self.program.definition(call.func)
        if isinstance(definition, ast.ClassDef):
            if shape.plain and is_nnx_module(self.program, definition) and stores_argument(definition, place):
                self.keeps_closures = False
                self.uses.append(Use("bind", node, self._reach(node), inside="flax.nnx.data"))
                return
            attribute = field_for_argument(definition, place)
            if attribute is not None and (definition.name, attribute) in self.fields and shape.plain:
                self.uses.append(Use("field", node, self._reach(node), field_of=definition, field_name=attribute))
                return
            raise Refused(
                f"`{self.name}` is kept in an object of class `{definition.name}`. Keep {self._values()} in the "
                "object too, "
                f"or store `jax.tree_util.Partial({self.name}, ...)` in a field that is a pytree child."
            )
        if isinstance(definition, ast.FunctionDef) and not shape.many and shape.solver is None and not shape.calls:
            parameter = parameter_for(definition, place)
            if parameter is not None and not self.no_pytrees:
                self._given_to_own_function(node, definition, parameter, shape)
                return
        raise Refused(
            f"`{self.name}` is given to `{self.short(call.func)}`, and how that calls it is not known. "
            f"Pass {self._values()} through it by hand."
        )

    def _given_to_own_function(self, node: ast.expr, definition: ast.FunctionDef, parameter: str, shape: Shape) -> None:
        """A function of the user's takes it: bound where it is handed over, if nothing there keeps it."""
        scope = self.program.own_scope[definition]
        if self.probing:
            self._name(scope, parameter, shape)
            return
        probe = replace(self, probing=True, uses=[], carriers=[], stores=[], reached=[], _seen=set())
        plain = not definition.decorator_list and self.program.only_site(scope, parameter) is not None
        try:
            probe._name(scope, parameter, shape)
        except Refused:
            plain = False
        if not plain or probe.stores or not probe.keeps_closures:
            raise Refused(
                f"`{self.name}` is given to `{definition.name}`, which does more than call it. "
                f"Let `{definition.name}` take {self._values()} too, and pass it on where it calls `{parameter}`."
            )
        self.uses.append(Use("bind", node, self._reach(node)))

    @property
    def _order(self) -> StoredOrder:
        return StoredOrder(self.program, self.function, self.name, self.variables)

    # -- scopes -----------------------------------------------------------------------------------------------------

    def _reach(self, node: ast.expr, may_map: bool = False) -> tuple[str, ...]:
        """What to write at a node for each variable; functions in between are noted as carriers."""
        if self.probing:
            return tuple(self.variables)
        reached = self._found(node)
        if not may_map and any(each.axis is not None for each in reached):
            raise self._many_rows(node)
        self.reached += reached
        own = self.rule.functions if self.rule is not None else ()
        for each in reached:
            self.carriers += [c for c in each.carriers if c not in self.carriers and c not in own]
        return tuple(each.text for each in reached)

    def _found(self, node: ast.expr) -> list[Reached]:
        reach = Reach(self.program, self.function, self.name)
        return [reach.at(variable, self.owners[variable], node) for variable in self.variables]

    def _axes(self, node: ast.expr) -> tuple[int | None, ...]:
        return () if self.probing else tuple(each.axis for each in self._found(node))

    def _many_rows(self, node: ast.expr) -> Refused:
        return Refused(
            f"{self._values()} has one value for each mapped row, and `{self.name}` is used once on line "
            f"{node.lineno}. "
            f"Say which row is meant, or map that line with `jax.vmap` too."
        )

    def _values_if_visible(self, node: ast.expr) -> tuple[str, ...]:
        return tuple(self.variables) if self._is_visible(node) else ()

    # -- words ------------------------------------------------------------------------------------------------------

    def short(self, node: ast.AST) -> str:
        """A node's text, cut where it is long."""
        return short_text(self.program, node)

    def _values(self) -> str:
        return listed(self.variables)

    def no_argument(self, call: ast.expr) -> Refused:
        """The refusal of a value that JAX does not take as an argument."""
        names = listed(sorted(self.no_pytrees))
        return Refused(
            f"{names} is an object that JAX does not take as an argument (line {call.lineno}). "
            f"Pass the arrays in it to `{self.name}` instead, or register its class as a pytree."
        )

    def _unknown(self, node: ast.expr) -> Refused:
        return Refused(
            f"On line {node.lineno}, `{self.name}` is used in a way that is not understood well enough. "
            f"Give it the parameter {self._values()} and pass it wherever it is called."
        )


def function_name(program: Program, function: FunctionNode) -> str:
    """What the user calls a function: its name, the name that a lambda is assigned to, or its short text."""
    if not isinstance(function, ast.Lambda):
        return function.name
    parent = program.parent[function]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return parent.targets[0].id
    return short_text(program, function, 40)


def _counts_from_the_front(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_counts_from_the_front, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0
