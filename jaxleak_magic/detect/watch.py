"""A census that may always be there: it sees which traces outlive a cell and costs a clean cell next to nothing.

The hook stays in while the watch is on. Putting it in and taking it out for each cell would use up the 1000 versions
that CPython 3.13 gives a class (``MAX_VERSIONS_PER_CLASS``), after which lookups on every trace class stay uncached.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import Birth, Census
from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.detect.run import LeakCheck, check_is_running
from jaxleak_magic.uninterrupted import uninterrupted

FREE_S = 0.0003
"""Seconds that describing births may take in any cell."""

SHARE = 0.005
"""Share of the cell's time so far that describing births may take beyond `FREE_S`.

Describing one birth walks the stack (40 us on JAX 0.10.2 with Python 3.11 and on 0.12.0.1 with 3.13), and an eager
``grad`` has two births in 2 ms: describing all would cost 4 %. What is not described is reported as of an earlier run.
"""


class LeakWatch:
    """Sees the traces that are born between `begin` and `end` and are alive afterwards.

    Args:
        user_files: gives file names that are the user's, whatever they look like.
    """

    def __init__(self, user_files: Callable[[], Iterable[str]]) -> None:
        self._owners = CodeOwners(_jax.jax_directories(), user_files)
        self._census = _WatchCensus(self._owners)

    def install(self) -> bool:
        """Put the hook in; False where births cannot be seen on this JAX. Raises RuntimeError inside a check."""
        if check_is_running():
            raise RuntimeError("a leak check is running: its end would take the watch's hook out")
        try:
            with uninterrupted():
                self._census.start(lines=False)
        except BaseException:  # also an interrupt that was held back until the hook was in
            self._census.stop()
            raise
        return self._census.available

    def uninstall(self) -> None:
        """Take the hook out and forget everything. Safe to call twice; raises RuntimeError inside a check."""
        if check_is_running():
            raise RuntimeError("a leak check is running: its end would put the watch's hook back")
        self.forget()
        with uninterrupted():
            self._census.stop()

    def begin(self) -> None:
        """A cell begins."""
        self._census.begin()

    def end(self) -> LeakCheck | None:
        """The cell has ended: what is known of its traces if one is alive, else None. Never a full collection.

        What dies with the young generations was garbage in cycles; the cell's own objects are mostly among them.
        """
        self._census.active = False
        if not self._census.any_alive():
            return None
        gc.collect(1)
        if not self._census.any_alive():
            return None
        self._census.births = list(self._census.living)
        return LeakCheck.of_watched(self._census, self._owners)

    def forget(self) -> None:
        """Forget the last cell's traces, and what its code objects were."""
        self._census.active = False
        self._census.forget()
        self._owners.forget_cells()


class _TraceRef(weakref.ref[Any]):
    """A weak reference that knows the key of its trace's birth."""

    __slots__ = ("key",)

    key: int


class _WatchCensus(Census):
    """Forgets a trace as soon as it dies, and describes only as many births as there is time for."""

    def __init__(self, owners: CodeOwners) -> None:
        super().__init__(owners)
        self.active = False
        self._begun = 0.0
        self._spent = 0.0

    @property
    def living(self) -> Iterable[Birth]:
        return tuple(self._by_trace.values())

    def any_alive(self) -> bool:
        return any(birth.trace_class != "EvalTrace" for birth in self.living)

    def begin(self) -> None:
        self.forget()
        self._spent = 0.0
        self._begun = time.perf_counter()
        self.active = True

    def forget(self) -> None:
        self.births.clear()
        self._by_trace.clear()
        self._by_group.clear()

    def birth_of(self, trace: object) -> Birth | None:
        """The birth of a trace that there was time to describe, or None."""
        birth = super().birth_of(trace)
        return birth if birth is not None and birth.transform is not None else None

    def _record_birth(self, trace: Any) -> None:
        if not self.active or check_is_running():
            return
        ref = _TraceRef(trace, self._died)
        ref.key = key = id(trace)
        birth = self._by_trace[key] = Birth(ref, type(trace).__name__)
        begun = time.perf_counter()
        if self._spent < FREE_S + SHARE * (begun - self._begun):
            self._describe(birth, sys._getframe(2))
            self._spent += time.perf_counter() - begun

    def _died(self, ref: weakref.ref[Any]) -> None:
        """The weak reference's callback: it may run in any thread and inside a collection."""
        assert isinstance(ref, _TraceRef)
        birth = self._by_trace.get(ref.key)
        if birth is not None and birth.ref is ref:
            self._by_trace.pop(ref.key, None)
            if self._by_group.get(birth.group) is birth:
                self._by_group.pop(birth.group, None)
