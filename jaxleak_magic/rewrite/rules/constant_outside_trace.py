"""A kept value into which nothing traced goes is computed at once, so that it is an array and no tracer."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.eager_block import compute_eagerly
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_case import text_at
from jaxleak_magic.rewrite.traced_inputs import TracedInputs

_KEPT_BY_VALUE = (
    "closure_in_aux_data", "closure_escape", "pytree_static_field", "custom_vjp_closure", "callback", "partial_object",
)  # fmt: skip
"""Mechanisms by which a function or object is made with the value. What a call writes may be state: a counter that is
computed eagerly would count compilations.
"""


def propose(case: Case) -> tuple[str, Draft] | None:
    """``with jax.ensure_compile_time_eval():`` around the statements that make the constant."""
    if not case.leak.facts.constant or case.leak.mechanism not in _KEPT_BY_VALUE:
        return None
    found = _statements(case.program, case.leak.facts.constant)
    if found is None:
        return None
    function, statements = found
    traced = TracedInputs(case.program, function, known_calls=True).traced_name(statements)
    if traced is not None:
        raise Refused(
            f"Nothing traced went into the value in this run, but `{traced}` may be traced in another call of "
            f"`{function_name(case.program, function)}`. Compute it with numpy, or before the transform."
        )
    draft = Draft()
    compute_eagerly(case.program, function, statements, draft)
    return _title(case), draft


def _title(case: Case) -> str:
    name = f"`{case.leak.variable}`" if case.leak.variable else "the value"
    return f"Compute {name} at once: nothing traced goes into it"


def _statements(program: Program, places: Sequence[Place]) -> tuple[FunctionNode, list[ast.stmt]] | None:
    """The statements of one block that stand at the places, one after the other, and their function."""
    found: list[ast.stmt] = []
    for place in places:
        statement = _simple_statement_at(program, place)
        if statement is None:
            return None
        if statement not in found:
            found.append(statement)
    above = program.parent[found[0]]
    function = program.enclosing_function(found[0])
    if function is None:
        return None
    for _, block in ast.iter_fields(above):
        if isinstance(block, list) and found[0] in block:
            numbers = [block.index(s) if s in block else -1 for s in found]
            if -1 in numbers or max(numbers) - min(numbers) != len(numbers) - 1:
                return None
            return function, block[min(numbers) : max(numbers) + 1]
    return None


def _simple_statement_at(program: Program, place: Place) -> ast.Assign | ast.AnnAssign | ast.Return | None:
    text = text_at(program, place)
    for node, home in program.text_of.items():
        if home is not text or not isinstance(node, ast.Assign | ast.AnnAssign | ast.Return):
            continue
        if node.lineno <= place.line <= (node.end_lineno or node.lineno):
            return node
    return None


_IMPORTS = "import jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "a constant that a returned function closes over",
        _IMPORTS
        + """\
def ramp_schedule(points):
    edges = jnp.asarray(points)
    widths = jnp.diff(edges)

    def ramp(count):
        return jnp.sum(widths * (count >= edges[1:]))

    return ramp

@jax.jit
def start(x):
    return State(x, ramp_schedule([0, 5, 10]))
""",
        _IMPORTS
        + """\
def ramp_schedule(points):
    with jax.ensure_compile_time_eval():
        edges = jnp.asarray(points)
        widths = jnp.diff(edges)

    def ramp(count):
        return jnp.sum(widths * (count >= edges[1:]))

    return ramp

@jax.jit
def start(x):
    return State(x, ramp_schedule([0, 5, 10]))
""",
        variable="widths",
        constant_lines=(5, 6),
    ),
    Example(
        "a parameter that is traced in another call",
        _IMPORTS
        + """\
def ramp_schedule(points):
    edges = jnp.asarray(points)
    return lambda count: jnp.sum(count >= edges)

@jax.jit
def start(x):
    return State(x, ramp_schedule([0, 5, 10]))

@jax.jit
def other(x):
    return ramp_schedule(x)(1.0)
""",
        refusal="`points` may be traced",
        variable="edges",
        constant_lines=(5,),
    ),
)

RULE = Rule("constant_outside_trace", propose, _title, EXAMPLES)
