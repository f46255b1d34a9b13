"""An interrupt at any moment of a checked cell: nothing of the user's is lost, and nothing of ours stays behind."""

from __future__ import annotations

import _thread
import gc
import random
import signal
import sys
import threading
import time

import pytest

from tests.trust.process_state import process_state

SETUP = """
import jax, jax.numpy as jnp
kept = []
precious = {"a": [1, 2, 3]}
def make(rate):
    def schedule(step):
        return rate * step
    kept.append(schedule)
    return schedule(1.0)
"""
CELL = "%%leakcheck --text -o report\nvalue = jax.jit(jax.vmap(make))(jnp.arange(3.0))\nprint('done')"


class Interrupt(threading.Thread):
    """Interrupts the main thread once, after a while, unless it is called off before."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self.seconds, self.off, self.came = seconds, threading.Event(), False

    def run(self) -> None:
        if not self.off.wait(self.seconds):
            self.came = True
            _thread.interrupt_main()


def run_interrupted(shell, seconds: float) -> bool:
    """Run the cell, and say whether it was interrupted on its way."""
    interrupt = Interrupt(seconds)
    try:
        interrupt.start()
        shell.run_cell(CELL, store_history=True)
        interrupt.off.set()
        interrupt.join()
        for _ in range(1000):  # one that came at the very end is raised here
            pass
    except KeyboardInterrupt:
        pass
    interrupt.off.set()
    interrupt.join()
    return interrupt.came


def check_all_is_well(shell, before) -> None:
    assert process_state(shell) == before
    names = shell.user_ns
    assert names["precious"] == {"a": [1, 2, 3]}
    assert shell.history_manager.input_hist_raw[-1] == CELL
    # What was interrupted leaves no trace alive but by what the user's own code kept; and the next check is whole.
    names["kept"].clear()
    result = shell.run_cell("%%leakcheck -q -o again\nmake2 = jax.jit(make)(2.0)", store_history=True)
    assert result.success, result.error_in_exec
    (leak,) = names["again"].leaks
    assert leak.variable == "rate" and process_state(shell) == before
    names["kept"].clear()


def live_tracers() -> list[object]:
    import jax

    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), jax.core.Tracer)]


def interrupts(shell, points: int, seed: int) -> None:
    of_other_tests = set(map(id, live_tracers()))
    shell.run_cell(SETUP, store_history=True)
    shell.run_cell(CELL, store_history=True)  # all is imported
    begun = time.perf_counter()
    shell.run_cell(CELL, store_history=True)
    whole = time.perf_counter() - begun
    shell.user_ns["kept"].clear()
    before = process_state(shell)
    moments = random.Random(seed)
    came = 0
    for _ in range(points):
        came += run_interrupted(shell, moments.uniform(0, whole))
        check_all_is_well(shell, before)
    assert came > points * 0.5
    shell.run_line_magic("reset", "-f")
    shell.last_execution_result = shell.InteractiveTB.tb = shell.InteractiveTB.tb_offset = None
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    assert not [each for each in live_tracers() if id(each) not in of_other_tests]


@pytest.fixture(autouse=True)
def lost_interrupts_are_dropped(monkeypatch):
    """One that comes inside JAX's own ``gc`` callback is lost by Python; pytest would keep it with its frames."""
    monkeypatch.setattr(sys, "unraisablehook", lambda args: None)


def test_an_interrupt_at_any_moment(shell, capsys):
    interrupts(shell, 40, seed=1)
    capsys.readouterr()


@pytest.mark.parametrize("method", ["start", "stop"])
def test_an_interrupt_while_hooks_go_in_or_out_comes_right_after(monkeypatch, method):
    from jaxleak_magic import checking
    from jaxleak_magic.detect.census import Census

    before, original = process_state(), getattr(Census, method)

    def interrupted(self, **how):
        signal.raise_signal(signal.SIGINT)
        original(self, **how)

    monkeypatch.setattr(Census, method, interrupted)
    with pytest.raises(KeyboardInterrupt), checking():
        pass
    assert process_state() == before


def test_an_interrupt_while_the_watch_is_switched_on(monkeypatch):
    from jaxleak_magic.detect.census import Census
    from jaxleak_magic.detect.watch import LeakWatch

    before, original = process_state(), Census.start

    def interrupted(self, **how):
        signal.raise_signal(signal.SIGINT)
        original(self, **how)

    monkeypatch.setattr(Census, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LeakWatch(tuple).install()
    assert process_state() == before


@pytest.mark.nightly
def test_an_interrupt_at_500_moments(shell, capsys):
    interrupts(shell, 500, seed=2)
    capsys.readouterr()
