"""Every name of JAX that is not public, in one place, each behind a feature test.

All other modules reach JAX's internals through this one. ``tests/detect/test_private_names.py`` has a contract test for
each name; where a name is missing the feature that needs it is off and the report says so. The names were read in JAX
0.7.2, 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from types import MemberDescriptorType, ModuleType
from typing import Any

_TRACE_MODULES = (
    "jax._src.core",
    "jax._src.interpreters.ad",
    "jax._src.interpreters.batching",
    "jax._src.interpreters.partial_eval",
    "jax._src.interpreters.pxla",
    "jax._src.interpreters.remat",
    "jax._src.shard_map",
)
# Objects that only carry tracers while a program is traced. A value that nothing but these keeps is carried by another
# leaked tracer and is no leak of its own.
_CARRIER_NAMES = (
    "TracingEqn",
    "JaxprStackFrame",
    "JaxprEqnRecipe",
    "ConstVar",
    "FreeVar",
    "LambdaBinding",
    "RefTracer",
)


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def jax_directories() -> tuple[str, ...]:
    """Directories of the installed jax and jaxlib packages, each with a trailing separator."""
    import jax
    import jaxlib

    return tuple(os.path.dirname(os.path.abspath(m.__file__ or "")) + os.sep for m in (jax, jaxlib))


def core() -> ModuleType | None:
    """``jax._src.core``, or None on a JAX that has none."""
    return _module("jax._src.core")


def trace_class() -> type | None:
    """``Trace``, the base of all trace classes, when it has an ``__init__`` of its own to hook (JAX >= 0.5.3)."""
    found = getattr(core(), "Trace", None)
    return found if isinstance(found, type) and "__init__" in vars(found) else None


def subclasses(cls: type) -> list[type]:
    """``cls`` and every class derived from it, found without running metaclass code of the classes."""
    found, queue = [cls], [cls]
    while queue:
        for child in type.__subclasses__(queue.pop()):
            if child not in found:
                found.append(child)
                queue.append(child)
    return found


def tracer_classes() -> list[type]:
    """``jax.core.Tracer`` (public) and all its subclasses that exist now."""
    return subclasses(importlib.import_module("jax.core").Tracer)


def lineless_tracer_classes() -> list[type]:
    """Tracer classes whose instances carry no line of creation: all but jit's and vmap's."""
    with_line = {"DynamicJaxprTracer", "BatchTracer", "Tracer"}
    return [cls for cls in tracer_classes() if cls.__name__ not in with_line and "__init__" in vars(cls)]


def carrier_classes() -> list[type]:
    """Classes whose instances only carry tracers along: tracers, traces and the equations of an unfinished trace."""
    found = tracer_classes()
    base = trace_class()
    if base is not None:
        found += subclasses(base)
    for name in _TRACE_MODULES:
        module = _module(name)
        for carrier in _CARRIER_NAMES:
            cls = getattr(module, carrier, None)
            if isinstance(cls, type) and cls not in found:
                found.append(cls)
    return found


def trace_of(tracer: object) -> object | None:
    """The trace that a tracer belongs to (``Tracer._trace``), or None."""
    try:
        return object.__getattribute__(tracer, "_trace")
    except AttributeError:
        return None


def tells_traces() -> bool:
    """Whether tracers have the slot that `trace_of` reads."""
    return isinstance(vars(importlib.import_module("jax.core").Tracer).get("_trace"), MemberDescriptorType)


def parent_of(trace: object) -> object | None:
    """The trace around ``trace`` (``parent_trace``; cut at shard_map), or None."""
    try:
        return object.__getattribute__(trace, "parent_trace")
    except AttributeError:
        return None


def current_trace() -> object | None:
    """The trace that is current in this thread (``trace_ctx.trace``), or None."""
    return getattr(getattr(core(), "trace_ctx", None), "trace", None)


def debug_function(trace: object) -> tuple[str, str | None, int | None] | None:
    """Name, file and first line of the function that a jit-like trace was made for, or None.

    JAX keeps them as text, ``"f at /path/file.py:12"`` (``DebugInfo.func_src_info``).
    """
    try:
        frame = object.__getattribute__(trace, "frame")
        info = frame.debug_info.func_src_info
    except AttributeError:
        return None
    if not isinstance(info, str):
        return None
    name, _, where = info.partition(" at ")
    file, _, line = where.rpartition(":")
    return (name, file or None, int(line) if line.isdigit() else None)


def argument_name(tracer: object) -> str | None:
    """Name of the traced function's argument that a jit tracer stands for (``DebugInfo.arg_names``), or None."""
    try:
        trace = object.__getattribute__(tracer, "_trace")
        frame = object.__getattribute__(trace, "frame")
        variable = object.__getattribute__(tracer, "val")
        invars, names = list(frame.invars), frame.debug_info.arg_names
    except AttributeError:
        return None
    position = next((i for i, v in enumerate(invars) if v is variable), None)
    if position is None:
        return None
    # scan and while_loop put the closed-over constants' variables in front of the arguments.
    if names is None or len(names) <= position:
        return ""
    return names[position]


def is_argument(tracer: object) -> bool:
    """Whether a jit tracer is an argument of the traced function and no computed value."""
    return argument_name(tracer) is not None


def operands_of_constant(tracer: object) -> list[object] | None:
    """The tracers that a jit tracer was made of, itself first, where nothing that is traced goes in.

    A jit tracer refers to the equation that made it, and that to its operands (``parent.in_tracers``). The walk ends at
    literals and constants. It gives None where it comes upon an argument, what may be a tracer of a trace around, an
    equation with effects, more than 10,000 equations or anything unknown.
    """
    found: list[object] = []
    seen: set[int] = set()
    open_ends = [tracer]
    traces = tracer_classes()
    while open_ends:
        each = open_ends.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found.append(each)
        try:
            equation = object.__getattribute__(each, "parent")
            if equation is None:
                if not _is_constant(each, traces):
                    return None
                continue
            if object.__getattribute__(equation, "effects"):
                return None
            open_ends += object.__getattribute__(equation, "in_tracers")
        except (AttributeError, TypeError):
            return None
        if len(seen) > 10_000:
            return None
    return found


def _is_constant(tracer: object, classes: list[type]) -> bool:
    """Whether a tracer that no equation made stands for a value that was known while tracing.

    The table of constants is emptied when the trace ends; then only the outermost trace can have had nothing but known
    values among them.
    """
    variable = object.__getattribute__(tracer, "val")
    if type(variable).__name__ == "Literal":
        return True
    if is_argument(tracer):
        return False
    trace = object.__getattribute__(tracer, "_trace")
    known = object.__getattribute__(trace, "frame").constvar_to_val
    if variable in known:
        value = known[variable]
        return type(getattr(value, "canonical", value)) not in classes  # JAX 0.7 wraps constants
    return type(parent_of(trace)).__name__ == "EvalTrace"


def creation_frames(tracer: object) -> Iterator[tuple[str, str, int, int | None]]:
    """(file, function, line, column) of the frames that made a jit or vmap tracer, innermost first.

    Read from ``_line_info`` (jit, scan) or ``source_info`` (vmap); other tracers carry none.
    """
    for name in ("_line_info", "source_info"):
        try:
            info = object.__getattribute__(tracer, name)
        except AttributeError:
            continue
        traceback = getattr(info, "traceback", None)
        if traceback is None:
            continue
        yield from _traceback_frames(traceback)
        return


def _traceback_frames(traceback: Any) -> Iterator[tuple[str, str, int, int | None]]:
    client = _module("jax._src.lib.xla_client") or _module("jaxlib.xla_client") or _module("jaxlib._jax")
    kind = type(traceback)
    convert: Callable[..., Any] | None = getattr(kind, "code_addr2location", None)
    if convert is None and client is not None:
        convert = getattr(getattr(client, "Traceback", None), "code_addr2location", None)
    try:
        codes, offsets = traceback.raw_frames()
    except (AttributeError, TypeError):
        codes, offsets = None, ()
    if codes is not None and convert is not None:
        for code, offset in zip(codes, offsets, strict=False):
            line, column, *_ = convert(code, offset)
            yield code.co_filename, getattr(code, "co_qualname", code.co_name), line, column
        return
    for frame in traceback.frames:
        yield frame.file_name, frame.function_name, frame.line_num, None


def registered_pytrees() -> list[type] | None:
    """Classes that were registered as pytrees (``jax._src.tree_util._registry``), or None where they cannot be seen."""
    known = getattr(_module("jax._src.tree_util"), "_registry", None)
    return [cls for cls in list(known) if isinstance(cls, type)] if type(known) is dict else None


def leak_check_hook() -> tuple[ModuleType, str] | None:
    """Module and name of the function that every leak check goes through (``maybe_find_leaked_tracers``), or None."""
    module = core()
    if module is not None and callable(getattr(module, "maybe_find_leaked_tracers", None)):
        return module, "maybe_find_leaked_tracers"
    return None


def profile_version_flag() -> str | None:
    """Name of the flag that is part of every cache key and, when negative, of nothing else; or None.

    ``jax_xla_profile_version``: same compile options for every negative value, so the persistent compilation cache
    still hits (measured on JAX 0.10.2 and 0.12.0.1).
    """
    import jax

    return "jax_xla_profile_version" if hasattr(jax.config, "jax_xla_profile_version") else None


def listen_to_durations(listener: Callable[..., None]) -> Callable[[], None]:
    """Register a listener of ``jax.monitoring``'s durations (public); gives what takes it out again.

    Taking out is public in JAX 0.10.2; in 0.7.2 only ``jax._src.monitoring`` has it. Where neither is there, nothing is
    registered. The user's code may have cleared all listeners meanwhile.
    """
    import jax.monitoring

    unregister = getattr(jax.monitoring, "unregister_event_duration_listener", None) or getattr(
        _module("jax._src.monitoring"), "_unregister_event_duration_listener_by_callback", None
    )
    if unregister is None:
        return lambda: None
    jax.monitoring.register_event_duration_secs_listener(listener)

    def remove() -> None:
        with contextlib.suppress(Exception):
            unregister(listener)

    return remove


def handles_custom_rules(module: object) -> bool:
    """Whether a module name is that of the code which runs the rules of custom derivatives."""
    return module == "jax._src.custom_derivatives"
