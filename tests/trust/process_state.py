"""What a check changes in the process while it runs, as it is now: to be compared before and after."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from typing import Any


def process_state(shell: Any = None) -> dict[str, Any]:
    """Flags of JAX, patched functions, hooks of Python and of the given shell."""
    import jax
    from jax._src import core, monitoring

    from jaxleak_magic.detect.run import check_is_running

    state = {
        "check is running": check_is_running(),
        "checking leaks": jax.config.jax_check_tracer_leaks,
        "traceback filtering": jax.config.jax_traceback_filtering,
        "leak hook": core.maybe_find_leaked_tracers,
        "trace": core.Trace.__dict__["__init__"],
        "tracers": {cls.__qualname__: cls.__dict__.get("__init__") for cls in _subclasses(core.Tracer)},
        "current trace": type(core.trace_ctx.trace).__name__ if hasattr(core, "trace_ctx") else None,
        "listeners": len(monitoring.get_event_duration_listeners()),
        "collector": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "interrupts": signal.getsignal(signal.SIGINT),
        "recursion": sys.getrecursionlimit(),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
    }
    if shell is not None:
        state["shell"] = {
            "events": {name: list(found) for name, found in shell.events.callbacks.items()},
            "cleanup": list(shell.input_transformer_manager.cleanup_transforms),
            "lines": list(shell.input_transformer_manager.line_transforms),
            "own attributes": sorted(name for name in vars(shell) if "traceback" in name or "run_cell" in name),
        }
    return state


def _subclasses(cls: type) -> list[type]:
    return [each for sub in type.__subclasses__(cls) for each in (sub, *_subclasses(sub))]
