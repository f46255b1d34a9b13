"""The view for any object, as text."""

from __future__ import annotations

import threading
import weakref

import pytest

from jaxleak_magic.heap import Root, why_alive


class Thing:
    pass


class Learner:
    def __init__(self, schedule: object) -> None:
        self.schedule = schedule


def schedule_with(rate: object):
    def schedule():
        return rate

    return schedule


def test_text_runs_from_the_root_to_the_object() -> None:
    thing = Thing()
    view = why_alive(thing, [Root({"learners": [Learner(schedule_with(thing))]}, "", "namespace", 0)])
    assert str(view).splitlines() == [
        f"A {__name__}.Thing is held, 6 references deep:",
        "    notebook: the variable learners",
        "    list has it as [0]",
        "    Learner has it as .schedule",
        "    schedule() closes over rate",
    ]
    assert repr(view) == str(view)


def test_default_roots_show_the_callers_variable() -> None:
    thing = Thing()
    assert "test_default_roots_show_the_callers_variable() has it in its variable thing" in str(why_alive(thing))


def test_it_does_not_keep_the_object() -> None:
    thing = Thing()
    reference = weakref.ref(thing)
    view = why_alive(thing)
    del thing
    assert reference() is None
    assert view.paths


def test_nothing_holds_it() -> None:
    view = why_alive(Thing())
    assert view.paths == ()
    assert str(view).startswith("Nothing that Python's collector can see")


def test_something_unseen_holds_it() -> None:
    np = pytest.importorskip("numpy")
    record = np.zeros(1, dtype=[("field", object)])
    record["field"][0] = Thing()
    view = why_alive(record["field"][0])
    assert view.paths == ()
    assert view.invisible
    assert "collector cannot see" in str(view)


def test_another_threads_variable() -> None:
    started, done = threading.Event(), threading.Event()
    box = [Thing()]

    def work(kept: object) -> None:
        started.set()
        done.wait()

    thread = threading.Thread(target=work, args=(box[0],), name="solver")
    thread.start()
    started.wait()
    text = str(why_alive(box[0], per_target=8))
    done.set()
    thread.join()
    assert "in the thread solver, work() has it in its variable kept" in text


@pytest.mark.parametrize("value", [None, 3, "text", (), int, threading, print, len])
def test_any_object(value: object) -> None:
    assert str(why_alive(value))
