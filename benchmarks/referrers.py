"""Who holds it: JAX's own report, objgraph and ours, side by side on the same heap, in units of one ``gc.collect()``.

    python benchmarks/referrers.py                          ours, on heaps of 1e5 and 1e6 objects
    python benchmarks/referrers.py --with jax objgraph      JAX's report and objgraph too, once each (slow)
    python benchmarks/referrers.py --objects 5e6 --rows buried wide/6
    python benchmarks/referrers.py --page benchmarks/referrers.md

A row is ``where/depth/leaks``. Leaks are real tracers of a transform that has ended, each below so many containers;
the heap around them is made of dicts, lists and instances.

near    the containers hang on a variable of the namespace
buried  they replace entries of a list that holds the whole heap
wide    one list holds all leaks, and 50,000 instances hold that list; a list of these is the last entry of the data
amid    the same, but the list of the instances stands amid the data

"ours" is the median of ``--repeat`` searches, each after a collection that is timed too; "walk" is one
``gc.get_referrers`` call; "peak" is what a search allocates through Python and NumPy (``tracemalloc``, in a run of its
own). Times are of the processor, not of the clock, so that other programs on the machine count for less; everything
here runs in one thread. Repeated searches are a little harder than the first: describing a path makes ``__dict__``s
real that were not. JAX's report is left out where it is estimated to take longer than ``--patience``, and objgraph
follows one object only, and never ends where that is held by 50,000 others.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jaxleak_magic.heap import Budget, find_holders, frame_roots, module_roots, namespace_roots

WIDTH = 50_000


class Record:
    def __init__(self, number: int) -> None:
        self.number = number
        self.parts = [number]


class Link:
    def __init__(self, next_link: object) -> None:
        self.next = next_link


@dataclass(frozen=True)
class Row:
    where: str
    depth: int
    leaks: int

    def __str__(self) -> str:
        return f"{self.where}/{self.depth}/{self.leaks}"


ROWS = [Row(*row) for row in itertools.product(("near", "buried", "wide"), (3, 6, 12), (1, 20, 200))]
ROWS += [Row("amid", 6, leaks) for leaks in (1, 20, 200)]


# heaps and leaks


def make_heap(objects: int) -> list[Any]:
    """About so many gc-tracked objects, of the kinds that data in a notebook is made of."""
    data: list[Any] = []
    for number in range(objects // 4):
        if number % 3 == 0:
            data.append(Record(number))
            data.append([data[-1].parts])
        elif number % 3 == 1:
            data.append({"key": [number], "pair": (number, [])})
        else:
            data.append([number, [number], (None, [])])
    return data


def tracers(count: int) -> list[Any]:
    """Leaked tracers of one finished transform."""
    import jax

    kept: list[Any] = []

    def step(x: Any) -> Any:
        for _ in range(count):
            kept.append(x + 1.0)
        return x

    jax.jit(step)(1.0)
    return kept


def chain(value: object, depth: int) -> object:
    """The value below so many levels of alternating lists, instances and dicts."""
    for level in range(depth):
        value = ([value], Link(value), {"next": value})[level % 3]
    return value


def hold(namespace: dict[str, Any], row: Row, values: list[Any]) -> Callable[[], None]:
    """Put the values where the row wants them; returns what takes them away again."""
    data = namespace["data"]
    if row.where == "near":
        namespace["model"] = [chain(value, row.depth - 1) for value in values]
        return lambda: namespace.pop("model")
    if row.where in ("wide", "amid"):
        shared = chain([*values], row.depth - 2)
        place = len(data) if row.where == "wide" else len(data) // 3
        data.insert(place, [Link(shared) for _ in range(WIDTH)])
        return lambda: data.pop(place)
    places = [(k + 1) * len(data) // (len(values) + 1) for k in range(len(values))]
    before = [data[place] for place in places]
    for place, value in zip(places, values, strict=True):
        data[place] = chain(value, row.depth - 1)

    def restore() -> None:
        for place, old in zip(places, before, strict=True):
            data[place] = old

    return restore


@contextlib.contextmanager
def leaked(namespace: dict[str, Any], row: Row) -> Iterator[list[Any]]:
    values = tracers(row.leaks)
    take_away = hold(namespace, row, values)
    gc.collect()
    try:
        yield values
    finally:
        take_away()
        values.clear()
        gc.collect()


# what is compared


def ours(values: list[Any], namespace: dict[str, Any]) -> Any:
    import jax

    barriers = {jax.core.Tracer}
    waiting = [jax.core.Tracer]
    while waiting:
        below = type.__subclasses__(waiting.pop())
        barriers.update(below)
        waiting += below
    found = find_holders(
        values,
        [*namespace_roots(namespace), *module_roots(), *frame_roots(exclude=own_frames())],
        barriers=barriers,
        skip=[values],
        budget=Budget(seconds=600),
    )
    assert found.finished, found.unfinished_reason
    assert all(paths and paths[0].root_name == "" for paths in found.paths), found.paths
    return found


def own_frames() -> list[Any]:
    frame, frames = sys._getframe(1), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def objgraph_chain(values: list[Any], namespace: dict[str, Any]) -> None:
    import objgraph

    found = objgraph.find_backref_chain(values[0], lambda o: o is namespace, max_depth=30, extra_ignore=[id(values)])
    assert found[0] is namespace


def jax_report(namespace: dict[str, Any], row: Row) -> None:
    """The same leaks under ``jax.checking_leaks()``: what JAX takes to find them and to build its message."""
    import jax

    undo: list[Callable[[], None]] = []

    def step(x: Any) -> Any:
        undo.append(hold(namespace, row, [x + 1.0 for _ in range(row.leaks)]))
        return x

    message = ""
    with jax.checking_leaks():
        try:
            jax.jit(step)(1.0)
        except Exception as error:
            message = str(error)
    undo.pop()()
    assert "eaked trace" in message, message


def estimated_report(row: Row, walk: float) -> float:
    """Seconds that JAX's report will take: walks for each leak, as counted on JAX 0.10.2."""
    return (21 + 7.4 * row.depth) * row.leaks * walk


# measuring


def seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


@dataclass(frozen=True)
class Figures:
    """Of one row: seconds of a collection and a walk; the others in collections; peak in megabytes."""

    objects: int
    row: Row
    collect: float
    walk: float
    ours: float
    peak: float
    walks: int
    jax: float | None
    objgraph: float | None

    HEADINGS = ("objects", "where/depth/leaks", "collect s", "walk", "ours", "peak MB", "JAX", "JAX / ours", "objgraph")

    def cells(self) -> tuple[str, ...]:
        """The figures as text, in the order of the headings."""
        ratio = None if self.jax is None else self.jax / self.ours
        return (
            f"{self.objects:,}",
            str(self.row),
            f"{self.collect:.3f}",
            f"{self.walk:.2f}",
            f"{self.ours:.2f}",
            f"{self.peak:.0f}",
            "–" if self.jax is None else f"{self.jax:.1f}",
            "–" if ratio is None else f"{ratio:.0f}",
            "–" if self.objgraph is None else f"{self.objgraph:.1f}",
        )


def measure(namespace: dict[str, Any], row: Row, options: argparse.Namespace) -> Figures:
    with leaked(namespace, row) as values:
        walks = ours(values, namespace).passes
        times: list[tuple[float, float, float]] = []
        for _ in range(options.repeat):
            times.append(
                (
                    seconds(gc.collect),
                    seconds(lambda: gc.get_referrers(options)),
                    seconds(lambda: ours(values, namespace)),
                )
            )
        collect, walk, own = map(statistics.median, zip(*times, strict=True))
        objects = len(gc.get_objects())
        tracemalloc.start()
        ours(values, namespace)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        graph = report = None
        if "objgraph" in options.reference and row.leaks == 1 and row.where in ("near", "buried"):
            graph = seconds(lambda: objgraph_chain(values, namespace)) / collect
    if "jax" in options.reference and estimated_report(row, walk) < options.patience:
        report = seconds(lambda: jax_report(namespace, row)) / collect
        gc.collect()
    return Figures(objects, row, collect, walk / collect, own / collect, peak, walks, report, graph)


def chosen(names: list[str]) -> list[Row]:
    """Rows whose name is one of these, or begins with one of them (``buried``, ``near/6``)."""
    return [row for row in ROWS if not names or any(f"{row}/".startswith(f"{name}/") for name in names)]


def machine() -> str:
    """Processor, cores, memory, and versions."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        processor = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    libraries = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpy", "objgraph"))
    return (
        f"Python {platform.python_version()}, {libraries}; {platform.system()}, {processor}, {os.cpu_count()} cores, "
        f"{memory:.0f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=float, nargs="+", default=[1e5, 1e6])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", nargs="*", default=[], help="only these, by name or its beginning, e.g. buried/6")
    parser.add_argument("--with", dest="reference", nargs="*", choices=("jax", "objgraph"), default=[])
    parser.add_argument("--patience", type=float, default=60, help="seconds that JAX's report may be estimated to take")
    parser.add_argument("--page", type=Path, help="a Markdown file to add the table to")
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/referrers.py {' '.join(sys.argv[1:])}`".replace(f" --page {options.page}", ""),
        "",
        f"{machine()}. Times in collections of the same heap.",
        "",
        f"| {' | '.join(Figures.HEADINGS)} |",
        "|---:|---|" + "---:|" * (len(Figures.HEADINGS) - 2),
    ]
    print("\n".join(lines))
    for objects in map(int, options.objects):
        namespace: dict[str, Any] = {"__name__": "__notebook__", "data": make_heap(objects), "seed": 0, "rate": 0.1}
        for row in chosen(options.rows):
            lines.append(f"| {' | '.join(measure(namespace, row, options).cells())} |")
            print(lines[-1], flush=True)
        namespace.clear()
        gc.collect()
    if options.page:
        with options.page.open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, "", ""]))


if __name__ == "__main__":
    main()
