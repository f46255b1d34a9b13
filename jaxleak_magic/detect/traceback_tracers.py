"""The tracers in the frames of an exception, and which of them was used after its trace had ended."""

from __future__ import annotations

import inspect
import sys
from types import FrameType, TracebackType

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import Census


def exception_chain(error: BaseException) -> list[BaseException]:
    """The error, its causes and contexts, each once."""
    found: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue:
        each = queue.pop(0)
        if each is None or any(each is known for known in found):
            continue
        found.append(each)
        queue += [
            BaseException.__cause__.__get__(each),  # type: ignore[attr-defined]
            BaseException.__context__.__get__(each),  # type: ignore[attr-defined]
        ]
    return found


def frames_of(error: BaseException) -> list[FrameType]:
    """The frames of the error's tracebacks, innermost first."""
    frames: list[FrameType] = []
    for each in exception_chain(error):
        own: list[FrameType] = []
        traceback: TracebackType | None = BaseException.__traceback__.__get__(each)  # type: ignore[attr-defined]
        while traceback is not None:
            own.append(traceback.tb_frame)
            traceback = traceback.tb_next
        frames += own[::-1]
    return frames


def raised_in_custom_rule(error: BaseException) -> bool:
    """Whether JAX raised the error while it handled a custom derivative rule (``jax._src.custom_derivatives``)."""
    frames = frames_of(error)
    return bool(frames) and _jax.handles_custom_rules(frames[0].f_globals.get("__name__"))


def dead_tracer(error: BaseException, census: Census) -> object | None:
    """The tracer that was used after its trace had ended, as far as the frames show it, or None.

    Frames are searched innermost first for tracers among the local variables, also inside lists and tuples; the first
    whose trace had ended counts. A trace has ended when JAX's own check has seen its end, or when the transform that
    made it is no longer among the frames of the traceback. Where none had, it is the one that JAX's own innermost
    functions complain of: its trace is set aside, as in the rules of a custom derivative.
    """
    classes = set(map(id, _jax.tracer_classes()))
    jax_directories = _jax.jax_directories()
    frames = frames_of(error)
    running = _running_groups(frames)
    suspended: object | None = None
    found: object | None = None
    in_jax = True
    for frame in frames:
        in_jax = in_jax and frame.f_code.co_filename.startswith(jax_directories)
        for value in _values(frame):
            if id(type(value)) not in classes:
                continue
            if _has_ended(value, census, running):
                found = value
                break
            if in_jax and suspended is None:
                suspended = value
        if found is not None:
            break
    frames.clear()
    return suspended if found is None else found


def concretized_dead_tracer(error: BaseException, census: Census) -> object | None:
    """The tracer that Python wanted a number of (``float(x)``, ``if x:``), where its trace had ended; None otherwise.

    It is the first tracer in JAX's own innermost frames. JAX complains of a leaked value in the same words as of one
    that is being traced.
    """
    classes = set(map(id, _jax.tracer_classes()))
    jax_directories = _jax.jax_directories()
    frames = frames_of(error)
    running = _running_groups(frames)
    found: object | None = None
    for frame in frames:
        if not frame.f_code.co_filename.startswith(jax_directories):
            break
        found = next((value for value in _values(frame) if id(type(value)) in classes), None)
        if found is not None:
            break
    frames.clear()
    return found if found is not None and _has_ended(found, census, running) else None


def _running_groups(frames: list[FrameType]) -> set[int]:
    ids: set[int] = set()
    for frame in frames:
        around: FrameType | None = frame
        while around is not None and id(around) not in ids:
            ids.add(id(around))
            around = around.f_back
    return ids


def _has_ended(tracer: object, census: Census, running: set[int]) -> bool:
    trace = _jax.trace_of(tracer)
    birth = None if trace is None else census.birth_of(trace)
    if birth is None:
        return trace is not None and type(trace).__name__ != "EvalTrace"
    return birth.ended or (birth.group != 0 and birth.group not in running)


def _values(frame: FrameType) -> list[object]:
    values = frame.f_locals
    found: list[object] = []
    for value in list(values.values()):
        if type(value) in (list, tuple):
            found += list(value)[:200]
        else:
            found.append(value)
    # At module level `f_locals` is the namespace itself: only a function's is a copy.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values.clear()  # before PEP 667 this dict stays with the frame and keeps every local alive
    return found
