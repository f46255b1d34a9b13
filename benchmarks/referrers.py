"""Who holds it: JAX's own report, objgraph and ours, side by side on the same heap, in units of one ``gc.collect()``.

    python benchmarks/referrers.py                  heaps of 1e5 and 1e6 objects
    python benchmarks/referrers.py --objects 5e6
    python benchmarks/referrers.py --reference      JAX's report and objgraph too (minutes on large heaps)

Each figure is the median of ``--repeat`` runs; a collection of the same heap is timed before each group. "walk" is one
``gc.get_referrers`` call. Peak memory is what the search allocates through Python and NumPy (``tracemalloc``, in a run
of its own). The leaked things are real tracers; the heap around them is made of dicts, lists and instances. Repeated
runs are a little harder than the first: describing a path makes ``__dict__``s real that were not.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jaxleak_magic.heap import Budget, find_holders, frame_roots, module_roots, namespace_roots


class Record:
    def __init__(self, number: int) -> None:
        self.number = number
        self.parts = [number]


class Link:
    def __init__(self, next_link: object) -> None:
        self.next = next_link


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


def hold(namespace: dict[str, Any], where: str, values: list[Any], depth: int) -> None:
    """Put the values where the case wants them."""
    data = namespace["data"]
    if where == "near":
        namespace["model"] = [chain(value, depth - 1) for value in values]
    elif where == "buried":
        for k, value in enumerate(values):
            data[(k + 1) * len(data) // (len(values) + 1)] = chain(value, depth - 1)
    else:  # "wide": one holder that 50,000 objects refer to
        shared = [*values]
        data.append([Link(shared) for _ in range(50_000)])


CASES = [
    ("near", 3, 1),
    ("near", 6, 1),
    ("near", 12, 1),
    ("near", 6, 20),
    ("near", 6, 200),
    ("buried", 3, 1),
    ("buried", 6, 1),
    ("buried", 12, 1),
    ("buried", 6, 20),
    ("buried", 6, 200),
    ("wide", 3, 1),
    ("wide", 3, 20),
]


@contextlib.contextmanager
def case(objects: int, where: str, depth: int, count: int) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    namespace: dict[str, Any] = {"__name__": "__notebook__", "data": make_heap(objects), "seed": 0, "rate": 0.1}
    values = tracers(count)
    hold(namespace, where, values, depth)
    gc.collect()
    try:
        yield namespace, values
    finally:
        namespace.clear()
        values.clear()
        gc.collect()


def seconds(action: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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

    found = objgraph.find_backref_chain(values[0], lambda o: o is namespace, max_depth=20, extra_ignore=[id(values)])
    assert found[0] is namespace


def jax_report(namespace: dict[str, Any], where: str, depth: int, count: int) -> None:
    """The same leak under ``jax.checking_leaks()``: what JAX takes to find it and to build its message."""
    import jax

    def step(x: Any) -> Any:
        hold(namespace, where, [x + 1.0 for _ in range(count)], depth)
        return x

    message = ""
    with jax.checking_leaks():
        try:
            jax.jit(step)(1.0)
        except Exception as error:
            message = str(error)
    assert "eaked trace" in message, message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=float, nargs="+", default=[1e5, 1e6])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--reference", action="store_true", help="time JAX's report and objgraph too, once each")
    parser.add_argument("--case", nargs="*", default=[], help="only cases with such a name, e.g. buried/6/1")
    options = parser.parse_args()
    import jax

    print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}; times in collections of the same heap")
    print(
        f"{'objects':>9} {'where/depth/leaks':>18} {'collect':>9} {'walk':>9} {'ours':>8} {'peak MB':>8} {'walks':>6}",
        end="",
    )
    print(f" {'JAX':>9} {'objgraph':>9}" if options.reference else "")
    for objects in map(int, options.objects):
        for where, depth, count in CASES:
            name = f"{where}/{depth}/{count}"
            if options.case and name not in options.case:
                continue
            with case(objects, where, depth, count) as (namespace, values):
                run(name, (where, depth, count), namespace, values, options)


def run(
    name: str, leak: tuple[str, int, int], namespace: dict[str, Any], values: list[Any], options: argparse.Namespace
) -> None:
    total = len(gc.get_objects())
    collect = seconds(gc.collect, 5)
    walk = seconds(lambda: gc.get_referrers(total), 5)
    walks = ours(values, namespace).passes
    own = seconds(lambda: ours(values, namespace), options.repeat)
    tracemalloc.start()
    ours(values, namespace)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    print(f"{total:9} {name:>18} {collect:7.3f} s {walk:7.4f} s {own / collect:8.2f} {peak:8.1f} {walks:6}", end="")
    if options.reference:
        graph = seconds(lambda: objgraph_chain(values, namespace), 1) / collect
        theirs = seconds(lambda: jax_report(namespace, *leak), 1) / collect if leak[2] <= 20 else float("nan")
        print(f" {theirs:9.1f} {graph:9.1f}   JAX/ours {theirs / (own / collect):.0f}", end="")
    print(flush=True)


if __name__ == "__main__":
    main()
