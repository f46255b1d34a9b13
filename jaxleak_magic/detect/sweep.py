"""Find live tracers without walking the heap object by object."""

from __future__ import annotations

import gc
from collections.abc import Collection

from jaxleak_magic.detect import _jax


def live_tracers(traces: Collection[object] | None = None) -> list[object]:
    """Tracers that are alive now.

    Instances refer to their class, so the referrers of all tracer classes are found in one pass over the heap (1.15
    passes measured at 10^6 objects; ``isinstance`` over all objects takes 4.2 and runs ``__class__`` properties).

    Args:
        traces: only tracers of these traces, or None for all tracers.
    """
    classes = _jax.tracer_classes()
    wanted = set(map(id, classes))
    found = [o for o in gc.get_referrers(*classes) if id(type(o)) in wanted]
    if traces is None:
        return found
    ids = set(map(id, traces))
    return [tracer for tracer in found if id(_jax.trace_of(tracer)) in ids]
