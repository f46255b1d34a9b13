"""A JAX without the private names that we know: the check works by public means, and says what it cannot do."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

from jaxleak_magic import checking
from jaxleak_magic.detect import _jax
from jaxleak_magic.show.bundle import mimebundle
from tests.trust.process_state import process_state

# Each function of the one module that touches private names, and what it answers where its name is gone.
HIDDEN = {
    "core": lambda: None,
    "trace_class": lambda: None,
    "lineless_tracer_classes": lambda: [],
    "trace_of": lambda tracer: None,
    "tells_traces": lambda: False,
    "parent_of": lambda trace: None,
    "current_trace": lambda: None,
    "debug_function": lambda trace: None,
    "argument_name": lambda tracer: None,
    "is_argument": lambda tracer: False,
    "operands_of_constant": lambda tracer: None,
    "creation_frames": lambda tracer: iter(()),
    "registered_pytrees": lambda: None,
    "leak_check_hook": lambda: None,
    "profile_version_flag": lambda: None,
    "listen_to_durations": lambda listener: lambda: None,
    "handles_custom_rules": lambda module: False,
}
FOUND_BY_THE_ERROR = {"leak_check_hook", "core"}
"""Without these JAX's own check cannot be told to go on: it raises at the first leak, which ends the run."""

kept = []


def new_store():
    """A function that no test has compiled yet: not every JAX here can trace one anew."""

    def store(x):
        y = 2 * x
        kept.append(y)
        return y

    return store


@pytest.fixture(autouse=True)
def nothing_kept():
    kept.clear()
    yield
    kept.clear()


def hide(monkeypatch, names):
    for name in [*names, *(["tells_traces"] if "trace_of" in names else [])]:
        monkeypatch.setattr(_jax, name, HIDDEN[name])


def run_of(function):
    raised = None
    try:
        with checking() as report:
            function()
    except Exception as error:
        raised = error
    assert mimebundle(report.report)["text/html"] and json.loads(report.to_json())
    return report, raised


def test_every_function_that_reads_a_private_name_is_hidden_here():
    public = {"jax_directories", "subclasses", "tracer_classes", "carrier_classes"}
    functions = {n for n, f in vars(_jax).items() if callable(f) and getattr(f, "__module__", "") == _jax.__name__}
    assert {n for n in functions if not n.startswith("_")} - public == set(HIDDEN)


@pytest.mark.parametrize("names", [[name] for name in HIDDEN] + [list(HIDDEN)], ids=[*HIDDEN, "all at once"])
def test_a_leak_is_found_by_public_means(monkeypatch, names):
    before = process_state()
    hide(monkeypatch, names)
    report, raised = run_of(lambda: jax.jit(new_store())(1.0))
    assert (raised is not None) == bool(FOUND_BY_THE_ERROR & set(names))
    assert report.outcome == "leaks", str(report)
    assert report.leaks[0].holder is not None and report.leaks[0].holder.name == "kept"
    assert process_state() == before


@pytest.mark.parametrize("names", [[name] for name in HIDDEN] + [list(HIDDEN)], ids=[*HIDDEN, "all at once"])
def test_a_clean_run_is_clean(monkeypatch, names):
    hide(monkeypatch, names)
    report, raised = run_of(lambda: jax.jit(jax.vmap(jax.grad(lambda x: x**2)))(jnp.arange(3.0)))
    assert raised is None and report.outcome == "clean", str(report)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trace_class", "does not let traces be counted"),
        ("profile_version_flag", "compiled before this cell were not traced again"),
    ],
)
def test_it_says_what_it_cannot_do(monkeypatch, name, said):
    hide(monkeypatch, [name])
    report, _ = run_of(lambda: jax.jit(new_store())(1.0))
    assert any(said in sentence for sentence in report.checked.unchecked), report.checked.unchecked
    assert said in " ".join(str(report).split())


def test_the_watch_says_that_it_cannot_watch(monkeypatch, shell, capsys):
    hide(monkeypatch, ["trace_class"])
    shell.run_cell("%leakwatch on")
    assert "does not let traces be counted" in capsys.readouterr().err
