"""The lift: a closed-over value becomes an argument of the function, passed wherever the function is called."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxleak_magic.rewrite.custom_rules import CustomRule, RuleEdits, custom_rule_of
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.flow import Flow, function_name
from jaxleak_magic.rewrite.lift_conditions import check_calls, check_variable
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.reaching import Return
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.returned_values import emit_returns
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.use_edits import UseEdits


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
                check_variable(self.program, self.function, name, variable, owner)
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
            UseEdits(self.program, self.draft).emit(flow)
            if rule is not None:
                self._emit_rules(flow, rule)
            returns += [r.returned for r in flow.reached if r.returned is not None]
            self.draft.kept_values.update(each.text for each in flow.reached)
            for carrier in flow.carriers:
                self._carry(carrier, flow, waiting)
        emit_returns(self.program, self.draft, returns)
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
        if not leaking and self._is_given_to_a_library():
            return {self.function: self.variables}
        if not leaking:
            name = function_name(self.program, self.function)
            raise Refused(
                f"JAX takes care of what `{name}` closes over at each place where it is used, so it is not sure which "
                f"function keeps {listed(self.variables)}. Pass it as an argument wherever a function takes it by "
                f"closure."
            )
        self.function = next(iter(leaking))
        return leaking

    def _is_given_to_a_library(self) -> bool:
        """Whether a library's solver takes the function, and ``args`` beside it: not all look into closures."""
        probe = Flow(self.program, self.function, self.variables, {}, probing=True)
        probe.run()
        return any(use.row is not None and use.row.slot_parameter is not None for use in probe.uses)

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
            check_variable(self.program, function, name, variable, owner)
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
        check_calls(self.program, flow)
        if not flow.uses and not flow.stores:
            raise Refused(f"No call of `{name}` was found, so there is no place to pass {listed(variables)}.")
        return flow

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


def _in_order_of_use(program: Program, function: FunctionNode, variables: Sequence[str]) -> list[str]:
    wanted = list(dict.fromkeys(variables))
    first: dict[str, int] = {}
    for number, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Name) and node.id in wanted:
            position = program.text_of[function].start(node)
            first[node.id] = min(first.get(node.id, position), position)
        del number
    return sorted(wanted, key=lambda name: first.get(name, 1 << 60))
