"""Notes on what is no leak and still surprises: each kind found, and silence wherever it is not certain."""

from __future__ import annotations

import textwrap

import pytest

from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.diagnose.model import CellRef, Report, SourceText
from jaxleak_magic.diagnose.sources import SourceBook

IMPORTS = "import functools, time\nimport jax, jax.numpy as jnp\n"


def checked(text: str, earlier: str | None = None, **options: bool) -> Report:
    text = IMPORTS + textwrap.dedent(text)
    sources, namespace = SourceBook(), {"__name__": "__main__"}
    if earlier is not None:
        earlier = IMPORTS + textwrap.dedent(earlier)
        sources.add("<cell-1>", SourceText(earlier, CellRef(None, 1)))
        exec(compile(earlier, "<cell-1>", "exec"), namespace)
    sources.add("<cell-2>", SourceText(text, CellRef(None, 2)))
    run = CheckedRun(sources, namespace, "<cell-2>", CheckOptions(fixes=False, **options))
    run.start()
    error = None
    try:
        exec(compile(text, "<cell-2>", "exec"), namespace)
    except Exception as raised:
        error = raised
    return run.finish(error)


def marked_line(text: str) -> int:
    lines = (IMPORTS + textwrap.dedent(text)).split("\n")
    return next(n for n, line in enumerate(lines, 1) if "# here" in line)


IMPURE = {
    "global counter": """
        calls = 0

        @jax.jit
        def shifted(x):
            global calls
            calls += 1  # here
            return x + calls

        shifted(1.0)
        """,
    "list of shapes": """
        shapes = []

        @jax.jit
        def f(x):
            shapes.append(x.shape)  # here
            return x * 2

        f(jnp.ones(3))
        """,
    "count by key": """
        counts = {"f": 0}

        def f(x):
            counts["f"] += 1  # here
            return x * 2

        g = jax.jit(f)
        g(1.0)
        """,
    "attribute of a global": """
        class Stats:
            calls = 0

        stats = Stats()

        @jax.jit
        def f(x):
            stats.calls += 1  # here
            return x * 2

        f(1.0)
        """,
    "static self": """
        class Model:
            def __init__(self):
                self.calls = 0

            @functools.partial(jax.jit, static_argnums=0)
            def step(self, x):
                self.calls += 1  # here
                return x * 2

        Model().step(1.0)
        """,
    "nonlocal in a scan body": """
        def run(xs):
            steps = 0

            def body(carry, x):
                nonlocal steps
                steps += 1  # here
                return carry + x, x

            jax.lax.scan(body, 0.0, xs)
            return steps

        run(jnp.arange(4.0))
        """,
    "in a function that the traced one calls": """
        calls = 0

        def count():
            global calls
            calls += 1  # here

        @jax.jit
        def f(x):
            count()
            return x * 2

        f(1.0)
        """,
    "and the code fails later for it": """
        calls = 0

        @jax.jit
        def f(x):
            global calls
            calls += 1  # here
            return x * 2

        f(1.0), f(2.0)
        assert calls == 2
        """,
}


@pytest.mark.parametrize("name", IMPURE)
def test_impure_writes_are_noted_at_their_line(name: str) -> None:
    report = checked(IMPURE[name])
    assert [(n.kind, n.line) for n in report.notes] == [("impure_write", marked_line(IMPURE[name]))]
    assert report.outcome == ("error" if "fails" in name else "clean")


SILENT = {
    "not traced": """
        calls = 0

        def f(x):
            global calls
            calls += 1
            return x

        f(1.0)
        jax.jit(lambda x: x)(1.0)
        """,
    "eager transform runs each call": """
        calls = 0

        def f(x):
            global calls
            calls += 1
            return x * x

        jax.grad(f)(1.0)
        """,
    "local list": """
        @jax.jit
        def f(x):
            rungs = []
            for i in range(5):
                rungs.append(i)
            return x + len(rungs)

        f(1.0)
        """,
    "branch that may not run": """
        log = []

        @jax.jit
        def f(x):
            if x.ndim > 3:
                log.append(1)
            return x

        f(1.0)
        """,
    "after a return that may come first": """
        cache = {}

        @jax.jit
        def f(x):
            if x.shape in cache:
                return x
            cache["a"] = 1
            return x

        f(1.0)
        """,
    "value not known": """
        log = []

        @functools.partial(jax.jit, static_argnums=1)
        def f(x, name):
            log.append(name)
            return x

        f(1.0, "a")
        """,
    "parameter": """
        @jax.jit
        def f(state):
            state["n"] = 3
            return state

        f({"n": 1})
        """,
    "raised before the write": """
        calls = 0

        @jax.jit
        def f(x):
            global calls
            jnp.dot(x, jnp.ones((2, 3, 4)), wrong=1)
            calls += 1
            return x

        f(1.0)
        """,
    "raised and caught": """
        calls = 0

        @jax.jit
        def f(x):
            global calls
            jnp.dot(x, jnp.ones((2, 3, 4)), wrong=1)
            calls += 1
            return x

        try:
            f(1.0)
        except TypeError:
            pass
        """,
    "reset of a name that held a tracer": """
        slot = None

        @jax.jit
        def f(x):
            global slot
            slot = x
            y = slot * 2
            slot = None
            return y

        f(1.0)
        """,
    "mutable reference of JAX": """
        count = jax.new_ref(0) if hasattr(jax, "new_ref") else [0]

        @jax.jit
        def f(x):
            count[...] = 1
            return x

        if hasattr(jax, "new_ref"):
            f(1.0)
        """,
    "loop of few steps": """
        @jax.jit
        def f(x):
            for _ in range(8):
                x = jnp.sin(x)
            return x

        f(1.0)
        """,
    "loop that may end early": """
        @jax.jit
        def f(x):
            for i in range(1000):
                if i > 3:
                    break
                x = jnp.sin(x)
            return x

        f(1.0)
        """,
    "loop without an operation of JAX": """
        @jax.jit
        def f(x):
            total = 0
            for i in range(1000):
                total = total + i * 2
            return x + total

        f(1.0)
        """,
    "global that never changes": """
        rate = 0.1

        @jax.jit
        def f(x):
            return x * rate

        f(1.0), f(2.0)
        """,
    "changed and traced again": """
        rate = 0.1

        @jax.jit
        def f(x):
            return x * rate

        f(1.0)
        rate = 0.2
        f(jnp.ones(3))
        """,
    "changed and not called again": """
        rate = 0.1

        @jax.jit
        def f(x):
            return x * rate

        f(1.0)
        rate = 0.2
        """,
    "argument of the same name": """
        rate = 0.1

        @jax.jit
        def f(x, rate):
            return x * rate

        f(1.0, rate)
        rate = 0.2
        f(1.0, rate)
        """,
    "another key": """
        options = {"rate": 0.1, "name": "a"}

        @jax.jit
        def f(x):
            return x * options["rate"]

        f(1.0)
        options["name"] = "b"
        f(1.0)
        """,
}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_said_where_it_is_not_certain(name: str) -> None:
    assert checked(SILENT[name]).notes == ()


def test_a_write_whose_value_leaked_is_a_leak_and_no_note() -> None:
    report = checked(
        """
        last = 0

        @jax.jit
        def f(x):
            global last
            last = x
            return x

        f(1.0)
        """
    )
    assert (report.outcome, report.notes) == ("leaks", ())


UNROLLED = {
    "range": """
        STEPS = 50

        @jax.jit
        def f(x):
            for _ in range(STEPS):  # here
                x = jnp.sin(x)
            return x

        f(1.0)
        """,
    "nested": """
        @jax.jit
        def f(x):
            for i in range(8):  # here
                for j in range(8):
                    x = x * 0.5 + 1
            return x

        f(1.0)
        """,
    "while": """
        @jax.jit
        def f(x):
            i = 0
            while i < 40:  # here
                x = x / 2
                i += 1
            return x

        f(1.0)
        """,
}


@pytest.mark.parametrize("name", UNROLLED)
def test_unrolled_loops_are_noted_once(name: str) -> None:
    notes = checked(UNROLLED[name]).notes
    assert [(n.kind, n.line) for n in notes] == [("unrolled_loop", marked_line(UNROLLED[name]))]


BAKED = {
    "rebound": """
        rate = 0.1

        @jax.jit
        def f(x):
            return x * rate  # here

        f(1.0)
        rate = 0.2
        f(1.0)
        """,
    "item": """
        options = {"rate": 0.1}

        def f(x):
            return x * options["rate"]  # here

        g = jax.jit(f)
        g(1.0)
        options["rate"] = 0.2
        y = g(1.0)
        """,
    "attribute": """
        class Options:
            rate = 0.1

        options = Options()
        f = jax.jit(lambda x: x * options.rate)  # here
        f(1.0)
        options.rate = 0.2
        f(1.0)
        """,
}


@pytest.mark.parametrize("name", BAKED)
def test_globals_baked_in_are_noted_where_they_are_read(name: str) -> None:
    notes = checked(BAKED[name]).notes
    assert [(n.kind, n.line) for n in notes] == [("baked_in_value", marked_line(BAKED[name]))]


def test_a_function_of_another_cell_is_named_with_its_cell() -> None:
    earlier = """
        calls = 0

        @jax.jit
        def f(x):
            global calls
            calls += 1  # here
            return x
        """
    (note,) = checked("f(1.0)\n", earlier).notes
    assert note.line is None
    assert f"In [1], line {marked_line(earlier)}" in note.text


def test_a_filled_container_is_called_by_its_name() -> None:
    (note,) = checked(IMPURE["list of shapes"]).notes
    assert note.text == "`shapes` is written while `jit` traces `f`: once a compilation, not once a call."


def test_notes_can_be_turned_off() -> None:
    assert checked(IMPURE["global counter"], notes=False).notes == ()


def test_no_more_than_a_few_notes() -> None:
    writes = "\n".join(f"    seen.append({n})" for n in range(20))
    assert len(checked(f"seen = []\n@jax.jit\ndef f(x):\n{writes}\n    return x\nf(1.0)\n").notes) == 5
