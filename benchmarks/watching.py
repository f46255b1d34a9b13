"""What `%leakwatch` costs: the same cells in one run, plain and watched by turns.

    python benchmarks/watching.py [--cells 1000] [--objects 1000000]

Both are run by one IPython shell with the extension loaded. Each kind of cell is run in rounds, plain and watched by
turns, each time after one cell that is not counted: switching the watch makes CPython look methods up anew. Times are
CPU seconds of the thread that runs the cells and the watch. As a machine's speed drifts, what the watch adds is the
median over the rounds of the difference between neighbours, of the best of three cells each. Then many cells in a row,
without the watch and with it in two processes at the same time: time of the first and of the last tenth of the cells,
and what each cell leaves in memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

SETUP = """
import jax, jax.numpy as jnp
x = jnp.arange(64.0)
X = jnp.ones((64, 64))
def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)
step = jax.jit(lambda w, x: w - 0.01 * jax.grad(loss)(w, x))
w = step(X, X)
"""

CELLS = {
    "nothing": "n = 1",
    "eager loop": "for _ in range(400): y = jnp.sin(x) + x * 2",
    "jitted training": "for _ in range(400): w = step(w, X)\nw.block_until_ready();",
    "eager grad": "for _ in range(15): g = jax.grad(loss)(X, X)",
    "eager vmap(grad)": "for _ in range(10): g = jax.vmap(jax.grad(lambda v: jnp.sum(v ** 2)))(X)",
    "functions traced": "@jax.jit\ndef f(a):\n    return jax.lax.scan(lambda c, v: (c + v, c * v), 0.0, a)[0]\nf(x);",
}


def new_shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "jaxleak_magic")
    shell.run_cell(SETUP, store_history=True)
    return shell


def seconds_of(shell: Any, cell: str) -> float:
    begun = time.thread_time()
    shell.run_cell(cell, store_history=True)
    return time.thread_time() - begun


def compare(shell: Any, name: str, cell: str, rounds: int) -> None:
    found: list[dict[bool, float]] = []
    collections = gc.get_stats()[2]["collections"]
    for number in range(rounds):
        best: dict[bool, float] = {}
        for watched in (False, True) if number % 2 else (True, False):
            shell.run_line_magic("leakwatch", "on" if watched else "off")
            seconds_of(shell, cell)
            best[watched] = min(seconds_of(shell, cell) for _ in range(3))
        found.append(best)
    collections = gc.get_stats()[2]["collections"] - collections
    plain = statistics.median(pair[False] for pair in found)
    added = statistics.median(pair[True] - pair[False] for pair in found) * 1e3
    allowed = plain * 0.02 * 1e3 + 1
    print(
        f"{name:22} plain {plain * 1e3:9.3f} ms   watched adds {added:+7.3f} ms of {allowed:6.3f} allowed   "
        f"ratio {1 + added / plain / 1e3:6.3f}   {'ok' if added <= allowed else 'OVER'}   "
        f"({collections} full collections in {8 * rounds} cells)"
    )
    shell.run_line_magic("leakwatch", "off")


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def many_cells(watched: bool, count: int) -> None:
    shell = new_shell()
    if watched:
        shell.run_line_magic("leakwatch", "on")
    body = "def f{0}(a): return a * {0}\ng = jax.vmap(jax.grad(lambda v: jnp.sum(v ** 2)))(X); y = step(w, X)"
    for i in range(20):
        seconds_of(shell, body.format(i))
    gc.collect()
    objects, memory = len(gc.get_objects()), rss()
    times = [seconds_of(shell, body.format(20 + i)) for i in range(count)]
    gc.collect()
    tenth = max(count // 10, 1)
    print(
        json.dumps(
            {
                "first_ms": statistics.median(times[:tenth]) * 1e3,
                "last_ms": statistics.median(times[-tenth:]) * 1e3,
                "bytes_a_cell": (rss() - memory) / count,
                "objects_a_cell": (len(gc.get_objects()) - objects) / count,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--many", choices=("plain", "watched"))
    args = parser.parse_args()
    if args.many:
        many_cells(args.many == "watched", args.cells)
        return
    shell = new_shell()
    import jax

    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}")
    for name, cell in CELLS.items():
        compare(shell, name, cell, args.rounds)
    shell.user_ns["heap"] = [[i] for i in range(args.objects)]
    gc.collect()
    print(f"with {args.objects} more objects in the heap:")
    for name in ("eager loop", "jitted training", "eager grad", "functions traced"):
        compare(shell, name, CELLS[name], max(args.rounds // 2, 2))
    print(f"{args.cells} cells in a row:")
    command = [sys.executable, __file__, "--cells", str(args.cells), "--many"]
    runs = {how: subprocess.Popen([*command, how], stdout=subprocess.PIPE, text=True) for how in ("plain", "watched")}
    for how, run in runs.items():
        each = json.loads(run.communicate()[0].splitlines()[-1])
        print(
            f"  {how:8} first tenth {each['first_ms']:7.3f} ms a cell, last tenth {each['last_ms']:7.3f} ms; "
            f"{each['bytes_a_cell']:7.0f} bytes and {each['objects_a_cell']:5.2f} objects stay a cell"
        )


if __name__ == "__main__":
    main()
