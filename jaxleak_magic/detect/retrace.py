"""Have every function traced anew for one run, and the user's compiled functions kept for afterwards.

JAX traces a compiled function again only when its cache key differs, so a leak in a function that ran before the check
stays unseen. Two keys can be changed from outside: the user context and the profile version (both JAX >= 0.7.2). We
take a fresh negative profile version: it retraces in worker threads too and costs nothing when the extension is loaded
late (a user context made late compiles every function again). Every negative value gives the same compile options, so
the persistent compilation cache still hits (measured on JAX 0.10.2 and 0.12.0.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import contextmanager

from jaxleak_magic.detect import _jax

_fresh = itertools.count(-7_919, -1)


@contextmanager
def retracing() -> Generator[bool]:
    """Trace every function anew inside; yields False where this JAX has no key to change."""
    import jax

    flag = _jax.profile_version_flag()
    if flag is None:
        yield False
        return
    before = getattr(jax.config, flag)
    jax.config.update(flag, next(_fresh))
    try:
        yield True
    finally:
        jax.config.update(flag, before)
