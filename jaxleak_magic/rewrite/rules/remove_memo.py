"""A cache keeps no traced value: a constant is computed eagerly, what depends on an argument is not kept."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.memos import (
    PROPERTIES,
    compute_once,
    drop_decorator,
    memo_of,
    without_cache,
)
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.traced_inputs import TracedInputs


def propose(case: Case) -> tuple[str, Draft] | None:
    """Eager computation where nothing traced goes in; else no cache."""
    memo = memo_of(case)
    if memo is None:
        return None
    draft = Draft()
    body: list[ast.stmt | ast.expr] = list(memo.guard.body if memo.guard is not None else memo.function.body)
    if memo.write is not None and memo.write.value is not None:
        body = [memo.write.value if statement is memo.write.statement else statement for statement in body]
    # Where the run has shown that nothing traced went in, a parameter is known if each call passes something known.
    known_calls = bool(case.leak.facts.constant)
    traced = TracedInputs(case.program, memo.function, known_calls=known_calls).traced_name(body)
    name = memo.function.name
    if traced is None:
        compute_once(case.program, memo, draft)
        return f"Compute what `{name}` keeps outside of the transform", draft
    if memo.decorator is not None:
        if case.program.qualified(memo.decorator) in PROPERTIES:
            raise Refused(
                f"`{name}` is kept after its first use, and it depends on `{traced}`, which may be traced. Make it a "
                "plain property, or compute it where the object is made."
            )
        drop_decorator(case.program, memo, draft)
        return f"Take the cache off `{name}`", draft
    local = without_cache(case.program, memo, draft)
    return f"Compute `{local}` at each call of `{name}`", draft


def _title(case: Case) -> str:
    memo = memo_of(case)
    return f"Keep no traced value in `{memo.function.name}`" if memo is not None else "Keep no traced value"


_IMPORTS = "import functools\nimport jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "an item that is looked up with get, for a size that each call knows",
        _IMPORTS
        + """\
matrices = {}

def dct_matrix(n):
    matrix = matrices.get(n)
    if matrix is None:
        k = jnp.arange(n)[:, None]
        matrix = jnp.cos(jnp.pi * k * k.T / n)
        matrices[n] = matrix
    return matrix

@jax.jit
def transform(block):
    return dct_matrix(block.shape[0]) @ block
""",
        _IMPORTS
        + """\
matrices = {}

def dct_matrix(n):
    matrix = matrices.get(n)
    if matrix is None:
        with jax.ensure_compile_time_eval():
            k = jnp.arange(n)[:, None]
            matrix = jnp.cos(jnp.pi * k * k.T / n)
            matrices[n] = matrix
    return matrix

@jax.jit
def transform(block):
    return dct_matrix(block.shape[0]) @ block
""",
        stored_line=12,
        variable="matrix",
        constant_lines=(10, 11),
    ),
    Example(
        "a property that is computed once, from nothing traced",
        _IMPORTS
        + """\
class Grid:
    def __init__(self, n):
        self.n = n

    @functools.cached_property
    def table(self):
        # the lower triangle
        rows = jnp.tri(self.n)
        return 2.0 * rows

grid = Grid(3)
jax.jit(lambda v: grid.table @ v)(jnp.ones(3))
""",
        _IMPORTS
        + """\
class Grid:
    def __init__(self, n):
        self.n = n

    @functools.cached_property
    def table(self):
        # the lower triangle
        with jax.ensure_compile_time_eval():
            rows = jnp.tri(self.n)
            return 2.0 * rows

grid = Grid(3)
jax.jit(lambda v: grid.table @ v)(jnp.ones(3))
""",
        stored_line=9,
        variable="table",
    ),
    Example(
        "an attribute that is filled at its first use",
        _IMPORTS
        + """\
class Problem:
    scale = None

    def transform(self, u):
        if self.scale is None:
            self.scale = jnp.std(jnp.arange(5.0))
        return self.scale * u
""",
        _IMPORTS
        + """\
class Problem:
    scale = None

    def transform(self, u):
        if self.scale is None:
            with jax.ensure_compile_time_eval():
                self.scale = jnp.std(jnp.arange(5.0))
        return self.scale * u
""",
        stored_line=10,
        variable="scale",
    ),
    Example(
        "a cache by key of what depends on an argument",
        _IMPORTS
        + """\
shifts = {}

def expect(theta, tag):
    if tag not in shifts:
        shifted = theta + {"plus": 1.5, "minus": -1.5}[tag]
        shifts[tag] = shifted
    return jnp.cos(shifts[tag])
""",
        _IMPORTS
        + """\
shifts = {}

def expect(theta, tag):
    shifted = theta + {"plus": 1.5, "minus": -1.5}[tag]
    return jnp.cos(shifted)
""",
        stored_line=10,
        variable="shifted",
    ),
    Example(
        "a function whose results are kept by argument",
        _IMPORTS
        + """\
@functools.lru_cache(maxsize=8)
def area(radius):
    return jnp.pi * radius ** 2
""",
        _IMPORTS
        + """\
def area(radius):
    return jnp.pi * radius ** 2
""",
        stored_line=5,
        variable="area",
    ),
    Example(
        "a cache that is read elsewhere too",
        _IMPORTS
        + """\
shifts = {}

def expect(theta, tag):
    if tag not in shifts:
        shifted = theta + 1.5
        shifts[tag] = shifted
    return jnp.cos(shifts[tag])

def last():
    return shifts["plus"]
""",
        refusal="is read on line 14 too",
        stored_line=10,
        variable="shifted",
    ),
)

RULE = Rule("remove_memo", propose, _title, EXAMPLES)
