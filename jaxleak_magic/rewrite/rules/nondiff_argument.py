"""An array among the ``nondiff_argnums`` of a ``custom_vjp`` function becomes an ordinary argument and a residual.

JAX's own documentation asks for it: ``nondiff_argnums`` is for functions and other values that are no arrays.
"""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.custom_rules import CustomRule, RuleEdits, custom_rule_of
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.imports import drop_unused_import
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.tangents import has_no_tangent


def propose(case: Case) -> tuple[str, Draft] | None:
    """The argument that the statement that stored the value passes by ``nondiff_argnums``."""
    place, program = case.leak.stored, case.program
    if place is None or case.leak.facts.captured:
        return None
    for call, text in program.text_of.items():
        home = (text.source.cell, text.source.file) == (place.cell, place.file)
        if not home or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        function = program.definition(call.func)
        if not call.lineno <= place.line <= (call.end_lineno or call.lineno) or not isinstance(
            function, ast.FunctionDef
        ):
            continue
        rule = custom_rule_of(program, function)
        if rule is None or rule.primal is not function or not rule.reverse:
            continue
        numbers = [n for n in rule.nondiff if _passes(call, n, case.leak.variable)]
        if len(numbers) == 1:
            return _as_ordinary(case, rule, call, numbers[0])
    return None


def _passes(call: ast.Call, number: int, variable: str | None) -> bool:
    plain = not any(isinstance(argument, ast.Starred) for argument in call.args)
    argument = call.args[number] if plain and 0 <= number < len(call.args) else None
    return isinstance(argument, ast.Name) and argument.id == variable


def _as_ordinary(case: Case, rule: CustomRule, call: ast.Call, number: int) -> tuple[str, Draft]:
    program, argument = case.program, call.args[number]
    assert isinstance(argument, ast.Name)
    name = rule.primal.name
    parameter = rule.primal.args.args[number].arg
    owner = program.owner(argument)
    used = bool(program.loads(program.own_scope[rule.primal], parameter))
    if used and (owner is None or not has_no_tangent(program, case.leak, owner, argument.id, case.leak.tracer.dtype)):
        raise Refused(
            f"`{parameter}` of `{name}` is an array among the `nondiff_argnums`, and something may be differentiated "
            f"with respect to it. Make it an ordinary argument, keep it in the residuals, and return its cotangent."
        )
    backward = rule.rules[1]
    needed = bool(_loads(program, backward, parameter))
    draft = Draft(lifted=[backward], variables=[parameter], new_parameters={"residuals"})
    for node, edit in RuleEdits(program, rule, [parameter]).differentiable(number, needed):
        draft.add(program.text_of[node], [edit])
    if len(rule.nondiff) == 1 and isinstance(rule.decorator, ast.Call):
        drop_unused_import(program, draft, rule.decorator.func)
    return f"Make `{parameter}` an ordinary argument of `{name}`, with no derivative", draft


def _loads(program: Program, backward: ast.AST, parameter: str) -> list[ast.Name]:
    return program.loads(program.own_scope[backward], parameter)


_BEFORE = """\
import jax
from functools import partial

@partial(jax.custom_vjp, nondiff_argnums=(0,))
def soften(temp, x):
    return x / temp

def fwd(temp, x):
    return x / temp, ()

def bwd(temp, res, g):
    return (g / temp,)

soften.defvjp(fwd, bwd)

@jax.jit
def energy(temp, x):
    return soften(temp, x) ** 2

jax.grad(energy, argnums=1)(0.5, 3.0)
"""

_WITH_SIGN = (
    _BEFORE.replace("nondiff_argnums=(0,)", "nondiff_argnums=(0, 1)")
    .replace("temp, x)", "temp, sign, x)", 2)
    .replace("bwd(temp, ", "bwd(temp, sign, ")
    .replace("return x / temp", "return sign * x / temp")
    .replace("(g / temp,)", "(sign * g / temp,)")
    .replace("return soften(temp, x)", "return soften(temp, -1, x)")
)

EXAMPLES = (
    Example(
        "an array that only stands in the way of the derivative",
        _BEFORE,
        _BEFORE.replace("from functools import partial\n", "")
        .replace("@partial(jax.custom_vjp, nondiff_argnums=(0,))", "@jax.custom_vjp")
        .replace("x / temp, ()", "x / temp, temp")
        .replace("bwd(temp, res, g)", "bwd(temp, g)")
        .replace("(g / temp,)", "(None, g / temp)"),
        variable="temp",
        stored_line=18,
    ),
    Example(
        "one of two that stand in the way",
        _WITH_SIGN,
        _WITH_SIGN.replace("nondiff_argnums=(0, 1)", "nondiff_argnums=(1,)")
        .replace("x / temp, ()", "x / temp, temp")
        .replace("bwd(temp, sign, res, g)", "bwd(sign, temp, g)")
        .replace("(sign * g / temp,)", "(None, sign * g / temp)"),
        variable="temp",
        stored_line=18,
    ),
    Example(
        "an array that may be differentiated with respect to",
        _BEFORE,
        refusal="something may be differentiated with respect to it",
        variable="temp",
        stored_line=18,
        transforms=("grad",),
    ),
)

RULE = Rule(
    "lift_closure_to_argument",
    propose,
    lambda case: f"Make `{case.leak.variable}` an ordinary argument",
    EXAMPLES,
)
