"""State that a function reads and writes goes in as an argument and comes out as a result."""

from __future__ import annotations

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.state_case import threaded, title_of


def propose(case: Case) -> tuple[str, Draft] | None:
    """The threading, where an old value has to come in."""
    found = threaded(case)
    if found is None or not found.comes_in:
        return None
    return found.title, found.draft


_IMPORTS = "import jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "a random key that is split inside",
        _IMPORTS
        + """\
key = jax.random.key(7)

def roll(bonus):
    global key
    key, now = jax.random.split(key)
    return jax.random.randint(now, (), 1, 7) + bonus

first = jax.jit(roll)(0)
""",
        _IMPORTS
        + """\
key = jax.random.key(7)

def roll(bonus, key):
    key, now = jax.random.split(key)
    return jax.random.randint(now, (), 1, 7) + bonus, key

first, key = jax.jit(roll)(0, key)
""",
        stored_line=8,
        variable="key",
    ),
    Example(
        "a mapped function, in which each row would go on from the same state",
        _IMPORTS
        + """\
total = jnp.float32(0.0)

def add(x):
    global total
    total = total + x
    return total

sums = jax.vmap(add)(jnp.arange(3.0))
""",
        refusal="each row would start from the same `total`",
        stored_line=8,
        variable="total",
    ),
)

RULE = Rule("thread_state", propose, title_of, EXAMPLES)
