"""What a check costs, side by side in one run: to a leak's report, on clean cells, on loading, and what it leaves.

    python benchmarks/detection.py                     every part, two to five minutes on two cores
    python benchmarks/detection.py --part clean        leaking | clean | recording | load | growth
    python benchmarks/detection.py --objects 300000    the same with more data in the notebook

All figures are medians of ``--repeat`` rounds; in each round every variant runs once, one after the other, in the same
process. "cold" means after ``jax.clear_caches()``, "warm" means that the cell ran right before. Compilations are
counted by JAX's own events (``jax.monitoring``, ``backend_compile``).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

LEAKING = {
    "global write in jit": """
import jax, jax.numpy as jnp
last = None

@jax.jit
def double(x):
    global last
    last = x * 2
    return last

double(jnp.arange(3.0))
""",
    "closure kept by an object, vmap": """
import jax, jax.numpy as jnp

class Learner:
    def __init__(self, schedule):
        self.schedule = schedule

learners = []

def train(rate):
    def schedule(step):
        return rate / (1 + step)
    learners.append(Learner(schedule))
    return schedule(3)

jax.vmap(train)(jnp.arange(1.0, 4.0))
""",
    "list append in a scan body": """
import jax, jax.numpy as jnp
seen = []

def body(carry, x):
    seen.append(carry)
    return carry + x, carry

jax.lax.scan(body, 0.0, jnp.arange(4.0))
""",
}
"""Small cells whose leaks JAX's own check finds too, in every supported version."""

IMPORTS = "import jax, jax.numpy as jnp\n"
CLEAN = {
    "warm jit, 200 steps": (
        "@jax.jit\ndef step(x):\n    return x * 0.9 + jnp.sin(x)\nx0 = jnp.arange(8.0)\n",
        "x = x0\nfor _ in range(200):\n    x = step(x)\nx.block_until_ready()\n",
    ),
    "jit(grad(100 operations))": (
        """
def chain(x):
    for _ in range(100):
        x = jnp.sin(x)
    return x

slope = jax.jit(jax.grad(chain))
""",
        "slope(0.5).block_until_ready()\n",
    ),
    "eager grad": (
        "def loss(w):\n    return jnp.sum(jnp.tanh(w * 2.0) ** 2)\nw = jnp.arange(8.0)\n",
        "jax.grad(loss)(w).block_until_ready()\n",
    ),
    "scan": (
        "def body(c, x):\n    return c * 0.5 + x, c\nxs = jnp.arange(64.0)\n",
        "jax.lax.scan(body, 0.0, xs)[1].block_until_ready()\n",
    ),
}
"""Clean cells: what an earlier cell defines, and the cell itself."""


@dataclass
class Compilations:
    """Counts compilations by JAX's own events."""

    count: int = 0

    def listen(self) -> None:
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: Any) -> None:
        self.count += "backend_compile" in event


COMPILED = Compilations()


@dataclass
class Series:
    """Repeated measurements of one variant."""

    seconds: list[float] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)

    def measure(self, action: Callable[[], Any]) -> Any:
        before, begun = COMPILED.count, time.perf_counter()
        result = action()
        self.seconds.append(time.perf_counter() - begun)
        self.compiled.append(COMPILED.count - before)
        return result

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{1000 * self.median:9.2f} ms {statistics.median(self.compiled):5.0f} c"


def against(ours: Series, theirs: Series) -> str:
    return f"{ours.median / theirs.median:5.2f} x, {1000 * (ours.median - theirs.median):+.2f} ms"


@dataclass
class Timed:
    """One checked run: the time to the cell's end, to the report's end, and the report."""

    run: float
    finish: float
    render: float
    report: Any


_numbers = itertools.count(1)


def checked(code: CodeType, text: str, namespace: dict[str, Any], **options: Any) -> Timed:
    """Run a cell as the doors do, up to the report as text."""
    from jaxleak_magic.checked_run import CheckedRun, CheckOptions
    from jaxleak_magic.diagnose.model import CellRef, SourceText
    from jaxleak_magic.diagnose.sources import SourceBook
    from jaxleak_magic.show.text import render_text

    begun = time.perf_counter()
    sources = SourceBook()
    sources.add(code.co_filename, SourceText(text, CellRef(None, 1)))
    run = CheckedRun(sources, namespace, code.co_filename, CheckOptions(**options))
    run.start()
    error: BaseException | None = None
    try:
        exec(code, namespace)
    except Exception as raised:
        error = raised
    ended = time.perf_counter()
    report = run.finish(error)
    finished = time.perf_counter()
    render_text(report)
    return Timed(ended - begun, finished - ended, time.perf_counter() - finished, report)


def compiled_cell(text: str) -> CodeType:
    return compile(text, f"<cell-{next(_numbers)}>", "exec")


def under_jaxs_check(code: CodeType, namespace: dict[str, Any]) -> BaseException | None:
    """The cell under JAX's check alone; gives what it raises, as text too, since that is its report."""
    import jax

    try:
        with jax.checking_leaks():
            exec(code, namespace)
    except Exception as error:
        str(error)
        return error.with_traceback(None)
    return None


def cold() -> None:
    import jax

    jax.clear_caches()
    gc.collect()


def leaking(repeat: int) -> None:
    print("\nFrom a small leaking cell to its report, cold caches; ratios to JAX's own failing run of the same cell")
    row = "  {:32} {:>9} {:>9} {:>9} {:>10} {:>9} {:>11} {:>13}".format
    print(row("cell (ms)", "JAX's run", "our run", "to report", "explaining", "fixing", "report/JAX's", "both/JAX's"))
    for name, text in LEAKING.items():
        code = compiled_cell(text)
        theirs, run, end, explain, fixes = (Series() for _ in range(5))
        for round_ in range(repeat + 1):
            cold()
            begun = time.perf_counter()
            error = under_jaxs_check(code, {})
            took = time.perf_counter() - begun
            assert "eaked" in str(error), f"JAX did not find the leak of {name!r}: {error!r}"
            del error
            cold()
            ours = checked(code, text, {})
            assert len(ours.report.real_leaks) == 1, ours.report
            if round_:  # the first warms up imports
                theirs.seconds.append(took)
                run.seconds.append(ours.run)
                end.seconds.append(ours.finish + ours.render)
                explain.seconds.append(ours.report.elapsed.explain_s)
                fixes.seconds.append(ours.report.elapsed.fix_s)
        total = statistics.median(a + b for a, b in zip(run.seconds, end.seconds, strict=True))
        ms = [f"{1000 * each.median:.1f}" for each in (theirs, run, end, explain, fixes)]
        print(row(name, *ms, f"{end.median / theirs.median:.3f}", f"{total / theirs.median:.3f}"))


def clean(repeat: int) -> None:
    print("\nClean cells: time with the report, and compilations (c)")
    for name, (setup, text) in CLEAN.items():
        print(f"  {name}")
        clean_cell(setup, IMPORTS + text, repeat)


def clean_cell(setup: str, text: str, repeat: int) -> None:
    code, namespace = after_setup(setup, text)
    plain, theirs, kept, fast, theirs_cold, default = (Series() for _ in range(6))

    def plainly() -> None:
        exec(code, namespace)

    def jaxs_check() -> None:
        under_jaxs_check(code, namespace)

    def ours(**options: Any) -> None:
        report = checked(code, text, namespace, **options).report
        assert report.outcome == "clean", report
        assert not report.leaks, report

    warm = [
        (plain, plainly),
        (fast, lambda: ours(fast=True)),
        (theirs, jaxs_check),
        (kept, lambda: ours(retrace=False)),
    ]
    for round_ in range(repeat + 1):
        for series, action in warm[:: 1 if round_ % 2 else -1]:
            action()  # makes it warm under the very same flags
            series.measure(action)
        plainly()
        default.measure(ours)
        cold()
        theirs_cold.measure(jaxs_check)
        plainly()
    for series in (plain, theirs, kept, fast, theirs_cold, default):
        del series.seconds[0], series.compiled[0]  # imports, first use
    print(f"    plain, warm                     {plain}")
    print(f"    ours with --fast, warm          {fast}   {against(fast, plain)} to plain")
    print(f"    checking_leaks(), warm          {theirs}")
    print(f"    ours with --keep-caches, warm   {kept}   {against(kept, theirs)} to checking_leaks() warm")
    print(f"    checking_leaks(), cold          {theirs_cold}")
    print(f"    ours by default, warm before    {default}   {against(default, theirs_cold)} to checking_leaks() cold")


def after_setup(setup: str, text: str) -> tuple[CodeType, dict[str, Any]]:
    """A compiled cell, and the namespace after the cell before it."""
    namespace: dict[str, Any] = {}
    exec(compiled_cell(IMPORTS + setup), namespace)
    return compiled_cell(text), namespace


def recording(repeat: int) -> None:
    """What it costs to record where tracers were made that carry no line themselves."""
    import functools

    from jaxleak_magic.detect.census import Census

    print("\nTrace-heavy clean cells, checked with and without recording the lines of tracers, cold caches")
    start = Census.start
    for name, (setup, text) in CLEAN.items():
        code, namespace = after_setup(setup, IMPORTS + text)
        without, recorded = Series(), Series()
        for round_ in range(repeat + 1):
            for series, lines in ((without, False), (recorded, True))[:: 1 if round_ % 2 else -1]:
                Census.start = functools.partialmethod(start, lines=lines)  # type: ignore[assignment]
                try:
                    cold()
                    series.measure(lambda: checked(code, text, namespace))  # noqa: B023
                finally:
                    Census.start = start
        del without.seconds[0], recorded.seconds[0]
        print(f"  {name:28} without {without}   with {recorded}   {against(recorded, without)}")


_LOAD = """
import sys, time
import jax
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.hist_file = ":memory:"
shell = InteractiveShell.instance(config=config)
before = set(sys.modules)
begun = time.perf_counter()
shell.run_line_magic("load_ext", "jaxleak_magic")
took = time.perf_counter() - begun
new = set(sys.modules) - before
print(took, *sorted(new))
"""


def load(repeat: int) -> None:
    print("\n%load_ext jaxleak_magic after `import jax`, in a fresh process")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    seconds, modules = list[float](), list[str]()
    for _ in range(repeat):
        ran = subprocess.run([sys.executable, "-c", _LOAD], env=environment, capture_output=True, text=True, check=True)
        took, *modules = ran.stdout.split()
        seconds.append(float(took))
    own = [name for name in modules if name.startswith("jaxleak_magic")]
    others = sorted({name.partition(".")[0] for name in modules} - {"jaxleak_magic"})
    print(f"  {statistics.median(seconds):.3f} s (from {min(seconds):.3f} to {max(seconds):.3f})")
    print(f"  {len(own)} own modules: {', '.join(own)}")
    print(f"  {len(modules) - len(own)} other modules, of: {', '.join(others) or 'none'}")


def growth(repeat: int) -> None:
    """What checks leave behind: entries of the user's jit caches, compiled executables, memory."""
    import jax

    checks = 10 * max(1, repeat // 5)
    print(f"\nLeft behind by one check of a warm cell, by default (mean of {checks} checks)")
    row = "  {:28} {:>17} {:>14} {:>12}".format
    print(row("cell", "jit cache entries", "executables", "memory"))
    for name, (setup, text) in CLEAN.items():
        text = IMPORTS + text
        code, namespace = after_setup(setup, text)
        exec(code, namespace)
        checked(code, text, namespace)
        before = _left(namespace, jax)
        for _ in range(checks):
            checked(code, text, namespace)
        after = _left(namespace, jax)
        entries, executables, memory = ((b - a) / checks for a, b in zip(before, after, strict=True))
        print(row(name, f"{entries:+.1f}", f"{executables:+.1f}", f"{memory / 1e6:+.2f} MB"))


def _left(namespace: dict[str, Any], jax: Any) -> tuple[float, float, float]:
    gc.collect()
    sizes = [v._cache_size() for v in namespace.values() if hasattr(v, "_cache_size")]
    executables = 0
    with contextlib.suppress(AttributeError):
        executables = len(jax.devices()[0].client.live_executables())
    return sum(sizes), executables, _resident_bytes()


def _resident_bytes() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return float("nan")


def ballast(objects: int) -> list[Any]:
    """About so many more objects in the heap."""
    return [{"key": [number]} for number in range(objects // 2)]


PARTS: dict[str, Callable[[int], None]] = {
    "leaking": leaking,
    "clean": clean,
    "recording": recording,
    "load": load,
    "growth": growth,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given again")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="rounds (default 7)")
    parser.add_argument("--objects", type=int, default=0, metavar="N", help="more objects in the heap (default 0)")
    args = parser.parse_args(argv)

    import jax
    import jaxlib

    COMPILED.listen()
    kept = ballast(args.objects)
    versions = f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, Python {platform.python_version()}"
    machine = f"{platform.machine()} {platform.system()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    print(f"{versions}; {machine}; {len(gc.get_objects())} objects; medians of {args.repeat}")
    for part in args.part or PARTS:
        PARTS[part](args.repeat)
    del kept


if __name__ == "__main__":
    main()
