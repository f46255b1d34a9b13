"""`checking()` and `check()`: in functions, scripts, notebooks and marimo."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import jaxleak_magic
from jaxleak_magic import LeakError, check, checking
from tests.conftest import REPOSITORY

kept = []


@pytest.fixture(autouse=True)
def nothing_kept():
    kept.clear()


def store(x):
    y = 2 * x
    kept.append(y)
    return y


def fails(x):
    kept.append(x)
    raise ValueError("no")


def test_a_global_of_the_module_keeps_it():
    with checking() as report:
        jax.jit(store)(jnp.arange(3.0))
    (leak,) = report.leaks
    assert (leak.variable, leak.facts.access) == ("y", "kept[0]")
    assert leak.created.source.strip() == "y = 2 * x"
    assert leak.stored.source.strip() == "kept.append(y)"
    assert leak.escaped.source.strip() == "jax.jit(store)(jnp.arange(3.0))"
    assert leak.created.file == __file__
    with pytest.raises(LeakError, match="`y` leaked out of `jit"):
        report.raise_if_leaks()


def test_a_local_of_the_function_around_the_block_keeps_it():
    mine = []
    with checking(fixes=False) as report:
        jax.vmap(lambda x: (mine.append(x), x)[1])(jnp.arange(3.0))
    assert [leak.verdict for leak in report.leaks] == ["leak"]
    assert report.leaks[0].holder.name == "mine"


def test_a_local_of_a_caller_keeps_it():
    mine = []

    def helper():
        with checking(fixes=False) as report:
            jax.vmap(lambda x: (mine.append(x), x)[1])(jnp.arange(3.0))
        return report

    assert helper().outcome == "leaks"


def test_what_the_block_itself_lets_go_is_no_leak():
    def in_function():
        gone = []
        jax.vmap(lambda x: (gone.append(x), x)[1])(jnp.arange(3.0))

    with checking() as report:
        in_function()
        jax.jit(lambda x: x + 1)(1.0)
    assert report.outcome == "clean"
    report.raise_if_leaks()
    assert repr(report) == "<LeakReport: No leaked tracers>"


def test_before_its_end_there_is_no_report():
    with checking() as report:
        assert repr(report) == "<LeakReport: none yet, the block has not ended>"
        with pytest.raises(RuntimeError, match="no report yet"):
            report.raise_if_leaks()
        with pytest.raises(RuntimeError, match="no report yet"):
            _ = report.leaks
    assert report.outcome == "clean"


def test_a_report_can_be_pickled_and_shown():
    with checking(fixes=False) as report:
        jax.jit(store)(1.0)
    again = pickle.loads(pickle.dumps(report))
    assert again.to_dict() == report.to_dict()
    assert "leaked out of" in report._repr_html_()
    assert set(report._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_an_exception_goes_on_and_carries_the_report_of_a_leak():
    with pytest.raises(ValueError, match="no") as caught, checking(fixes=False) as report:
        jax.jit(fails)(1.0)
    assert report.outcome == "leaks"
    assert report.error.type == "ValueError"
    assert "`x` leaked out of `jit(fails)`" in caught.value.__notes__[-1]


def test_an_exception_without_a_leak_stays_as_it_is():
    with pytest.raises(ZeroDivisionError) as caught, checking() as report:
        jax.jit(lambda x: 1 // 0)(1.0)
    assert report.outcome == "error"
    assert not any("leak" in note for note in getattr(caught.value, "__notes__", []))


def test_an_interrupt_leaves_no_report_and_no_hook():
    with pytest.raises(KeyboardInterrupt), checking() as report:
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError, match="no report"):
        _ = report.leaks
    with checking() as report:
        pass
    assert report.outcome == "clean"


def test_one_inside_another_is_one_clear_error_and_the_outer_goes_on():
    with checking(fixes=False) as report:
        with pytest.raises(RuntimeError, match="one cannot stand inside another"):
            check(store, 1.0)
        with pytest.raises(RuntimeError, match="one cannot stand inside another"), checking():
            pass
        jax.jit(store)(1.0)
    assert report.outcome == "leaks"


def test_check_calls_with_all_arguments():
    seen = {}

    def function(*args, **kwargs):
        seen.update(args=args, kwargs=kwargs)
        return jax.jit(store)(1.0)

    report = check(function, 1, 2, function=3)
    assert report.outcome == "leaks"
    assert seen == {"args": (1, 2), "kwargs": {"function": 3}}


def test_a_traced_value_in_what_the_call_gives_is_a_leak():
    def gives():
        found = []
        jax.vmap(lambda x: (found.append(x), x)[1])(jnp.ones(3))
        return found

    report = check(gives)
    (leak,) = report.leaks
    assert leak.facts.access == "gives()[0]" or leak.holder.name == "gives()"


def test_what_the_function_raises_is_raised():
    with pytest.raises(ValueError, match="no") as caught:
        check(jax.jit(fails), 1.0)
    assert "leaked out of" in caught.value.__notes__[-1]


def test_the_options_are_those_of_the_magic():
    compiled = jax.jit(store)
    compiled(1.0)
    kept.clear()
    assert check(compiled, 1.0).checked.retraced
    kept.clear()
    with checking(keep_caches=True) as report:
        compiled(1.0)
    assert report.outcome == "clean" and not report.checked.retraced and report.checked.checking_leaks
    with checking(fast=True) as report:
        compiled(1.0)
    assert not report.checked.checking_leaks


def test_a_script(tmp_path):
    script = tmp_path / "leaks.py"
    script.write_text(
        textwrap.dedent("""
        import jax
        import jaxleak_magic
        kept = []
        def f(x):
            kept.append(x)
            return x
        with jaxleak_magic.checking() as report:
            jax.vmap(f)(jax.numpy.ones(3))
        print(report)
        report.raise_if_leaks()
        """)
    )
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert run.returncode == 1
    assert "kept.append(x)\n" in run.stdout and "stored: from here on `x` is kept" in run.stdout
    assert "LeakError: `x` leaked out of `vmap(f)`." in run.stderr


def test_a_notebook_names_its_cells(shell):
    shell.run_cell(
        "import jax, jaxleak_magic\nkept = []\ndef f(x):\n    kept.append(x)\n    return x", store_history=True
    )
    shell.run_cell("with jaxleak_magic.checking() as report:\n    jax.jit(f)(1.0)", store_history=True)
    (leak,) = shell.user_ns["report"].leaks
    assert (leak.stored.cell.execution_count, leak.stored.line) == (1, 4)
    assert (leak.escaped.cell.execution_count, leak.escaped.line) == (2, 2)


def test_a_notebook_without_the_extension_too(bare_shell):
    bare_shell.run_cell(
        "import jax, jaxleak_magic\nkept = []\ndef f(x):\n    kept.append(x)\n    return x", store_history=True
    )
    bare_shell.run_cell("report = jaxleak_magic.check(jax.jit(f), 1.0)", store_history=True)
    (leak,) = bare_shell.user_ns["report"].leaks
    assert (leak.stored.cell.execution_count, leak.stored.line) == (1, 4)


def test_inside_a_checked_cell_it_is_refused(shell):
    result = shell.run_cell(
        "%%leakcheck -q\nimport jaxleak_magic\nwith jaxleak_magic.checking(): pass", store_history=True
    )
    assert "one cannot stand inside another" in str(result.error_in_exec)


_IN_MARIMO = """
import jax, jaxleak_magic
from marimo._output import formatting
kept = []
with jaxleak_magic.checking(fixes=False) as report:
    jax.jit(kept.append)(1.0)
mime, data = formatting.get_formatter(report)(report)
print(mime, "leaked out of" in data)
"""


def test_marimo_shows_it_as_html():
    """In a process of its own: marimo's formatters replace ``IPython.display.display``."""
    pytest.importorskip("marimo")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", _IN_MARIMO], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("text/html True", "application/vnd.marimo+mimebundle True")


def test_the_names_are_public():
    assert {"check", "checking"} <= set(jaxleak_magic.__all__)
