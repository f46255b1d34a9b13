"""Run code under JAX's leak check with our hooks in place, and take all of them out again."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import Census
from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.detect.compilations import Compilations
from jaxleak_magic.detect.retrace import retracing
from jaxleak_magic.detect.sweep import live_tracers
from jaxleak_magic.uninterrupted import uninterrupted

_running = threading.Lock()


def check_is_running() -> bool:
    """Whether a check is running in this process: what is traced now is that check's."""
    return _running.locked()


class LeakCheck:
    """The hooks of one checked run.

    Args:
        retrace: trace every function anew.
        user_files: gives file names that are the user's, whatever they look like.
        census_only: only count traces that outlive the run; JAX's own check stays off and nothing is traced anew.
    """

    def __init__(self, retrace: bool, user_files: Callable[[], Iterable[str]], census_only: bool = False) -> None:
        self.owners = CodeOwners(_jax.jax_directories(), user_files)
        self.census = Census(self.owners)
        self.retraced = False
        self.checking_leaks = False
        self.ran = False
        self.compilations = Compilations()
        self.inside_function = False
        """Whether what runs is a part of a running function of the user's, whose variables outlive it."""
        self._alive_before: dict[int, weakref.ref[Any] | None] | None = None
        """Tracers that were alive before the run, by identity; only where traces do not tell which are of this run."""
        self._retrace = retrace and not census_only
        self._census_only = census_only
        self._undo = ExitStack()

    @classmethod
    def of_watched(cls, census: Census, owners: CodeOwners) -> LeakCheck:
        """What a run that was only watched has to tell; the hooks are the watch's own (see `detect.watch`)."""
        check = cls(False, tuple, census_only=True)
        check.census, check.owners, check.ran = census, owners, True
        return check

    def start(self) -> None:
        """Put all hooks in. Raises RuntimeError where another check is running in this process."""
        import jax

        with uninterrupted(), ExitStack() as undo:
            if not _running.acquire(blocking=False):
                raise RuntimeError("another leak check is running in this process: one cannot stand inside another")
            undo.callback(_running.release)
            self.census.start(lines=not self._census_only)
            undo.callback(self.census.stop)
            if not (self.census.available and _jax.tells_traces()):
                self._alive_before = {id(tracer): _weak(tracer) for tracer in live_tracers()}
            self._keep_whole_tracebacks(undo)
            if self._retrace:
                self.retraced = undo.enter_context(retracing())
                undo.enter_context(self.compilations.counted())
            if not self._census_only:
                self._collect_instead_of_raising(undo)
                undo.enter_context(jax.checking_leaks())
                self.checking_leaks = True
            self.ran = True
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """Take all hooks out. Safe to call twice."""
        with uninterrupted():
            self._undo.close()

    def tracers_left(self) -> list[object]:
        """The tracers of this run that are alive now, after a collection."""
        before = self._alive_before
        if before is None:
            if not self.census.alive():
                return []
            gc.collect()
            traces = [trace for birth in self.census.alive() if (trace := birth.ref()) is not None]
            return live_tracers(traces) if traces else []
        gc.collect()
        return [t for t in live_tracers() if id(t) not in before or not _is(before[id(t)], t)]

    def _collect_instead_of_raising(self, undo: ExitStack) -> None:
        """Let JAX go on at a leak: note the trace, return no tracers, skip its search (slow; IndexError on 0.10.2)."""
        hook = _jax.leak_check_hook()
        if hook is None:
            return
        module, name = hook
        original = getattr(module, name)
        census = self.census

        def note_live_trace(trace: Any) -> list[Any]:
            with contextlib.suppress(Exception):
                census.mark_ended(trace)
            return []

        setattr(module, name, note_live_trace)
        undo.callback(setattr, module, name, original)

    def _keep_whole_tracebacks(self, undo: ExitStack) -> None:
        """Have JAX hide its frames instead of removing them: the dead tracer of an error is found in them.

        ``auto`` means ``tracebackhide`` in IPython and ``quiet_remove_frames`` elsewhere, which cannot be undone later.
        """
        import jax

        before = getattr(jax.config, "jax_traceback_filtering", None)
        if before in ("auto", "quiet_remove_frames", "remove_frames"):
            jax.config.update("jax_traceback_filtering", "tracebackhide")
            undo.callback(jax.config.update, "jax_traceback_filtering", before)


def _weak(tracer: object) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(tracer)
    except TypeError:  # tracers of JAX 0.7.2
        return None


def _is(ref: weakref.ref[Any] | None, tracer: object) -> bool:
    """Whether a tracer is the one that was noted; of one that takes no weak reference only its identity is known."""
    return ref is None or ref() is tracer
