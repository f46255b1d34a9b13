"""The lift: a closed-over value becomes an argument of the function, passed wherever the function is called."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.custom_rules import CustomRule, RuleEdits, custom_rule_of
from jaxleak_magic.rewrite.flow import Flow, Use, function_name
from jaxleak_magic.rewrite.imports import import_module
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.pytree_classes import is_unflatten_call, move_to_children
from jaxleak_magic.rewrite.reaching import Return
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.texts import Text, TextEdit

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


@dataclass
class Draft:
    """Edits of several texts, and what they do.

    Attributes:
        edits: the edits of each text.
        lifted: functions that got parameters.
        bound: whether a function was bound with ``jax.tree_util.Partial``.
        children: (class, attribute) pairs that became pytree children.
        returned: (function, variable) pairs that are returned now.
        kept: functions that may close over the values, since JAX lifts their closures itself.
        kept_values: names by which those write the values.
        new_parameters: new names of parameters of flatten and unflatten functions.
        registered: classes that became pytrees.
        renamed_parameters: functions of which an unused parameter took the value's name.
        variables: names that became arguments beside those of the case.
        rows: names that mean one row of what they meant, inside of a new mapped lambda.
    """

    edits: dict[Text, list[TextEdit]] = field(default_factory=dict)
    lifted: list[FunctionNode] = field(default_factory=list)
    bound: bool = False
    children: list[tuple[str, str]] = field(default_factory=list)
    returned: list[tuple[str, str]] = field(default_factory=list)
    kept: list[FunctionNode] = field(default_factory=list)
    kept_values: set[str] = field(default_factory=set)
    new_parameters: set[str] = field(default_factory=set)
    renamed_parameters: list[FunctionNode] = field(default_factory=list)
    registered: list[ast.ClassDef] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    rows: list[ast.Name] = field(default_factory=list)

    def add(self, text: Text, edits: Sequence[TextEdit]) -> None:
        """Take up edits of one text."""
        self.edits.setdefault(text, []).extend(edits)


class Lift:
    """Lifts variables out of a function and, where needed, out of the functions around its calls.

    Args:
        program: all texts.
        function: the function that holds the values.
        variables: its free variables to lift.
        fields: (class, attribute) pairs on the leak's path, which may become pytree children.
        no_floats: variables that are not certainly of a floating dtype.
        no_pytrees: variables whose objects JAX would not take as an argument.
        only_leaking: refuse where JAX lifts the closures of all places where the function is used itself.
        draft: takes the edits; None makes a new one.
        no_tangents: variables with respect to which nothing is differentiated.
    """

    def __init__(
        self,
        program: Program,
        function: FunctionNode,
        variables: Sequence[str],
        fields: frozenset[tuple[str, str]] = frozenset(),
        no_floats: frozenset[str] = frozenset(),
        no_pytrees: frozenset[str] = frozenset(),
        only_leaking: bool = False,
        draft: Draft | None = None,
        no_tangents: frozenset[str] = frozenset(),
    ) -> None:
        self.program = program
        self.function = function
        self.variables = _in_order_of_use(program, function, variables)
        self.fields = fields
        self.no_floats = no_floats & frozenset(self.variables)
        self.no_pytrees = no_pytrees & frozenset(self.variables)
        self.only_leaking = only_leaking
        self.lifted_variables: dict[FunctionNode, list[str]] = {}
        self.draft = draft or Draft()
        self.no_tangents = no_tangents
        self.carried: set[FunctionNode] = set()

    def run(self) -> Draft:
        """The edits.

        Raises:
            Refused: where the meaning would not certainly stay.
        """
        own, name = self.program.own_scope[self.function], function_name(self.program, self.function)
        for variable in self.variables:
            owner = own.lookup(variable)
            if owner is not None:
                self._check_variable(self.function, name, variable, owner)
        waiting = self._first_functions()
        returns: list[Return] = []
        while waiting:
            function, variables = next(iter(waiting.items()))
            del waiting[function]
            rule = custom_rule_of(self.program, function)
            if rule is not None:
                variables = self._variables_of_rule(rule, waiting)
                function = rule.primal
            self.draft.lifted += rule.functions if rule is not None else [function]
            flow = self._flow(function, variables, rule)
            self.emit(flow)
            if rule is not None:
                self._emit_rules(flow, rule)
            returns += [r.returned for r in flow.reached if r.returned is not None]
            self.draft.kept_values.update(each.text for each in flow.reached)
            for carrier in flow.carriers:
                self._carry(carrier, flow, waiting)
        self.emit_returns(returns)
        return self.draft

    def _variables_of_rule(self, rule: CustomRule, waiting: dict[FunctionNode, list[str]]) -> list[str]:
        """All values that the function or one of its rules takes by closure, or has to hand on."""
        wanted: set[str] = set()
        for function in rule.functions:
            wanted |= self.program.free_names(function) | set(waiting.pop(function, ()))
        variables = [v for v in self.variables if v in wanted]
        for function in rule.functions:
            self.lifted_variables[function] = variables
            scopes = {self.program.own_scope[each].lookup(v) for each in rule.functions for v in variables}
            if len(scopes) != 1 or not self.program.scopes_agree(function):
                raise Refused(
                    f"`{rule.primal.name}` and its derivative rules may not mean the same {listed(variables)}. "
                    f"Make it an argument of each by hand."
                )
        return variables

    def _emit_rules(self, flow: Flow, rule: CustomRule) -> None:
        """Give the derivative rules of a function the values too, where their derivative is zero for sure."""
        program, last = self.program, rule.rules[-1]

        def uses(variable: str, function: FunctionNode) -> bool:
            inside = any(program.scope_at[u.node].is_inside(program.own_scope[function]) for u in flow.uses)
            return variable in program.free_names(function) or function in self.carried or inside

        differentiable = [v for v in flow.variables if uses(v, rule.primal) and v not in self.no_tangents]
        if differentiable:
            kind = "cotangent" if rule.reverse else "tangent"
            raise Refused(
                f"`{rule.primal.name}` has its own derivative rule, which would need a {kind} for "
                f"{listed(differentiable)} too. Make it an argument of `{rule.primal.name}` and of its rules, and "
                f"return its derivative there (zeros only where nothing is differentiated with respect to it)."
            )
        needed = [v for v in flow.variables if uses(v, last)]
        for node, edit in RuleEdits(program, rule, flow.variables).lifted(needed):
            self.draft.add(program.text_of[node], [edit])
        self.draft.new_parameters |= {"residuals", "_"}

    def _carry(self, carrier: FunctionNode, flow: Flow, waiting: dict[FunctionNode, list[str]]) -> None:
        """A function around a use keeps the values or takes them too."""
        self.carried.add(carrier)
        if carrier in self.draft.kept:
            return
        if carrier not in self.draft.lifted and self._may_keep(carrier):
            self.draft.kept.append(carrier)
            return
        known = self.lifted_variables.get(carrier, waiting.get(carrier, []))
        wanted = list(dict.fromkeys([*known, *flow.variables]))
        if carrier not in self.draft.lifted:
            waiting[carrier] = wanted
        elif wanted != known:
            raise Refused(
                f"`{function_name(self.program, carrier)}` would need {listed(wanted)} in turn. Pass them by hand, "
                "from the "
                f"innermost function outwards."
            )

    def _first_functions(self) -> dict[FunctionNode, list[str]]:
        """The function of the facts and all others that certainly give the values to what may not close over them."""
        own = self.program.own_scope[self.function]
        meant = {variable: own.lookup(variable) for variable in self.variables}
        leaking: dict[FunctionNode, list[str]] = {}
        for other in self.program.functions():
            free, scope = self.program.free_names(other), self.program.own_scope[other]
            variables = [v for v in self.variables if v in free and scope.lookup(v) is meant[v]]
            if other is not self.function and variables and self._certainly_leaks(other):
                leaking[other] = variables
        if not self.only_leaking or not self._may_keep(self.function):
            return {self.function: self.variables, **leaking}
        if not leaking:
            name = function_name(self.program, self.function)
            raise Refused(
                f"JAX takes care of what `{name}` closes over at each place where it is used, so it is not sure which "
                f"function keeps {listed(self.variables)}. Pass it as an argument wherever a function takes it by "
                f"closure."
            )
        self.function = next(iter(leaking))
        return leaking

    def _certainly_leaks(self, function: FunctionNode) -> bool:
        probe = Flow(self.program, function, self.variables, {}, probing=True)
        try:
            probe.run()
        except Refused:
            return False
        return bool(probe.stores) or not probe.keeps_closures

    # -- conditions -------------------------------------------------------------------------------------------------

    def _flow(self, function: FunctionNode, variables: Sequence[str], rule: CustomRule | None = None) -> Flow:
        self.lifted_variables[function] = list(variables)
        name = function_name(self.program, function)
        owners: dict[str, Scope] = {}
        if not self.program.scopes_agree(function):
            raise Refused(f"The names used in `{name}` could not be resolved with certainty. Pass its values by hand.")
        for variable in variables:
            owner = self.program.own_scope[function].lookup(variable)
            if owner is None or owner.kind != "function":
                where = "a comprehension" if owner is not None and owner.kind == "comprehension" else "another scope"
                raise Refused(f"`{variable}` is bound by {where}. Bind it as an argument of `{name}` by hand.")
            self._check_variable(function, name, variable, owner)
            owners[variable] = owner
        flow = Flow(
            self.program,
            function,
            variables,
            owners,
            self.fields,
            no_floats=self.no_floats & frozenset(variables),
            no_pytrees=self.no_pytrees & frozenset(variables),
            rule=rule,
        )
        flow.run()
        self._check_calls(flow)
        if not flow.uses and not flow.stores:
            raise Refused(f"No call of `{name}` was found, so there is no place to pass {listed(variables)}.")
        return flow

    def _check_calls(self, flow: Flow) -> None:
        function = flow.function
        for node, scope in self.program.scope_at.items():
            if isinstance(node, ast.Call) and scope.is_inside(self.program.own_scope[function]):
                name = self.program.qualified(node.func)
                if name in ("builtins.locals", "builtins.eval", "builtins.exec", "builtins.vars", "builtins.dir"):
                    raise Refused(
                        f"`{flow.name}` looks at its own names (line {node.lineno}). Pass its values by hand."
                    )
        if function.args.kwarg is None:
            return
        for use in flow.uses:
            if isinstance(use.node, ast.Call) and any(
                keyword.arg is None or keyword.arg in flow.variables for keyword in use.node.keywords
            ):
                raise Refused(f"`{flow.name}` takes any keyword, one of which may be {listed(flow.variables)} already.")

    def _check_variable(self, function: FunctionNode, name: str, variable: str, owner: Scope) -> None:
        if variable.startswith("__"):
            raise Refused(f"`{variable}` may be a name that Python mangles. Pass it to `{name}` by hand.")
        if self.program.is_called_in_magic(variable):
            raise Refused(f"`{variable}` is used in a magic or shell line, which is not rewritten.")
        for node, scope in self.program.scope_at.items():
            if isinstance(node, ast.Nonlocal) and variable in node.names and scope.lookup(variable) is owner:
                raise Refused(
                    f"`{variable}` is written through `nonlocal`. Return its new value from the function that writes "
                    "it."
                )
        for load in self.program.loads(owner, variable):
            if self._inside(load, function) and (how := self._changed_in_place(load)):
                raise Refused(
                    f"`{name}` changes `{variable}` in place ({how}). Return the new value from `{name}` and use that."
                )

    def _inside(self, node: ast.AST, function: FunctionNode) -> bool:
        return self.program.scope_at[node].is_inside(self.program.own_scope[function])

    def _changed_in_place(self, load: ast.Name) -> str | None:
        parent = self.program.parent[load]
        if isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is load:
            if not isinstance(parent.ctx, ast.Load):
                return f"line {load.lineno}"
            call = self.program.parent[parent]
            if (
                isinstance(parent, ast.Attribute)
                and parent.attr in _MUTATORS
                and isinstance(call, ast.Call)
                and call.func is parent
            ):
                return f"`{load.id}.{parent.attr}(...)`, line {load.lineno}"
        return None

    def _may_keep(self, carrier: FunctionNode, around: frozenset[FunctionNode] = frozenset()) -> bool:
        """Whether a function between may close over the values.

        It may where all that is made of it is a call or a transform whose closures JAX lifts itself, as long as the
        functions around those places may keep the values too.
        """
        if carrier in around:
            return True
        probe = Flow(self.program, carrier, self.variables, {}, probing=True)
        try:
            probe.run()
        except Refused:
            return False
        if probe.stores or not probe.keeps_closures or not probe.uses:
            return False
        keeps = True
        for use in probe.uses:
            for variable in self.variables:
                owner = self.program.own_scope[carrier].lookup(variable)
                between = self.program.scope_at[use.node]
                while owner is not None and between is not owner and between.parent is not None:
                    node = between.node
                    outside = not between.is_inside(self.program.own_scope[carrier])
                    if isinstance(node, FunctionNode) and outside and node not in self.draft.lifted:
                        keeps &= self._may_keep(node, around | {carrier})
                    between = between.parent
        return keeps

    # -- edits ------------------------------------------------------------------------------------------------------

    def emit(self, flow: Flow) -> None:
        """Add the edits at a function's head and at its uses to the draft."""
        function = flow.function
        text = self.program.text_of[function]
        uses = flow.uses
        if any(use.kind == "slot" for use in uses):
            if (number := self._free_slot(flow)) is not None:
                self._fill_slot(flow, number)
                return
            uses = self._bound_instead_of_slot(flow)
        if any(use.cached for use in uses) and not all(self._is_settled(flow, v) for v in flow.owners):
            raise Refused(
                f"{listed(flow.variables)} changes after `{flow.name}` was made, and a compiled `{flow.name}` may go "
                "on with "
                f"the old value. Give the value that it should use a name of its own."
            )
        binds = [use for use in uses if use.kind in ("bind", "field")]
        others = [use for use in uses if use.kind not in ("bind", "field")]
        if binds and any(use.kind == "mapped" for use in others):
            raise Refused(
                f"`{flow.name}` is bound in one place and needs one value for each mapped row in another. "
                f"Pass {listed(flow.variables)} by hand."
            )
        parameters = self._parameters(flow)
        arguments = function.args
        plain = flow.rule is None and not _numbered(function)
        if binds and all(use.direct and use.row is None for use in others) and plain:
            self.draft.add(text, insertions.prepend_parameters(text, function, parameters))
            place = "first"
        elif arguments.defaults or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            self.draft.add(text, insertions.append_keyword_only(text, function, parameters))
            place = "keyword"
        else:
            self.draft.add(text, insertions.append_parameters(text, function, parameters))
            place = "last"
        axes: list[ast.AST] = []
        for use in uses:
            self._emit_use(use, place, flow, axes)

    def _parameters(self, flow: Flow) -> list[str]:
        """Names of the new parameters: the variables', but for an element that is passed instead of its index."""
        if not flow.elements:
            return list(flow.variables)
        if any(use.kind != "call" or use.row is None or not use.row.floats_only for use in flow.uses):
            raise Refused(
                f"`{flow.name}` is used in several ways, of which one takes only floats. Compute what it needs of "
                f"{listed(sorted(flow.elements))} before the calls, and pass that."
            )
        for element in flow.elements.values():
            self.draft.variables.append(element.parameter)
            for node in element.nodes:
                text = self.program.text_of[node]
                self.draft.add(text, insertions.replace(text, node, element.parameter))
        return [flow.elements[v].parameter if v in flow.elements else v for v in flow.variables]

    # -- a slot for arguments ---------------------------------------------------------------------------------------

    def _free_slot(self, flow: Flow) -> int | None:
        """Number of the parameter that a library fills from ``args``, where neither the function nor a call uses it."""
        numbers = {use.row.slot_parameter for use in flow.uses if use.kind == "slot" and use.row is not None}
        positional = [*flow.function.args.posonlyargs, *flow.function.args.args]
        if (
            len(numbers) != 1
            or len(flow.variables) != 1
            or (number := numbers.pop()) is None
            or number >= len(positional)
        ):
            return None
        scope, parameter = self.program.own_scope[flow.function], positional[number].arg
        is_free = not self.program.loads(scope, parameter) and self.program.only_site(scope, parameter) is not None
        without_default = number < len(positional) - len(flow.function.args.defaults)
        taken = any(a.arg == flow.variables[0] for a in positional)
        if not is_free or not without_default or taken or positional[number].annotation is not None:
            return None
        return number if all(self._leaves_slot_free(use, number) for use in flow.uses) else None

    def _leaves_slot_free(self, use: Use, number: int) -> bool:
        if not isinstance(use.node, ast.Call):
            return use.kind == "term"
        if any(isinstance(a, ast.Starred) for a in use.node.args) or any(k.arg is None for k in use.node.keywords):
            return False
        if use.kind == "slot":
            assert use.row is not None
            assert use.row.slot is not None
            given = _given(use.node, *use.row.slot)
            return (given is None and len(use.node.args) <= use.row.slot[1]) or _is_none(given)
        return use.kind == "call" and use.direct and number < len(use.node.args) and _is_none(use.node.args[number])

    def _fill_slot(self, flow: Flow, number: int) -> None:
        function = flow.function
        text = self.program.text_of[function]
        parameter = [*function.args.posonlyargs, *function.args.args][number]
        self.draft.add(text, insertions.replace(text, parameter, flow.variables[0]))
        self.draft.renamed_parameters.append(function)
        for use in flow.uses:
            if not isinstance(use.node, ast.Call):
                continue
            text, (value,) = self.program.text_of[use.node], use.values
            if use.kind == "slot":
                assert use.row is not None
                assert use.row.slot is not None
                keyword, position = use.row.slot
                given = _given(use.node, keyword, position)
                if given is not None:
                    self.draft.add(text, insertions.replace(text, given, value))
                elif len(use.node.args) == position:
                    self.draft.add(text, insertions.append_arguments(text, use.node, [f"{keyword}={value}"]))
                else:
                    self.draft.add(text, insertions.append_keywords(text, use.node, [f"{keyword}={value}"]))
            else:
                self.draft.add(text, insertions.replace(text, use.node.args[number], value))

    def _bound_instead_of_slot(self, flow: Flow) -> list[Use]:
        """The uses with the callable bound where it is given away, since its slot is taken."""
        uses: list[Use] = []
        for use in flow.uses:
            if use.kind == "term" and use.values and not flow.stores:
                uses.append(Use("bind", use.node, use.values))
            elif use.kind == "slot" and any(u.kind == "term" and u.values for u in flow.uses) and not flow.stores:
                continue
            elif (
                use.kind == "slot" and use.row is not None and use.row.keeps_closures and isinstance(use.node, ast.Call)
            ):
                given = _given(use.node, use.row.keyword or "", use.row.position)
                if given is None:
                    raise Refused(
                        f"`{flow.name}` is given away in an unusual form. Pass {listed(flow.variables)} by hand."
                    )
                uses.append(Use("bind", given, use.values))
            elif use.kind in ("slot", "term"):
                raise Refused(
                    f"The `args` of `{flow.name}` are in use already. Put {listed(flow.variables)} into them too and "
                    "unpack "
                    f"it in `{flow.name}`."
                )
            else:
                uses.append(use)
        return uses

    # -- one use ----------------------------------------------------------------------------------------------------

    def _emit_use(self, use: Use, place: str, flow: Flow, axes: list[ast.AST]) -> None:
        text = self.program.text_of[use.node]
        names = list(use.values)
        named = [f"{name}={value}" for name, value in zip(flow.variables, names, strict=bool(names))]
        if use.kind == "axes":
            if place != "last":
                raise Refused(
                    f"`{flow.name}` is mapped and has defaults. Pass {listed(flow.variables)} by hand, `in_axes` None."
                )
            if use.node not in axes:
                axes.append(use.node)
                self._extend_axes(use, flow)
        elif use.kind in ("bind", "field"):
            if flow.no_pytrees:
                raise flow.no_argument(use.node)
            partial = self.program.spelling("jax.tree_util.Partial", use.node)
            if partial is None and import_module(self.program, self.draft, "jax", use.node):
                partial = "jax.tree_util.Partial"
            if partial is None:
                raise Refused(
                    "`jax.tree_util.Partial` cannot be reached by a name here. Import `jax`, then bind "
                    f"{listed(names)} to "
                    f"`{flow.name}` with it."
                )
            self._check_bound_early(flow)
            values = ", ".join(names if place == "first" else named)
            opening = self._opening_around(use)
            self.draft.add(
                text, insertions.wrap(text, use.node, f"{opening}{partial}(", f", {values})" + ")" * bool(opening))
            )
            self.draft.bound = True
            if use.kind == "field" and use.field_of is not None and use.field_name is not None:
                self._make_child(use.field_of, use.field_name, flow)
        elif use.kind == "term":
            pass
        elif use.kind == "mapped":
            self._map_call(use, place, flow)
        elif use.kind == "tuple":
            if place != "last":
                raise Refused(f"`{flow.name}` has defaults. Pass {listed(names)} through `args` by hand.")
            self._extend_tuple(use, flow)
        else:
            assert isinstance(use.node, ast.Call)
            if place == "keyword":
                row = use.row
                if not use.direct and (
                    row is None or not row.hands_keywords or set(row.own_keywords) & set(flow.variables)
                ):
                    raise Refused(
                        f"`{flow.name}` has parameters with defaults, so {listed(names)} cannot be added by position. "
                        f"Put it before them by hand and pass it at `{flow.short(use.node.func)}`."
                    )
                self.draft.add(text, insertions.append_keywords(text, use.node, named))
            elif place == "first":
                self.draft.add(text, insertions.prepend_arguments(text, use.node, names))
            elif use.keywords:
                self.draft.add(text, insertions.append_keywords(text, use.node, named))
            else:
                self.draft.add(text, insertions.append_arguments(text, use.node, names))

    def _opening_around(self, use: Use) -> str:
        """What is written before a bound expression, such as ``nnx.data(``, or nothing."""
        if use.inside is None:
            return ""
        if (spelled := self.program.spelling(use.inside, use.node)) is None:
            raise Refused(f"`{use.inside}` cannot be reached by a name here. Import it, and mark the bound function.")
        return f"{spelled}("

    def _map_call(self, use: Use, place: str, flow: Flow) -> None:
        """Map a call outside of the transform over the rows of the values."""
        assert isinstance(use.node, ast.Call)
        text, vmap = self.program.text_of[use.node], self.program.spelling("jax.vmap", use.node)
        if vmap is not None and place == "keyword" and len(use.axes) == 1:
            (name,), (value,), (axis,) = flow.variables, use.values, use.axes
            axes = f", in_axes={axis}" if axis else ""
            self.draft.add(text, insertions.wrap(text, use.node, f"{vmap}(lambda {name}: ", f"{axes})({value})"))
            self.draft.add(text, insertions.append_keywords(text, use.node, [f"{name}={name}"]))
            return
        if vmap is None or place != "last":
            raise Refused(
                f"{listed(flow.variables)} has one value for each mapped row. Map the call of `{flow.name}` on line "
                f"{use.node.lineno} over it with `jax.vmap`."
            )
        entries = ", ".join(["None"] * len(use.node.args) + [str(axis) for axis in use.axes])
        entries += "," if len(use.node.args) + len(use.axes) == 1 else ""
        self.draft.add(text, insertions.wrap(text, use.node.func, f"{vmap}(", f", in_axes=({entries}))"))
        self.draft.add(text, insertions.append_arguments(text, use.node, use.values))

    def _check_bound_early(self, flow: Flow) -> None:
        for variable in flow.owners:
            if not self._is_settled(flow, variable):
                raise Refused(
                    f"`{variable}` is assigned more than once, and `{flow.name}` would keep only one of its values. "
                    f"Give the value that it should use a name of its own."
                )

    def _is_settled(self, flow: Flow, variable: str) -> bool:
        """Whether a variable is never assigned again after the function was made: one assignment, no further loop."""
        owner = flow.owners[variable]
        site = self.program.only_site(owner, variable)
        if site is None or site.kind not in ("parameter", "assign"):
            return False
        loops = self._loops_around(site.node, owner)
        return loops <= self._loops_around(flow.function, owner)

    def _loops_around(self, node: ast.AST, owner: Scope) -> set[ast.AST]:
        found: set[ast.AST] = set()
        current: ast.AST | None = node
        while current is not None and current is not owner.node:
            if isinstance(current, ast.For | ast.AsyncFor | ast.While):
                found.add(current)
            current = self.program.parent.get(current)
        return found

    def _extend_axes(self, use: Use, flow: Flow) -> None:
        assert isinstance(use.node, ast.Call)
        assert use.row is not None
        assert use.row.axes is not None
        text = self.program.text_of[use.node]
        keyword = next((k for k in use.node.keywords if k.arg == use.row.axes), None)
        given = keyword.value if keyword else use.node.args[1] if len(use.node.args) > 1 else None
        entry = "None"
        if use.row.axes_entry is not None:
            spelled = self.program.spelling(use.row.axes_entry, use.node)
            if spelled is None or not isinstance(given, ast.Tuple):
                raise Refused(
                    f"The `{use.row.axes}` for `{flow.name}` are not written as a tuple, or `PartitionSpec` is not "
                    f"imported. Add an empty `PartitionSpec()` for each of {listed(flow.variables)} by hand."
                )
            entry = f"{spelled}()"
        extra = [entry] * len(flow.variables)
        if isinstance(given, ast.Tuple):
            self.draft.add(text, _extend_sequence(text, given, extra))
            return
        counts = {len(u.node.args) for u in flow.uses if u.kind == "call" and u.direct and isinstance(u.node, ast.Call)}
        if len(counts) != 1 or not (given is None or (isinstance(given, ast.Constant) and given.value is not None)):
            raise Refused(
                f"The `in_axes` for the mapped `{flow.name}` are not written out. Write them as a tuple with one "
                "entry for "
                f"each argument, then pass {listed(flow.variables)} with `None`."
            )
        entry = "0" if given is None else text.of(given)
        value = "(" + ", ".join([entry] * counts.pop() + extra) + ")"
        if given is not None:
            self.draft.add(text, insertions.replace(text, given, value))
        else:
            self.draft.add(text, insertions.append_arguments(text, use.node, [f"{use.row.axes}={value}"]))

    def _extend_tuple(self, use: Use, flow: Flow) -> None:
        assert isinstance(use.node, ast.Call)
        assert use.row is not None
        assert use.row.slot is not None
        text, call = self.program.text_of[use.node], use.node
        keyword, position = use.row.slot
        given = next((k.value for k in call.keywords if k.arg == keyword), None)
        if given is None and len(call.args) > position:
            given = call.args[position]
        names = list(use.values)
        if isinstance(given, ast.Tuple):
            self.draft.add(text, _extend_sequence(text, given, names))
        elif given is None and len(call.args) == position:
            value = "(" + ", ".join(names) + ("," if len(names) == 1 else "") + ")"
            self.draft.add(text, insertions.append_arguments(text, call, [f"{keyword}={value}"]))
        else:
            raise Refused(
                f"`{keyword}` of `{flow.short(call.func)}` is not written as a tuple. Add {listed(names)} to it by "
                "hand."
            )

    def _check_other_objects(self, definition: ast.ClassDef, attribute: str, flow: Flow) -> None:
        """A field that is a child may hold no plain function any more, in no object of the class."""
        bound = [use.node for use in flow.uses if use.kind == "field"]
        owner = self.program.scope_at[definition]
        for load in self.program.loads(owner, definition.name):
            call = self.program.parent[load]
            if isinstance(call, ast.Call) and call.func is load and not is_unflatten_call(self.program, call):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                if not any(each in bound for each in given):
                    raise Refused(
                        f"Another `{definition.name}` is made on line {call.lineno}. Bind what its `{attribute}` gets "
                        "with "
                        f"`jax.tree_util.Partial` too, then make `{attribute}` a pytree child."
                    )
        for node in self.program.scope_at:
            match node:
                case ast.Attribute(attr=name, value=ast.Attribute(attr=owner_of)) if owner_of == attribute:
                    if name.startswith("__"):
                        raise Refused(
                            f"`{attribute}.{name}` is read (line {node.lineno}), which a bound function lacks."
                        )
                case _:
                    pass

    def emit_returns(self, returns: Sequence[Return]) -> None:
        """Let functions return values that are needed after their call, and bind them there."""
        for function in dict.fromkeys(r.function for r in returns):
            wanted = list(dict.fromkeys(r for r in returns if r.function is function))
            names = [r.variable for r in wanted]
            statement = wanted[0].statement
            text, calling = self.program.text_of[function], self.program.text_of[statement]
            last = function.body[-1]
            assert isinstance(last, ast.Return)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            added = "".join(f", {name}" for name in names)
            if last.value is None or (isinstance(last.value, ast.Constant) and last.value.value is None):
                raise Refused(
                    f"`{function.name}` returns nothing. Let it return {listed(names)}, and pass that at the later "
                    "calls."
                )
            if isinstance(last.value, ast.Tuple):
                if not isinstance(target, ast.Tuple) or len(target.elts) != len(last.value.elts) or not target.elts:
                    raise Refused(
                        f"`{function.name}` returns a tuple. Let it return {listed(names)} too, bind it where "
                        f"`{function.name}` is called, and pass it at the later calls."
                    )
                self.draft.add(text, _extend_tuple_text(text, last.value, names))
                self.draft.add(calling, _extend_tuple_text(calling, target, names))
            else:
                end = text.after_parentheses(
                    text.stop(last.value), text.after_parentheses(text.stop(last), len(text.text))
                )
                self.draft.add(text, [TextEdit(end, end, 5, added)])
                if isinstance(target, ast.Tuple):
                    self.draft.add(calling, insertions.wrap(calling, target, "(", ")" + added))
                elif target is not None:
                    end = calling.stop(target)
                    self.draft.add(calling, [TextEdit(end, end, 0, added)])
                else:
                    self._bind_statement(calling, statement, names, function)
            self.draft.returned += [(function.name, name) for name in names]

    def _bind_statement(
        self, text: Text, statement: ast.Assign | ast.Expr, names: Sequence[str], function: ast.FunctionDef
    ) -> None:
        assert isinstance(statement, ast.Expr)
        if len(names) != 1 or text.tree.body[-1] is statement:
            raise Refused(
                f"The result of `{function.name}` is not bound to a name. Let it return {listed(names)} too, bind it, "
                "and "
                f"pass it at the later calls."
            )
        self.draft.add(text, insertions.wrap(text, statement.value, f"{names[0]} = ", "[1]"))

    def _make_child(self, definition: ast.ClassDef, attribute: str, flow: Flow) -> None:
        if (definition.name, attribute) in self.draft.children:
            return
        edits = move_to_children(self.program, definition, attribute)
        if not edits:
            return  # it is a child already
        self.draft.children.append((definition.name, attribute))
        self._check_other_objects(definition, attribute, flow)
        self.draft.new_parameters |= {"children", "aux", "_"}
        for node, edit in edits:
            self.draft.add(self.program.text_of[node], [edit])


def _extend_sequence(text: Text, node: ast.Tuple, values: Sequence[str]) -> list[TextEdit]:
    if not node.elts or text.text[text.start(node)] != "(":
        raise Refused("A tuple of arguments is written in an unusual way. Extend it by hand.")
    end = text.after_parentheses(text.stop(node.elts[-1]), text.stop(node) - 1)
    return [TextEdit(end, end, 0, "".join(f", {value}" for value in values))]


def _numbered(function: FunctionNode) -> bool:
    """Whether a decorator counts arguments, so that none may be put before the others."""
    if isinstance(function, ast.Lambda):
        return False
    return any(isinstance(d, ast.Call) and d.keywords for d in function.decorator_list)


def _in_order_of_use(program: Program, function: FunctionNode, variables: Sequence[str]) -> list[str]:
    wanted = list(dict.fromkeys(variables))
    first: dict[str, int] = {}
    for number, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Name) and node.id in wanted:
            position = program.text_of[function].start(node)
            first[node.id] = min(first.get(node.id, position), position)
        del number
    return sorted(wanted, key=lambda name: first.get(name, 1 << 60))


def _extend_tuple_text(text: Text, node: ast.Tuple, values: Sequence[str]) -> list[TextEdit]:
    """Add elements after the last one of a tuple with or without parentheses."""
    has_parentheses = text.text[text.start(node)] == "("
    end = text.after_parentheses(text.stop(node.elts[-1]), text.stop(node) - has_parentheses)
    return [TextEdit(end, end, 5, "".join(f", {value}" for value in values))]


def _given(call: ast.Call, keyword: str, position: int) -> ast.expr | None:
    """The argument given by keyword or position, or None."""
    for each in call.keywords:
        if each.arg == keyword:
            return each.value
    return call.args[position] if position < len(call.args) else None


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
