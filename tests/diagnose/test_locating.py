"""``--locate``: a second run that sees which line stores a value, where the syntax does not tell."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import jax
import pytest

from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.diagnose.locating import StoreWatcher, watch_key
from jaxleak_magic.diagnose.model import Report, SourceText
from jaxleak_magic.diagnose.sources import SourceBook

BY_NAME = """\
import jax, jax.numpy as jnp
class Store: pass
store = Store()
def keep(holder, name, value):
    setattr(holder, name, value)
@jax.jit
def f(x):
    h = jnp.sin(x)
    keep(store, "h", h)
    return x
f(1.0)
"""
TWO_WRITERS = """\
import jax, jax.numpy as jnp
seen = []
def a(x):
    seen.append(jnp.sin(x))
    return x
def b(x):
    seen.append(jnp.cos(x))
    return x
def pick(n):
    return (a, b)[n]
jax.grad(lambda w: pick(1)(w) * 2.0)(1.0)
"""
FROM_OUTSIDE = """\
import jax
class Store: pass
store = Store()
def leak(x):
    vars(store).update(kept=x)
    return x
jax.vmap(leak)(jax.numpy.ones(3))
"""


def first_run(text: str, namespace: dict[str, Any], **options: Any) -> tuple[CheckedRun, Report]:
    book, name = SourceBook(), "<cell under test>"
    book.add(name, SourceText(text))
    run = CheckedRun(book, namespace, name, CheckOptions(**options))
    run.start()
    exec(compile(text, name, "exec"), namespace)
    return run, run.finish(None)


def check(text: str, locate: bool, **options: Any) -> tuple[Report, dict[str, Any]]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run, report = first_run(text, namespace, **options)
    code = compile(text, "<cell under test>", "exec")
    return (run.located(report, lambda: exec(code, namespace)) if locate else report), namespace


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [(BY_NAME, {}, 5), (TWO_WRITERS, {"fast": True}, 7), (FROM_OUTSIDE, {}, 5)],
    ids=["by name", "two writers", "from outside"],
)
def test_a_second_run_sees_the_line(text: str, options: dict[str, bool], line: int) -> None:
    report, _ = check(text, locate=False, **options)
    (unknown,) = report.leaks
    assert unknown.stored is None
    assert "--locate" in unknown.explanation.where
    report, _ = check(text, locate=True, **options)
    (leak,) = report.leaks
    assert leak.stored is not None
    assert leak.stored.line == line
    assert "--locate" not in leak.explanation.where


def test_what_the_syntax_tells_is_not_run_again() -> None:
    text = "import jax\nbox = []\nruns = globals().setdefault('runs', [])\nruns.append(1)\n"
    text += "def f(x):\n    box.append(x)\n    return x\njax.jit(f)(1.0)\n"
    report, namespace = check(text, locate=True)
    assert report.leaks[0].stored is not None
    assert namespace["runs"] == [1]


def test_a_second_run_that_does_not_leak_keeps_the_first_report() -> None:
    run, first = first_run(BY_NAME, {"__name__": "__main__"})
    report = run.located(first, lambda: None)
    assert report.leaks == first.leaks
    assert "did not leak in the same way" in report.checked.unchecked[-1]


def test_an_error_of_the_second_run_is_dropped_and_the_trace_function_put_back() -> None:
    def trace(*_: Any) -> None:
        return None

    before = sys.gettrace()
    run, first = first_run(BY_NAME, {"__name__": "__main__"})
    sys.settrace(trace)
    try:
        run.located(first, lambda: 1 / 0)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("again", "word"), [(interrupt, "was interrupted"), (lambda: sys.exit(3), "did not leak in the same way")]
)
def test_an_interrupt_or_exit_of_the_second_run_keeps_the_first_report(again: Any, word: str) -> None:
    flag = jax.config.jax_check_tracer_leaks
    run, first = first_run(BY_NAME, {"__name__": "__main__"})
    report = run.located(first, again)
    assert report.leaks == first.leaks
    assert word in report.checked.unchecked[-1]
    assert (jax.config.jax_check_tracer_leaks, sys.gettrace()) == (flag, None)


def test_a_second_run_that_cannot_start_keeps_the_first_report() -> None:
    run, first = first_run(BY_NAME, {"__name__": "__main__"})
    other = CheckedRun(SourceBook(), {})
    other.start()
    try:
        report = run.located(first, lambda: None)
    finally:
        other.stop()
    assert report.leaks == first.leaks
    assert "could not be checked: RuntimeError" in report.checked.unchecked[-1]


def test_the_second_runs_exception_is_not_kept() -> None:
    seen: list[weakref.ref[Exception]] = []

    class Raised(Exception):
        def __init__(self) -> None:
            seen.append(weakref.ref(self))

    def again() -> None:
        raise Raised

    run, first = first_run(BY_NAME, {"__name__": "__main__"})
    gc.disable()
    try:
        run.located(first, again)
        assert seen[0]() is None
    finally:
        gc.enable()


class Hostile:
    """Everything that watching could run by mistake."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("was run")

    __eq__ = __hash__ = __len__ = __iter__ = __getitem__ = __bool__ = __getattr__  # type: ignore[assignment]


@pytest.mark.parametrize("access", ["h.x", "h[0]", "h['k'].x", "table[0].y", "missing.z", "not an expression", "f(x)"])
def test_nothing_of_a_watched_object_is_run(access: str) -> None:
    namespace = {"h": Hostile(), "table": {1: Hostile()}}
    watcher = StoreWatcher([access], namespace, lambda code: code.co_name == "store")

    def store() -> None:
        namespace["h"] = Hostile()

    with watcher.watching():
        store()
    assert watcher.found == {}


def test_of_an_entry_the_container_is_watched() -> None:
    assert (watch_key("a.b[0]"), watch_key("a.b"), watch_key("a")) == ("a.b[]", "a.b", "a")
