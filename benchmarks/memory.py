"""What a check leaves in memory: the same cell many times, plain, plain with cold caches, and under each kind of check.

    python benchmarks/memory.py [--cells 1000] [--how plain cold checked fast watched]

Each way runs in a process of its own. The cell calls a function that was compiled before it, differentiates and maps
another one, and leaks nothing. *cold* runs it plainly while JAX's cache key changes from cell to cell, so that all is
traced and compiled anew, as a check does: what stays there stays because JAX keeps compiled programs. Printed are what
each cell leaves: objects of the collector, bytes of the process, tracers and traces; the first tenth is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

SETUP = """
import jax, jax.numpy as jnp
X = jnp.ones((16, 16))
step = jax.jit(lambda w, x: w - 0.1 * x @ w)
step(X, X)
"""
CELL = "y = step(X, X); g = jax.vmap(jax.grad(lambda v: jnp.sum(v ** 2)))(X);"
WAYS = ("plain", "cold", "checked", "fast", "watched")


def cell_runner(how: str) -> Callable[[], None]:
    """What runs the cell once in one of the `WAYS`, in a shell of its own."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from jaxleak_magic.detect.retrace import retracing

    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell: Any = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "jaxleak_magic")
    shell.run_cell(SETUP, store_history=True)
    if how == "watched":
        shell.run_line_magic("leakwatch", "on")
    text = {"checked": "%%leakcheck -q\n", "fast": "%%leakcheck -q --fast\n"}.get(how, "") + CELL

    def run() -> None:
        with retracing() if how == "cold" else contextlib.nullcontext():
            # Without history: IPython keeps the text of each cell, whatever is in it. A watch sees only the user's own.
            result = shell.run_cell(text, store_history=how == "watched")
        assert result.success, result.error_in_exec

    return run


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_behind() -> int:
    """Tracers and traces that are alive."""
    import jax
    from jax._src import core

    gc.collect()
    kinds = (jax.core.Tracer, core.Trace)
    return sum(issubclass(type(each), kinds) and type(each).__name__ != "EvalTrace" for each in gc.get_objects())


def measure(how: str, cells: int) -> dict[str, float]:
    """What each of many cells leaves behind, and how long one takes (median of all, milliseconds)."""
    run = cell_runner(how)
    warm = max(cells // 10, 5)
    for _ in range(warm):
        run()
    gc.collect()
    objects, memory, times = len(gc.get_objects()), rss(), []
    for _ in range(cells - warm):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    gc.collect()
    counted = cells - warm
    return {
        "objects": (len(gc.get_objects()) - objects) / counted,
        "bytes": (rss() - memory) / counted,
        "tracers": left_behind(),
        "ms": sorted(times)[len(times) // 2] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--how", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.how[0], args.cells)))
        return
    print(f"{args.cells} cells        objects/cell   bytes/cell   tracers and traces left   ms/cell")
    for how in args.how:
        command = [sys.executable, __file__, "--here", "--cells", str(args.cells), "--how", how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"  {how:12} {found['objects']:14.2f} {found['bytes']:12.0f} {found['tracers']:20.0f} {found['ms']:15.2f}"
        )


if __name__ == "__main__":
    main()
