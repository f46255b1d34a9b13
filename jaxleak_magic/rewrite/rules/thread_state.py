"""State that a function reads and writes goes in as an argument and comes out as a result."""

from __future__ import annotations

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.drawing import draw
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.state_case import threaded, title_of


def propose(case: Case) -> tuple[str, Draft] | None:
    """The threading, where an old value has to come in; else what is drawn from the state goes in."""
    try:
        found = threaded(case)
    except Refused:
        drawn = draw(case)
        if drawn is None:
            raise
        return drawn
    if found is None:
        return draw(case)
    return (found.title, found.draft) if found.comes_in else None


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
        "a key that a method draws, also for a branch",
        _IMPORTS
        + """\
class Source:
    def __init__(self, seed):
        self.state = jax.random.key(seed)

    def draw(self):
        self.state, now = jax.random.split(self.state)
        return now

source = Source(0)

def noisy(x, scale=0.1):
    return jax.lax.cond(x.sum() > 0, lambda v: v + scale * jax.random.normal(source.draw(), v.shape), lambda v: v, x)

step = jax.jit(lambda x: noisy(jnp.sin(x)))
step(jnp.ones(3))
""",
        _IMPORTS
        + """\
class Source:
    def __init__(self, seed):
        self.state = jax.random.key(seed)

    def draw(self):
        self.state, now = jax.random.split(self.state)
        return now

source = Source(0)

def noisy(x, scale=0.1, *, key):
    return jax.lax.cond(x.sum() > 0, lambda v: v + scale * jax.random.normal(key, v.shape), lambda v: v, x)

step = jax.jit(lambda x, key: noisy(jnp.sin(x), key=key))
step(jnp.ones(3), source.draw())
""",
        stored_line=9,
        variable="state",
    ),
    Example(
        "a key that is drawn in a loop",
        _IMPORTS
        + """\
key = jax.random.key(0)

def draw():
    global key
    key, now = jax.random.split(key)
    return now

@jax.jit
def walk(x):
    return jax.lax.fori_loop(0, 3, lambda i, x: x + jax.random.normal(draw()), x)

walk(0.0)
""",
        refusal="Call `draw` outside of the transform",
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
