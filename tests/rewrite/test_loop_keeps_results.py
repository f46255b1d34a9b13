"""Generated loops compute the same after JAX runs them, and are refused where that is not certain."""

from __future__ import annotations

import collections
import random
import re
from typing import Any

import pytest

from jaxleak_magic.diagnose.model import Note, SourceText
from jaxleak_magic.rewrite import propose_note_fixes

HEADER = """\
import jax
import jax.numpy as jnp

COUNT = 3
table = jnp.linspace(0.1, 0.9, 6)

def twice(a):
    b = a + a
    return b

def loss(a, b):
    return jnp.mean((a - b) ** 2)

"""

ARGUMENTS = (
    "1.5", "-0.5", "2", "jnp.ones(3)", "jnp.zeros(6)", "jnp.arange(3)", "jnp.arange(3.0)", "jnp.ones((2, 3))",
    "jnp.array([0.5, 1.0, 2.0])", "table", "jnp.ones(3, dtype=jnp.float16)", "jnp.full((3,), 0.25)",
    "jax.random.normal(jax.random.key(1), (3,))", "jnp.ones((3, 3))",
)  # fmt: skip
RANGES = (
    "range(3)",
    "range(COUNT)",
    "range(1, 5)",
    "range(2, 6)",
    "range(0)",
    "range(-1, 2)",
    "range(4, 2)",
    "range(0, 6, 2)",
)
EXPRESSIONS = """
    A * 0.5 | A + B | A - B * 0.1 | jnp.sin(A) | jnp.tanh(A) + 1 | A / 3 | A * 2 | A ** 2 | -A | A * c | A * jnp.mean(B)
    A + i | A * (i + 1) | A / (i + 2) | 0.1 * i + A | A * table[i] | twice(A) | jax.grad(loss)(A, B) | A + A.sum()
    jnp.maximum(A, B) | jnp.ones_like(A) | jnp.roll(A, 1) | A.at[i].set(0.5) | (lambda z: z * 0.5)(A)
    jnp.sum(A) | i | 1 | 0.5 | table[i] + A[0] | A[i] | A.at[0].add(B[1]) | A[1:] | A @ B | jnp.where(A > 0, A, B)
    A if i > 1 else B | jnp.zeros(3) | A.T + B | i * i + A | jnp.dot(A, B) | jnp.linalg.norm(A) * B
    A.astype(jnp.float32) | float(i) + A
""".replace("\n", "|").split("|")
EXPRESSIONS = [stripped for text in EXPRESSIONS if (stripped := text.strip())]
KEPT = 24
"""How many of them, from the first on, keep the shape of ``A``, mostly."""
NAMES = ("x", "y", "t", "u")


def program(seed: int) -> tuple[str, int]:
    """A program with a loop in a compiled function, and the loop's line. It leaves ``values``."""
    draw = random.Random(seed)

    def expression() -> str:
        text = draw.choice(EXPRESSIONS[:KEPT] if draw.random() < 0.85 else EXPRESSIONS)
        one = draw.choice(NAMES[:3])
        return re.sub("[AB]", lambda m: one if m[0] == "A" else draw.choice((one, *NAMES)), text)

    def assignment() -> str:
        kind = draw.random()
        if kind < 0.2:
            return f"{draw.choice(NAMES)} {draw.choice('+-*')}= {expression()}"
        if kind < 0.35:
            one, other = draw.sample(NAMES, 2)
            return f"{one}, {other} = {expression()}, {expression()}"
        return f"{draw.choice(NAMES)} = {expression()}  # {draw.randrange(9)}"

    lines = ["@jax.jit", "def f(x, y):", "    c = 0.25"]
    lines += [f"    {name} = {draw.choice(['0.0', 'x', 'y * 0.5', 'jnp.zeros(3)', '1'])}" for name in NAMES[2:]]
    if draw.random() < 0.15:
        lines.append("    reads = lambda: x")
    line = len(HEADER.splitlines()) + len(lines) + 1
    lines.append(f"    for i in {draw.choice(RANGES)}:")
    lines += [f"        {assignment()}" for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.1:
        lines.append("        y = y  # the end")
    results = draw.sample(NAMES, draw.randint(1, 4)) + (["i"] if draw.random() < 0.05 else [])
    lines += [f"    return {', '.join(results)}", "", "values = []"]
    for _ in range(draw.randint(1, 2)):
        one = draw.choice(ARGUMENTS)
        lines.append(f"values.append(f({one}, {one if draw.random() < 0.7 else draw.choice(ARGUMENTS)}))")
    return HEADER + "\n".join(lines) + "\n", line


def run(text: str) -> list[Any]:
    """What a program leaves in ``values``, as NumPy arrays."""
    import jax
    import numpy as np

    space: dict[str, Any] = {}
    exec(compile(text, "<generated>", "exec"), space)
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(space["values"])]


def compare(seeds: range) -> collections.Counter[str]:
    """Rewrite loops and run them before and after; gives how many had which fate."""
    import jax
    import numpy as np

    fates: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        if seed % 200 == 0:
            jax.clear_caches()
        text, line = program(seed)
        source = SourceText(text, file="cell.py")
        (fix,) = propose_note_fixes(Note("unrolled_loop", line, ""), [source], source)
        if fix.source is None:
            fates["refused"] += 1
            continue
        both = f"seed {seed}\n{text}\n-----\n{fix.source}"
        try:
            before = run(text)
        except Exception as error:  # no report would have a note then
            fates[f"raised before: {type(error).__name__}"] += 1
            continue
        try:
            after = run(fix.source)
        except Exception as error:
            raise AssertionError(f"{error!r} after the rewrite: {both}") from error
        assert len(before) == len(after), both
        for one, other in zip(before, after, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype), both
            assert np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True), both
        fates["same"] += 1
    return fates


def test_a_sample_of_loops():
    fates = compare(range(400))
    assert fates["same"] >= 10, fates


@pytest.mark.nightly
def test_many_loops():
    fates = compare(range(10_000, 30_000))
    assert fates["same"] >= 500, fates
