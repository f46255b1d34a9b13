"""A call of a `PytreeClosure` beside the plain function and `jax.closure_convert`, eager and compiled.

python benchmarks/pytree_closure.py [--repeat 200] [--arrays 4]

Prints for each way the median time of making it, of one eager call, and of one call under ``jit``, and the ratio to the
plain function in the same run. The eager call computes on arrays of 1,000 numbers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp

from jaxleak_magic import PytreeClosure


def make(arrays: list[Any]) -> Callable[[Any], Any]:
    """A function that captures each array in a cell of its own, through one more function."""
    function: Callable[[Any], Any] = jnp.tanh
    for array in arrays:
        function = _scaled(function, array)
    return function


def _scaled(inner: Callable[[Any], Any], array: Any) -> Callable[[Any], Any]:
    return lambda x: inner(x * array)


def seconds(action: Callable[[], Any], repeat: int) -> float:
    """Median time of one run."""
    jax.block_until_ready(action())
    times: list[float] = []
    for _ in range(repeat):
        begun = time.perf_counter()
        jax.block_until_ready(action())
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--arrays", type=int, default=4)
    args = parser.parse_args()
    arrays = [jnp.linspace(0.0, number + 1.0, 1000) for number in range(args.arrays)]
    x = jnp.ones(1000)
    function = make(arrays)
    closure = PytreeClosure(function)

    @jax.jit
    def call(carried: PytreeClosure, x: Any) -> Any:
        return carried(x)

    compiled = jax.jit(function)
    converted, captured = jax.closure_convert(function, x)
    compiled_conversion = jax.jit(converted)
    rows = [
        ("plain function", lambda: make(arrays), lambda: function(x), lambda: compiled(x)),
        ("PytreeClosure", lambda: PytreeClosure(make(arrays)), lambda: closure(x), lambda: call(closure, x)),
        (
            "closure_convert",
            lambda: jax.closure_convert(make(arrays), x),
            lambda: converted(x, *captured),
            lambda: compiled_conversion(x, *captured),
        ),
    ]
    print(f"jax {jax.__version__}, {args.arrays} captured arrays, closure_convert found {len(captured)} of them")
    base: list[float] = []
    for name, *actions in rows:
        times = [seconds(action, args.repeat) for action in actions]
        base = base or times
        cells = [f"{t * 1e6:9.1f} us ({t / b:6.2f}x)" for t, b in zip(times, base, strict=True)]
        print(f"{name:16s} make {cells[0]}   eager call {cells[1]}   compiled call {cells[2]}")


if __name__ == "__main__":
    main()
