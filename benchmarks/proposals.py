"""Proposing a rewrite for a cell of 500 lines, beside what Python takes to compile the same cell.

python benchmarks/proposals.py [--lines 500] [--repeat 15]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.rewrite import propose_fixes
from tests.rewrite.made_up_leaks import made_up_leak

LAYER = """
def layer{0}(params, x, scale=1.0):
    def inner(h, w):
        z = jnp.tanh(h @ w) * scale
        return jnp.where(z > 0, z, 0.1 * z) + sum(h.mean() for _ in range(3))
    def loss(p, q):
        return jnp.sum((inner(x, p["w"]) - q) ** 2) + [k for k in (1, 2)][0]
    value, slope = jax.value_and_grad(loss)(params, x)
    return jax.vmap(inner, in_axes=(0, None))(x, params["w"]), value, slope
"""
LEAK = """
def adapt(start, features, labels):
    def error(weights, anchor):
        return jnp.mean((features @ weights - labels) ** 2) + jnp.sum(anchor)
    solver = jaxopt.GradientDescent(error)
    return solver.run(start, start).params
"""


def cell(lines: int) -> str:
    text, number = "import jax\nimport jax.numpy as jnp\nimport jaxopt\n", 0
    while text.count("\n") < lines - LEAK.count("\n"):
        number += 1
        text += LAYER.format(number)
    return text + LEAK


def median_ms(work: Callable[[int], object], repeat: int) -> float:
    times: list[float] = []
    for turn in range(repeat):
        begun = time.perf_counter()
        work(turn)
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    text = cell(options.lines)
    # Another text each time: nothing of a run before may be used again.
    sources = [SourceText(f"{text}# {turn}\n", file="cell.py") for turn in range(options.repeat)]
    leak = made_up_leak(sources[0], "error", ("features", "labels"))

    def propose(turn: int) -> None:
        (fix,) = propose_fixes(leak, [sources[turn]], sources[turn])
        assert fix.refusal is None, fix.refusal

    compiled = median_ms(lambda turn: compile(sources[turn].text, "cell.py", "exec"), options.repeat)
    proposed = median_ms(propose, options.repeat)
    lines = text.count("\n")
    print(f"{lines} lines: proposal {proposed:.0f} ms, compile {compiled:.1f} ms, ratio {proposed / compiled:.1f}")


if __name__ == "__main__":
    main()
