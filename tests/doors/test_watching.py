"""%leakwatch: what it tells, what it stays silent on, and that nothing of it stays behind."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest
from IPython.core.error import UsageError

from jaxleak_magic.detect.watch import LeakWatch
from tests.conftest import REPOSITORY
from tests.diagnose.clean_programs import PROGRAMS
from tests.doors.fakes import empty_report

DEFINITIONS = """
import jax, jax.numpy as jnp
kept = []
def double(x):
    y = 2 * x
    kept.append(y)
    return y
"""


def run(shell, text, **how):
    return shell.run_cell(textwrap.dedent(text), **{"store_history": True, **how})


@pytest.fixture
def watching(shell, capsys):
    """A shell that watches, with the functions of the tests defined."""
    before = trace_init()
    run(shell, "%leakwatch on")
    run(shell, DEFINITIONS)
    assert capsys.readouterr().out == ""
    yield shell
    run(shell, "%leakwatch off")
    assert trace_init() is before


def trace_init():
    from jax._src import core

    return core.Trace.__dict__["__init__"]


def notices(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "leaked out of" in line]


def test_a_leak_is_told_in_one_line_and_the_report_is_at_hand(watching, capsys):
    run(watching, "jax.jit(double)(jnp.arange(3.0));")
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "Leak: y leaked out of jit(double), kept alive by kept[0]. %leakcheck shows the report."
    run(watching, "%leakcheck -o report --text")
    assert "3      y = 2 * x" not in (out := capsys.readouterr().out)
    assert "`y` leaked out of `jit(double)`" in out
    report = watching.user_ns["report"]
    (leak,) = report.leaks
    assert leak.created.line == 5 and leak.stored.line == 6 and leak.escaped.line == 1
    assert "only watched" in report.checked.unchecked[0]


def test_the_report_unfolds_where_html_is_shown(watching, capsys):
    shown = []
    watching.display_formatter.active_types = ["text/plain", "text/html"]
    watching.display_pub.publish = lambda data, **_: shown.append(data)
    run(watching, "jax.jit(double)(jnp.arange(3.0));")
    (bundle,) = shown
    assert bundle["text/html"].startswith("<details")
    assert "<code>y</code> leaked out of" in bundle["text/html"]
    assert "Who keeps it alive" in bundle["text/html"]
    assert bundle["text/plain"].count("\n") == 0


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1",
        "for _ in range(5): jax.grad(lambda x: x**2)(3.0)",
        "value, pullback = jax.vjp(lambda x: x**2, 3.0)",
        "jaxpr = jax.make_jaxpr(lambda x: x + 1)(3.0)",
        "class Node: pass\ndef f(x):\n    n = Node(); n.self = n; n.x = x\n    return x\njax.vmap(f)(jnp.ones(3))",
        "def wrong(x):\n    return x + 'a'\njax.jit(wrong)(1.0)",
        "err = None\ntry:\n    jax.jit(lambda x: 1 // 0)(1.0)\nexcept ZeroDivisionError as e:\n    err = e",
    ],
    ids=["no jax", "grad", "vjp", "jaxpr", "cycle", "raises", "kept exception"],
)
def test_clean_cells_are_silent(watching, capsys, cell):
    run(watching, cell)
    assert notices(capsys) == []


def test_a_clean_cell_costs_no_full_collection(watching):
    full = []
    note = lambda phase, info: full.append(info) if info["generation"] == 2 and phase == "start" else None
    gc.collect()
    gc.callbacks.append(note)
    try:
        run(watching, "jax.vmap(jax.grad(lambda x: x**2))(jnp.ones(3));")
    finally:
        gc.callbacks.remove(note)
    assert full == []


def test_what_died_is_forgotten_within_the_cell():
    import jax

    watch = LeakWatch(tuple)
    assert watch.install()
    watch.begin()
    kept = []
    for i in range(50):
        jax.vmap(lambda x, i=i: (kept.append(x) if i == 7 else None, x)[1])(jax.numpy.ones(3))
    assert len(list(watch._census.living)) == 1
    assert len(watch._census._by_group) <= 1
    watch.uninstall()


def test_a_value_that_only_the_history_of_outputs_keeps_is_told_as_such(watching, capsys):
    run(
        watching,
        "def f(x):\n    global last\n    last = x\n    return x\njax.vmap(f)(jnp.ones(3)); last_one = [last]; del last",
    )
    assert "kept alive by last_one" in notices(capsys)[0]
    run(watching, "def g(x):\n    made.append(x)\n    return x\nmade = []\njax.vmap(g)(jnp.ones(3))\nmade.pop()")
    (line,) = notices(capsys)
    assert "Out[4]" in line or "history" in line or "`_`" in line or "Out" in line


def test_inner_runs_and_runs_without_history_are_not_watched_as_cells(watching, capsys):
    run(watching, "jax.jit(double)(jnp.arange(3.0));", store_history=False)
    run(watching, "jax.jit(double)(jnp.arange(4.0));", silent=True)
    assert notices(capsys) == []
    run(watching, "get_ipython().run_cell('jax.jit(double)(jnp.arange(5.0));')\nprint('end')")
    out = capsys.readouterr().out
    assert out.count("leaked out of") == 1
    assert out.index("end") < out.index("leaked out of")


def test_an_earlier_leak_is_not_told_again(watching, capsys):
    run(watching, "jax.jit(double)(jnp.arange(3.0));")
    run(watching, "jax.vmap(lambda x: x)(jnp.ones(3));")
    assert len(notices(capsys)) == 1


def test_a_checked_cell_is_not_told_twice(watching, capsys):
    run(watching, "%%leakcheck -q\njax.jit(double)(jnp.arange(3.0));")
    run(watching, "%leakcheck -q jax.jit(double)(jnp.arange(4.0))")
    assert notices(capsys) == []


def test_an_interrupted_cell_is_let_go(watching, capsys):
    run(watching, "jax.jit(double)(jnp.arange(3.0))\nraise KeyboardInterrupt")
    assert notices(capsys) == []
    run(watching, "kept.clear(); jax.jit(double)(jnp.arange(4.0));")
    assert len(notices(capsys)) == 1


def test_off_and_unload_take_the_hook_out(bare_shell):
    before = trace_init()
    run(bare_shell, "%load_ext jaxleak_magic\n%leakwatch on\n%leakwatch on")
    assert trace_init() is not before
    run(bare_shell, "%leakwatch off")
    assert trace_init() is before
    run(bare_shell, "%leakwatch on")
    run(bare_shell, "%unload_ext jaxleak_magic")
    assert trace_init() is before


def test_a_reload_goes_on_watching_with_one_hook(watching, capsys):
    run(watching, "%reload_ext jaxleak_magic")
    run(watching, "jax.jit(double)(jnp.arange(3.0));")
    assert len(notices(capsys)) == 1
    run(watching, "%leakwatch off")
    assert trace_init().__qualname__ == "Trace.__init__"


def test_on_and_off_inside_a_check_are_refused(watching, capsys):
    result = run(watching, "%%leakcheck -q\n%leakwatch off")
    assert isinstance(result.error_in_exec, UsageError) or "cell of its own" in capsys.readouterr().err
    run(watching, "jax.jit(double)(jnp.arange(3.0));")
    assert len(notices(capsys)) == 1


def test_status(watching, capsys):
    run(watching, "jax.jit(double)(jnp.arange(3.0));")
    run(watching, "%leakwatch status")
    assert "%leakwatch is on: 3 cells watched, 1 of them leaked" in capsys.readouterr().out
    run(watching, "%leakwatch off\n%leakwatch")
    assert "%leakwatch is off." in capsys.readouterr().out


def test_an_error_of_ours_is_owned_up_to_and_the_cell_lives(watching, capsys, monkeypatch):
    def fails(*_):
        raise ValueError("broken")

    monkeypatch.setattr("jaxleak_magic.checked_run.CheckedRun.explain_watched", fails)
    result = run(watching, "jax.jit(double)(jnp.arange(3.0)); 42")
    assert result.result == 42
    assert "an error inside jaxleak-magic, ValueError: broken" in capsys.readouterr().err


def test_several_leaks_are_counted(watching, capsys, monkeypatch):
    run(watching, "other = []\njax.jit(double)(1.0); jax.vmap(lambda x: (other.append(x), x)[1])(jnp.ones(2));")
    assert notices(capsys)[0].startswith("2 leaks, the first: ")


def test_a_wrong_word_is_named(shell):
    with pytest.raises(UsageError, match="takes on, off or status, and not 'of'"):
        shell.run_line_magic("leakwatch", "of")
    assert empty_report().outcome == "clean"


@pytest.mark.kernel
def test_in_a_kernel_the_report_unfolds_below_the_line():
    from tests.doors.kernel import Kernel

    kernel = Kernel()
    try:
        assert kernel.run("%load_ext jaxleak_magic\n%leakwatch on", cell_id="a").kinds == []
        assert kernel.run(DEFINITIONS, cell_id="b").kinds == []
        reply = kernel.run("jax.jit(double)(jnp.arange(3.0));", cell_id="c")
        assert reply.kinds == ["display_data"] and reply.status == "ok"
        assert reply.report["text/plain"].startswith("Leak: y leaked out of jit(double)")
        assert reply.report["text/html"].startswith("<details")
        stopped = "import time\njax.jit(double)(jnp.arange(4.0))\nprint('on', flush=True)\ntime.sleep(60)"
        reply = kernel.run(stopped, cell_id="d", interrupt_when="on")
        assert reply.status == "error" and "display_data" not in reply.kinds
        assert kernel.run("jax.jit(double)(jnp.arange(5.0));", cell_id="e").kinds == ["display_data"]
    finally:
        kernel.close()


_PROGRAMS_IN_ONE_SHELL = """
import json, sys, warnings
warnings.simplefilter("ignore")
from IPython.core.interactiveshell import InteractiveShell
from jaxleak_magic.magics import load
shell = InteractiveShell.instance()
checker = load(shell).checker
shell.run_line_magic("leakwatch", "on")
alarms = []
for name, *cells in json.load(sys.stdin):
    shell.run_line_magic("reset", "-f")
    for cell in cells:
        result = shell.run_cell(cell, store_history=True)
        if checker.last_report is not None or not result.success:
            alarms.append(f"{name}: {checker.last_report} {result.error_in_exec!r}")
        checker.last_report = None
print("TOLD" + json.dumps([alarms, checker.watch.cells]))
"""


def test_no_alarm_on_clean_programs():
    programs = [p for p in PROGRAMS if all(importlib.util.find_spec(need) for need in p.needs)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAMS_IN_ONE_SHELL],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        input=json.dumps([[p.name, p.setup, p.cell, p.cell] for p in programs]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TOLD" in done.stdout, done.stderr[-3000:]
    alarms, cells = json.loads(done.stdout.rpartition("TOLD")[2])
    assert alarms == []
    assert cells == 3 * len(programs)
