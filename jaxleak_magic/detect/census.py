"""A census of traces: which were born in this run, by which transform, on whose line. Weak references only.

A hook that kept tracers would keep their parent traces alive too, and a clean outer jit would then be reported (seen on
JAX 0.10.2 and 0.12.0.1). So a birth record holds a weak reference and plain facts: code objects and offsets, no frame.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, GetSetDescriptorType, MethodType
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.detect.transforms import TransformFrame, is_built_on, transform_of

_NAME = vars(type)["__name__"]


@dataclass(frozen=True, slots=True)
class CodePoint:
    """A point in a code object: the instruction that was running."""

    code: CodeType
    offset: int

    def position(self) -> tuple[int, int | None]:
        """1-based line and 0-based column (in UTF-8 bytes; None where Python keeps none) of the instruction."""
        for index, (line, _, column, _) in enumerate(self.code.co_positions()):
            if index * 2 == self.offset:
                return line or self.code.co_firstlineno, column
        return self.code.co_firstlineno, None


@dataclass(slots=True)
class Birth:
    """A trace that was born in this run.

    Attributes:
        ref: weak reference to the trace.
        trace_class: name of its class.
        transform: the transform as the user called it (outermost API frame of JAX's frames), or None.
        function: code of the function that was transformed, or None where it is no Python function.
        function_name: its name, or None.
        call: where user code, or a library, called the transform, or None.
        user: the user's own point: ``call`` or the user's last frame around it, or None.
        called_by: ``"user"``, ``"library"`` or ``"jax"``: whose code called the transform.
        group: identity of the API frame, the same for all traces of one call.
        parent: birth of the trace that was current when this one was made, or None.
        thread: name of the thread.
        ended: whether JAX's own check has seen it alive after its end.
    """

    ref: weakref.ref[Any]
    trace_class: str
    transform: str | None = None
    function: CodeType | None = None
    function_name: str | None = None
    call: CodePoint | None = None
    user: CodePoint | None = None
    called_by: str = "jax"
    group: int = 0
    parent: Birth | None = None
    thread: int = 0
    ended: bool = False
    error: str | None = field(default=None)


class Census:
    """Records births of traces, and where tracers that carry no line of their own were made.

    Args:
        owners: tells whose a code object is.
    """

    def __init__(self, owners: CodeOwners) -> None:
        self.births: list[Birth] = []
        self._owners = owners
        self._by_trace: dict[int, Birth] = {}
        self._by_group: dict[int, Birth] = {}
        self._made: dict[int, tuple[type, CodeType, int]] = {}
        self._rows: dict[int, tuple[CodeType, TransformFrame | None]] = {}
        self._undo = ExitStack()
        self.available = False

    def start(self, lines: bool = True) -> None:
        """Put the hooks in. ``available`` tells afterwards whether births can be seen on this JAX.

        Args:
            lines: record where tracers were made that carry no line themselves (a walk to the user's frame for each).
        """
        with ExitStack() as undo:
            trace_class = _jax.trace_class()
            if trace_class is not None:
                _wrap_init(undo, trace_class, self._record_birth)
                self.available = True
            for cls in _jax.lineless_tracer_classes() if lines else ():
                _wrap_init(undo, cls, self._record_tracer)
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """Take the hooks out. Safe to call twice."""
        self._undo.close()

    def clear(self) -> None:
        """Forget everything that was recorded."""
        self.births.clear()
        self._by_trace.clear()
        self._by_group.clear()
        self._made.clear()
        self._rows.clear()

    def alive(self) -> list[Birth]:
        """Births whose traces are alive now, but for the one that evaluates eagerly."""
        return [birth for birth in self.births if birth.ref() is not None and birth.trace_class != "EvalTrace"]

    def birth_of(self, trace: object) -> Birth | None:
        """The birth of a trace, or None where it was not born in this run."""
        birth = self._by_trace.get(id(trace))
        return birth if birth is not None and birth.ref() is trace else None

    def made_at(self, tracer: object) -> CodePoint | None:
        """The user's point at which a tracer was made, for tracers that carry no line themselves, or None."""
        made = self._made.get(id(tracer))
        # An id is used again after its object is gone: a recorded class overwrites, another class is told apart.
        if made is None or made[0] is not type(tracer):
            return None
        return CodePoint(made[1], made[2])

    def mark_ended(self, trace: object) -> None:
        """Note that JAX found ``trace`` alive when it ended."""
        birth = self.birth_of(trace)
        if birth is not None:
            birth.ended = True

    def _record_birth(self, trace: Any) -> None:
        birth = Birth(weakref.ref(trace), type(trace).__name__)
        self.births.append(birth)
        self._by_trace[id(trace)] = birth
        self._describe(birth, sys._getframe(2))

    def _describe(self, birth: Birth, frame: FrameType | None) -> None:
        try:
            current = _jax.current_trace()
            birth.parent = None if current is None else self.birth_of(current)
            del current
            self._describe_call(birth, frame)
            if birth.parent is None or birth.parent.trace_class == "EvalTrace":
                birth.parent = self._running_around(birth, frame)
            if birth.group:
                self._by_group[birth.group] = birth
        except Exception as error:  # a fault of ours must never reach the user's cell
            birth.error = f"{type(error).__name__}: {error}"

    def _describe_call(self, birth: Birth, frame: FrameType | None) -> None:
        """Walk outwards from the birth: the transform's frames, who called it, the user's last line.

        A public function built on another counts once (grad over vjp); a transform around another one of the user's
        (``jit(vmap(f))``) ends it: that one has a birth of its own.
        """
        rows: list[tuple[FrameType, TransformFrame]] = []
        while frame is not None:
            code = frame.f_code
            owner = self._owners(code)
            row = self._row(code) if owner in ("jax", "library") else None
            if row is not None and (birth.call is None or owner == "library"):
                rows.append((frame, row))
            elif owner == "library" and birth.call is None:
                birth.call, birth.called_by = CodePoint(code, frame.f_lasti), "library"
            elif owner == "user":
                birth.user = CodePoint(code, frame.f_lasti)
                if birth.call is None:
                    birth.call, birth.called_by = birth.user, "user"
                break
            frame = frame.f_back
        own = rows[: _own_rows([row.transform for _, row in rows])]
        if not own:
            return
        birth.transform, birth.group = own[-1][1].transform, id(own[-1][0])
        caller = birth.called_by
        for api, row in reversed(own):
            code, name, librarys = _function_of(api, row.function)
            is_users = code is not None and self._owners(code) == "user"
            if is_users or (birth.function is None and name is not None):
                birth.function, birth.function_name = code, name
                # The user calls a function that a library has transformed: `diffrax.diffeqsolve` is jitted by diffrax.
                owner = None if code is None else self._owners(code)
                birth.called_by = "jax" if owner == "jax" else "library" if owner == "library" and librarys else caller
            if is_users:
                return

    def _running_around(self, birth: Birth, frame: FrameType | None) -> Birth | None:
        """The birth whose transform is running around this one: shard_map hides the outer trace while it traces."""
        while frame is not None:
            around = self._by_group.get(id(frame))
            if around is not None and around.group != birth.group and around.ref() is not None:
                return around
            frame = frame.f_back
        return None

    def _record_tracer(self, tracer: Any) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if self._owners(frame.f_code) == "user":
                self._made[id(tracer)] = (type(tracer), frame.f_code, frame.f_lasti)
                return
            frame = frame.f_back

    def _row(self, code: CodeType) -> TransformFrame | None:
        known = self._rows.get(id(code))
        if known is None:
            known = self._rows[id(code)] = (code, transform_of(code))
        return known[1]


def _own_rows(transforms: list[str]) -> int:
    """How many of the transforms on the stack, innermost first, make up the one call that the innermost belongs to."""
    for count in range(len(transforms), 1, -1):
        outer = transforms[count - 1]
        if all(is_built_on(outer, inner) for inner in transforms[: count - 1]):
            return count
    return min(1, len(transforms))


def _wrap_init(undo: ExitStack, cls: Any, record: Callable[[Any], None]) -> None:
    original = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        record(self)

    cls.__init__ = __init__
    undo.callback(setattr, cls, "__init__", original)


def _function_of(frame: FrameType, path: str) -> tuple[CodeType | None, str | None, bool]:
    """Code and name of the function that a transform's frame was given, and whether its own module has transformed it.

    Holds nothing of the frame afterwards.
    """
    first, *rest = path.split(".")
    values = frame.f_locals
    try:
        found: Any = values.get(first)
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            values.clear()  # before PEP 667 this dict stays with the frame and keeps every local alive
        for name in rest:
            found = object.__getattribute__(found, name)
        for function in _unwrapped(found):
            if type(function) is FunctionType:
                code, name = function.__code__, function.__name__
                return code, name if type(name) is str else code.co_name, _is_replaced(function)
        return None, _name_of(found), False
    except AttributeError:
        return None, None, False
    finally:
        found = values = None


def _is_replaced(function: FunctionType) -> bool:
    """Whether the function's module has, under its name, something else: the function is decorated there."""
    code = function.__code__
    known = function.__globals__.get(code.co_name)
    return code.co_qualname == code.co_name and known is not None and known is not function


def _unwrapped(function: Any) -> Iterator[Any]:
    """``function``, then what partial, bound methods and functools.wraps hide, innermost last but reported first."""
    chain: list[Any] = []
    while function is not None and len(chain) < 20:
        chain.append(function)
        function = _inner(function)
    yield from reversed(chain)


def _inner(function: Any) -> Any:
    import functools

    if type(function) is MethodType:
        return function.__func__
    if issubclass(type(function), functools.partial):
        return functools.partial.func.__get__(function)  # type: ignore[attr-defined]
    if type(function) in (tuple, list) and function:
        return next((each for each in function if type(each) is FunctionType), function[0])
    attributes = _attributes(function)
    if "__wrapped__" in attributes:
        return attributes["__wrapped__"]
    if type(function) is FunctionType or issubclass(type(function), type):
        return None
    call = _class_attribute(type(function), "__call__")
    return call if type(call) is FunctionType else None


def _attributes(obj: Any) -> dict[str, Any]:
    """The ``__dict__`` of an object by the interpreter's own descriptor; a class of the user's may have another one."""
    descriptor = _class_attribute(type(obj), "__dict__")
    found = descriptor.__get__(obj) if type(descriptor) is GetSetDescriptorType else None
    return found if type(found) is dict else {}


def _class_attribute(cls: type, name: str) -> Any:
    for base in type.__dict__["__mro__"].__get__(cls):
        if name in type.__dict__["__dict__"].__get__(base):
            return type.__dict__["__dict__"].__get__(base)[name]
    return None


def _name_of(value: Any) -> str | None:
    return None if value is None else _NAME.__get__(type(value))
