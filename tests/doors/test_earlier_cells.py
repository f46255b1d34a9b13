"""The usual order of events in a notebook: one cell leaks and nobody checks it, a later one fails with the value."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.kernel import Kernel

DEFINITIONS = """\
import jax, jax.numpy as jnp
history = []
class Store: pass
store = Store()
def step(x):
    hidden = jnp.tanh(x)
    history.append(hidden)
    return hidden * 2
def loss(w):
    pre = w * 3.0
    store.pre = pre
    return pre ** 2
def per(row):
    store.shift = lambda s: row + s
    return row * 2
"""
CALLS = "y = jax.jit(step)(1.0)\ng = jax.grad(loss)(2.0)\nz = jax.vmap(per)(jnp.arange(3.0))\n"
STORIES = {
    "jit": ("history[0] + 1", "hidden", "history[0]", "DynamicJaxprTrace", "step", 7, 8),
    "grad": ("jnp.sin(store.pre)", "pre", "store.pre", "LinearizeTrace", "loss", 11, 12),
    "vmap": ("store.shift(1.0)", "row", "store.shift", "BatchTrace", "per", 14, 15),
}


pytestmark = [pytest.mark.kernel, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    assert kernel.run("%load_ext jaxleak_magic\n" + DEFINITIONS).status == "ok"
    assert kernel.run(CALLS).status == "ok"
    yield kernel
    kernel.close()


def facts(kernel: Kernel, report: str) -> tuple[object, ...]:
    """What a stored report says of its only leak, as plain values."""
    told = kernel.run(
        f"l, = {report}.leaks\n"
        "(l.variable, l.facts.access, l.trace_stack[-1].trace, l.created.line, l.created.cell.execution_count, "
        f"l.stored.line, l.earlier_run, {report}.error.leak_id, l.explanation.where, l.explanation.how)"
    )
    assert told.status == "ok", told.messages
    return eval(told.value)


@pytest.mark.parametrize("transform", STORIES)
def test_the_cell_that_fails_is_checked(kernel: Kernel, transform: str) -> None:
    use, variable, keeper, trace, runs, made, stored = STORIES[transform]
    failed = kernel.run(f"%%leakcheck -o r\nq = {use}")
    assert failed.content["ename"] == "UnexpectedTracerError"
    *found, where, how = facts(kernel, "r")
    assert found == [variable, keeper, trace, made, 1, stored, True, 1]
    assert "That was in an earlier run, which was not checked." in where
    assert how.endswith(f"To see the rest of the story, put `%%leakcheck` on In [2], which runs `{runs}`.")


@pytest.mark.parametrize("transform", STORIES)
def test_the_last_exception_is_explained_with_its_holder(kernel: Kernel, transform: str) -> None:
    use, variable, keeper, trace, _, made, stored = STORIES[transform]
    kernel.run(f"q = {use}")
    kernel.run("%leakcheck --last -q -o last")
    *found, where, _ = facts(kernel, "last")
    assert found == [variable, keeper, trace, made, 1, stored, True, 1]
    assert "That was in an earlier run" in where


def test_an_earlier_leak_that_the_cell_does_not_use_is_not_reported(kernel: Kernel) -> None:
    kernel.run("%%leakcheck -q -o clean\njax.jit(lambda x: x + 1)(1.0)")
    assert kernel.run("clean.outcome").value == "'clean'"


def test_the_report_of_the_last_exception_is_plain_data(kernel: Kernel) -> None:
    kernel.run("q = store.shift(1.0)")
    kernel.run("%leakcheck --last -q -o last")
    assert kernel.run("import pickle; pickle.loads(pickle.dumps(last)).leaks[0].variable").value == "'row'"


def test_what_only_the_output_history_keeps_is_named_as_such(kernel: Kernel) -> None:
    cell = "box = []\ndef f(x):\n    box.append(x)\n    return x * 2\njax.jit(f)(1.0)\nbox.pop()"
    shown = kernel.run("%%leakcheck -o r\n" + cell)
    number = shown.content["execution_count"]
    told = kernel.run("l, = r.leaks\n(l.variable, l.mechanism, l.stored.line, l.holder.name, l.holder.owner)").value
    assert eval(told or "") == ("x", "debugger_or_ipython", 6, f"Out[{number}]", "ipython")
    assert "get_ipython" not in shown.report["text/plain"]


def test_locate_runs_the_cell_again_without_its_output(kernel: Kernel) -> None:
    cell = (
        "class Box: pass\nbox, runs = Box(), globals().get('runs', 0) + 1\nprint('once')\n"
        "def put(name, value):\n    setattr(box, name, value)\n"
        "def g(x):\n    put('y', x)\n    return x\njax.jit(g)(1.0)"
    )
    shown = kernel.run("%%leakcheck -o r --locate\n" + cell)
    assert shown.text.count("once") == 1
    assert kernel.run("(r.leaks[0].stored.line, runs)").value == "(5, 2)"


def test_fast_in_a_cell(kernel: Kernel) -> None:
    kernel.run("%%leakcheck -o r --fast -q\nkept = []\njax.grad(lambda w: kept.append(w) or w)(1.0)")
    assert kernel.run("(r.leaks[0].holder.name, r.leaks[0].trace_stack[0].transform)").value == "('kept', 'grad')"
