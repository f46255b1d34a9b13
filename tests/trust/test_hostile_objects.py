"""Every hostile kind in every place: nothing of it is called, and the report is whole."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import jax
import pytest

from jaxleak_magic import checking
from jaxleak_magic.show.bundle import mimebundle
from jaxleak_magic.show.page import render_page
from tests.trust.hostile_objects import KINDS, Harm, HostileError, arm, armed, disarm


def as_holder(make: Callable[[Any], Any], namespace: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        namespace["thing"] = make(x)
        return x

    jax.jit(f)(1.0)


def as_key(make: Callable[[Any], Any], namespace: dict[str, Any]) -> None:
    thing = make(None)
    try:
        hash(thing)
    except TypeError:
        thing = (id(thing), type(thing))  # a list or a dict: its class stands for it

    def f(x: Any) -> Any:
        namespace["table"] = {thing: x}
        return x

    jax.jit(f)(1.0)


def as_local(make: Callable[[Any], Any], namespace: dict[str, Any]) -> None:
    def running(thing: Any, held: Any) -> Any:
        yield thing, held

    def f(x: Any) -> Any:
        namespace["generator"] = running(make(None), x)
        next(namespace["generator"])
        return x

    jax.jit(f)(1.0)


def beside_it(make: Callable[[Any], Any], namespace: dict[str, Any]) -> None:
    thing = namespace["neighbour"] = make(None)

    def f(x: Any) -> Any:
        namespace["kept"] = [thing, x]
        return x

    jax.jit(f)(1.0)


def in_an_exception(make: Callable[[Any], Any], namespace: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        namespace["kept"] = x
        return x

    jax.jit(f)(1.0)
    thing = namespace["thing"] = make(None)
    raise thing if issubclass(type(thing), RuntimeError | HostileError) else RuntimeError("with a thing", thing)


PLACES = (as_holder, as_key, as_local, beside_it, in_an_exception)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    disarm()


def _id(value):
    return value if type(value) is str else value.__name__.replace("_", " ")


# Every other kind as holder, the rest by turns in the other places; the whole product is for the night.
DAILY = [(name, as_holder if n % 2 else PLACES[1 + n // 2 % (len(PLACES) - 1)]) for n, name in enumerate(KINDS)]
NIGHTLY = [(name, place) for name in KINDS for place in PLACES if (name, place) not in DAILY]


@pytest.mark.parametrize(
    ("name", "place"), [*DAILY, *(pytest.param(*each, marks=pytest.mark.nightly) for each in NIGHTLY)], ids=_id
)
def test_nothing_of_it_is_called_and_the_report_is_whole(name, place):
    NAMESPACE.clear()
    report, forms, touched, raised = checked(KINDS[name], place)
    assert touched == []
    assert raised == (place is in_an_exception)
    bundle, page, whole, source = forms
    assert report.outcome == "leaks", str(report)
    assert len(report.leaks) >= 1 and report.report.real_leaks
    assert "leaked out of" in bundle["text/plain"] and "leaked out of" in bundle["text/html"]
    assert page.encode() and "\x1b" not in page
    assert json.loads(whole)["outcome"] == "leaks" and source.startswith(("digraph", "//"))
    assert pickle.loads(pickle.dumps(report.report)) == report.report
    NAMESPACE.clear()


NAMESPACE: dict[str, Any] = {}


def checked(make, place):
    """Report, its forms, the hooks that were called on the way, and whether the block raised. Harm stays in here."""
    raised = False
    try:
        try:
            with checking() as report:
                try:
                    place(make, NAMESPACE)
                finally:
                    arm()
        except (RuntimeError, HostileError):
            raised = True
        forms = mimebundle(report.report), render_page([report.report]), report.to_json(), report.graph.source
    except Harm as harm:
        disarm()
        pytest.fail(f"harm was done: {harm}")
    finally:
        touched = disarm()
    return report, forms, touched, raised


def test_there_are_at_least_60_kinds_and_their_hooks_do_harm():
    assert len(KINDS) >= 60
    with armed() as touched, pytest.raises(Harm):
        repr(KINDS["raises in __repr__"](None))
    assert touched == ["__repr__"]
    with armed() as touched:
        assert isinstance(KINDS["says it is a dict"](None), dict)
    assert touched == ["__class__"]


def test_all_kinds_at_once_in_a_notebook(shell, capsys):
    """Names of the notebook are bound to all of them, and one name is no proper text."""
    shell.run_cell("import jax\nfrom tests.trust.hostile_objects import KINDS, arm, disarm, _HostileStr")
    shell.run_cell("things = {f'thing_{n}': make(None) for n, make in enumerate(KINDS.values())}")
    shell.run_cell("globals().update(things); globals()[_HostileStr('odd')] = 1")
    shell.run_cell("kept = []", store_history=True)
    capsys.readouterr()
    cell = "%%leakcheck -q -o report\n@jax.jit\ndef f(x):\n    kept.append(x)\n    return x\nf(1.0)\narm()"
    result = shell.run_cell(cell, store_history=True)
    assert disarm() == [] and result.success
    report = shell.user_ns["report"]
    assert [leak.variable for leak in report.leaks] == ["x"] and report.leaks[0].fixes
