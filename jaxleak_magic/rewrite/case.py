"""What the rules work on: one leak's facts, found again in the user's texts."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from jaxleak_magic.diagnose.model import CapturedValue, Leak, SourceText
from jaxleak_magic.rewrite.bound_children import make_fields_children
from jaxleak_magic.rewrite.custom_rules import custom_rule_of
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft, Lift
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.tangents import has_no_tangent

_CALLBACKS = frozenset(("jax.debug.callback", "jax.pure_callback", "jax.experimental.io_callback"))
_ARGUMENTS = ("tracer", "dict", "list", "tuple")
"""Types of captured values that JAX takes as arguments."""


@dataclass(frozen=True)
class Case:
    """One leak and the program it is in.

    Attributes:
        leak: the leak with its facts.
        program: all texts.
    """

    leak: Leak
    program: Program

    @classmethod
    def of(cls, leak: Leak, sources: Sequence[SourceText]) -> Case:
        """The case of a leak in the given texts."""
        names = tuple((fact.name, fact.full_name) for fact in leak.facts.names)
        objects = frozenset(fact.name for fact in leak.facts.objects)
        return cls(leak, _program(tuple(sources), names, objects))

    def require_values(self) -> None:
        """Refuse to hand a value out of a transform that computes none: it would come out as a shape and a dtype."""
        stack = self.leak.trace_stack
        if stack and stack[-1].transform.rpartition(".")[2] == "eval_shape":
            name = f"`{self.leak.variable}`" if self.leak.variable else "the value"
            raise Refused(
                f"`eval_shape` computes no values, so {name} would come out of it as a shape. "
                "Make what keeps it outside of `eval_shape`, where its value is known."
            )

    @cached_property
    def function(self) -> FunctionNode | None:
        """The innermost function that holds the value, or None where the leak has none or it is not found for sure."""
        if not self.leak.facts.captured:
            return self._host_function()
        fact = self.leak.facts.captured[0]
        return self.program.function_at(fact.name, fact.place, fact.variable)

    def _host_function(self) -> FunctionNode | None:
        """The one function that closes over the value and is given to a host callback, or has a derivative rule.

        The callback's own list or log may keep the value, so that no closure is on the path.
        """
        variable = self.leak.variable
        if self.leak.mechanism in ("custom_vjp_closure", "other") and variable is not None:
            return self._function_with_rule(variable)
        if self.leak.mechanism != "callback" or variable is None:
            return None
        found: list[FunctionNode] = []
        for function in self.program.functions():
            if variable in self.program.free_names(function) and self.program.is_given_to(function, _CALLBACKS):
                found.append(function)
        return found[0] if len(found) == 1 else None

    def _function_with_rule(self, variable: str) -> FunctionNode | None:
        """The one function with a derivative rule that closes over the value, itself or in its rule.

        JAX calls the rules itself, so that the path may not show them.
        """
        found: dict[FunctionNode, FunctionNode] = {}
        for function in self.program.functions():
            if variable in self.program.free_names(function):
                rule = custom_rule_of(self.program, function)
                if rule is not None:
                    found.setdefault(rule.primal, function)
        return next(iter(found.values())) if len(found) == 1 else None

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Its free variables that held tracers, the leaked one first."""
        if self.function is None:
            return ()
        free = self.program.free_names(self.function)
        first = self.leak.facts.captured[0].variable if self.leak.facts.captured else self.leak.variable or ""
        wanted = (first, *self.leak.facts.all_captured)
        return tuple(name for name in dict.fromkeys(wanted) if name in free)

    @cached_property
    def fields(self) -> frozenset[tuple[str, str]]:
        """(class, attribute) pairs on the leak's path."""
        return frozenset((fact.name, fact.attribute) for fact in self.leak.facts.attributes)

    @cached_property
    def lifted(self) -> Draft:
        """The lift of all variables out of the function; three rules offer it, by what it came to.

        Raises:
            Refused: where the meaning would not certainly stay.
        """
        assert self.function is not None
        self._require_known_closure(self.function)
        held = self._held()
        no_floats = frozenset(v for v in self.variables if not _is_float(held[v].dtype if v in held else None))
        no_arguments = frozenset(v for v in self.variables if v in held and held[v].type not in _ARGUMENTS)
        lift = Lift(
            self.program,
            self.function,
            self.variables,
            self.fields,
            no_floats,
            no_arguments,
            only_leaking=True,
            no_tangents=frozenset(v for v in self.variables if self._has_no_tangent(v, held)),
        )
        draft = lift.run()
        if self.leak.facts.in_aux_data and draft.bound and not draft.children:
            make_fields_children(self.program, self.leak.facts.attributes, draft)
        if draft.bound:
            self._require_no_outer_closure(draft)
        return draft

    def _require_no_outer_closure(self, draft: Draft) -> None:
        """Refuse to bind a value where the bound function is itself closed over by what keeps it: so is the value."""
        for fact in self.leak.facts.captured[1:]:
            outer = self.program.function_at(fact.name, fact.place, fact.variable)
            if outer is None or outer not in draft.lifted:
                raise Refused(
                    f"`{fact.name}` closes over `{fact.variable}`, and with it over {listed(self.variables)}. Let "
                    f"`{fact.name}` take {listed(self.variables)} as an argument too, and pass it on."
                )

    def _require_known_closure(self, function: FunctionNode) -> None:
        """Refuse where another variable of the function may be traced too, and no run has shown what it holds."""
        if not self.leak.facts.captured_by_syntax:
            return
        for name in sorted(self.program.free_names(function) - set(self.variables)):
            owner = self.program.own_scope[function].lookup(name)
            sites = self.program.sites(owner, name) if owner is not None and owner.kind == "function" else []
            values = [self.program.assigned_value(s) for s in sites if s.kind not in ("def", "class", "import")]
            if any(not isinstance(value, ast.Constant) for value in values):
                raise Refused(
                    f"`{function_name(self.program, function)}` closes over `{name}` too, which may be traced as well. "
                    f"Pass {listed(self.variables)} as an argument, and `{name}` if it is computed from traced values."
                )

    def _has_no_tangent(self, variable: str, held: dict[str, CapturedValue]) -> bool:
        assert self.function is not None
        owner = self.program.own_scope[self.function].lookup(variable)
        dtype = held[variable].dtype if variable in held else None
        return owner is not None and has_no_tangent(self.program, self.leak, owner, variable, dtype)

    @property
    def lift_title(self) -> str:
        """The lift in the user's words."""
        function = self.function
        if "lifted" in self.__dict__ and function not in self.lifted.lifted:
            function = self.lifted.lifted[0]  # the function of the facts may keep its closure, one inside it may not
        name = function_name(self.program, function) if function is not None else ""
        what = "an argument" if len(self.variables) == 1 else "arguments"
        return f"Lift {listed(self.variables)} to {what} of `{name}`"

    def _held(self) -> dict[str, CapturedValue]:
        """What the captured variables held, as far as the facts say."""
        held = {value.name: value for value in self.leak.facts.values}
        if not self.leak.facts.captured:
            return held
        first = self.leak.facts.captured[0].variable
        if first not in held:
            links = self.leak.chains[0] if self.leak.chains else ()
            before = links[: next((i for i, link in enumerate(links) if link.kind == "closure_cell"), 0)]
            in_containers = all(link.kind in ("item", "key") for link in before)
            kind = "tracer" if not before else "dict" if in_containers else "object"
            held[first] = CapturedValue(first, kind, self.leak.tracer.dtype if kind == "tracer" else None)
        return held


@lru_cache(maxsize=1)
def _program(sources: tuple[SourceText, ...], names: tuple[tuple[str, str], ...], objects: frozenset[str]) -> Program:
    """The program of a report's texts, made once for all of its leaks. Rules never change it."""
    return Program(sources, dict(names), objects)


def _is_float(dtype: str | None) -> bool:
    return dtype is not None and dtype.startswith(("float", "bfloat", "complex"))
