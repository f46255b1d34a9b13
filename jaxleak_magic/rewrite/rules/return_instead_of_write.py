"""A value that a function stores outside of itself becomes one of its results, bound at each call."""

from __future__ import annotations

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.state_case import threaded, title_of


def propose(case: Case) -> tuple[str, Draft] | None:
    """The threading, where no old value has to come in."""
    found = threaded(case)
    if found is None or found.comes_in:
        return None
    return found.title, found.draft


_IMPORTS = "import jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "a global that a compiled function assigns",
        _IMPORTS
        + """\
flow = None

@jax.jit
def pump(q):
    global flow
    flow = jnp.sqrt(q)  # kept for the plot
    return flow * 2

result = pump(4.0)
""",
        _IMPORTS
        + """\
flow = None

@jax.jit
def pump(q):
    flow = jnp.sqrt(q)  # kept for the plot
    return flow * 2, flow

result, flow = pump(4.0)
""",
        stored_line=9,
        variable="flow",
    ),
    Example(
        "one of several ways to return, and a way that falls off the end",
        _IMPORTS
        + """\
flow = None

@jax.jit
def pump(q):
    global flow
    flow = jnp.sqrt(q)
    if q.ndim:
        return flow * 2

result = pump(4.0)
""",
        refusal="can end without a return statement",
        stored_line=9,
        variable="flow",
    ),
)

RULE = Rule("return_instead_of_write", propose, title_of, EXAMPLES)
