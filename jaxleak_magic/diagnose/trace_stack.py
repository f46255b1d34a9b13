"""The stack of transforms around a leaked value, and the places where it was made and where its trace ended."""

from __future__ import annotations

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import Birth, Census, CodePoint
from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.diagnose.model import Place, TraceLevel
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.diagnose.syntax import FunctionNode, Syntax

_TRANSFORM_OF_CLASS = {
    "DynamicJaxprTrace": "jit",
    "BatchTrace": "vmap",
    "JVPTrace": "jvp",
    "LinearizeTrace": "grad",
    "JaxprTrace": "grad",
    "RematTrace": "checkpoint",
    "ShardMapTrace": "shard_map",
    "MapTrace": "pmap",
}
_RULES = ("custom_vjp", "custom_jvp", "closure_convert", "linear_transpose", "custom_linear_solve")
"""Not transforms that a user would name around a value, unless they are the innermost."""


class Places:
    """Turns code points into places of the user's texts, with the syntax trees at hand.

    Args:
        sources: the user's texts.
        owners: tells whose a file is.
    """

    def __init__(self, sources: SourceBook, owners: CodeOwners) -> None:
        self.sources = sources
        self.owners = owners
        self._syntax: dict[str, Syntax] = {}

    def syntax(self, filename: str) -> Syntax:
        """Syntax of the text that was compiled as ``filename`` (lines are those of `SourceBook.line_in_text`)."""
        if filename not in self._syntax:
            self._syntax[filename] = Syntax("\n".join(self.sources.lines(filename)))
        return self._syntax[filename]

    def of_point(self, point: CodePoint) -> Place:
        """The place of an instruction."""
        line, column = point.position()
        return self.of_line(point.code.co_filename, line, column, point.code.co_qualname)

    def of_line(self, filename: str, line: int, byte_column: int | None, qualname: str | None) -> Place:
        """The place of a raw line of a code object."""
        own = self.sources.line_in_text(filename, line)
        column = None if byte_column is None else self.syntax(filename).column(own, byte_column)
        function = None if qualname in (None, "<module>") else qualname
        return self.sources.place(filename, line, column, function)

    def in_text(self, filename: str, line: int, byte_column: int, function: str | None) -> Place:
        """The place of a line of the user's text (not of the code object)."""
        raw = line + line - self.sources.line_in_text(filename, line)
        return self.of_line(filename, raw, byte_column, function)

    def of_definition(self, filename: str, first_line: int, name: str, qualname: str | None = None) -> Place:
        """The ``def`` or ``lambda`` line of a function: below its decorators."""
        node = self.definition(filename, first_line, name)
        raw = first_line
        column = None
        if node is not None:
            raw = first_line + node.lineno - self.sources.line_in_text(filename, first_line)
            column = node.col_offset
        elif not name.startswith("<"):
            raw += self._decorator_lines(filename, first_line, name)
        return self.of_line(filename, raw, column, qualname or name)

    def definition(self, filename: str, first_line: int, name: str) -> FunctionNode | None:
        """The syntax of a function by its code object's first line and name, or None."""
        return self.syntax(filename).function_at(self.sources.line_in_text(filename, first_line), name)

    def _decorator_lines(self, filename: str, first_line: int, name: str) -> int:
        lines = self.sources.lines(filename)[self.sources.line_in_text(filename, first_line) - 1 :]
        return next((i for i, text in enumerate(lines[:50]) if f"def {name}" in text), 0)


def traces_around(trace: object, census: Census) -> list[tuple[str, Birth | None, object | None]]:
    """Class name, birth and trace of the trace and those around it, outermost first, without the eager one.

    ``parent_trace`` is followed where JAX keeps it. At shard_map it is cut: from there on the births tell, whose traces
    may be gone.
    """
    found: list[tuple[str, Birth | None, object | None]] = []
    seen: set[int] = set()
    birth: Birth | None = None
    while trace is not None and id(trace) not in seen and type(trace).__name__ != "EvalTrace":
        seen.add(id(trace))
        birth = census.birth_of(trace)
        found.append((type(trace).__name__, birth, trace))
        trace = _jax.parent_of(trace)
    birth = None if birth is None else birth.parent
    while birth is not None and birth.trace_class != "EvalTrace" and id(birth) not in seen:
        seen.add(id(birth))
        found.append((birth.trace_class, birth, None))
        birth = birth.parent
    return found[::-1]


def trace_stack(trace: object, census: Census, places: Places) -> tuple[TraceLevel, ...]:
    """One level for each transform that the user called around a value, outermost first; the value's own is last."""
    around = traces_around(trace, census)
    levels: list[TraceLevel] = []
    previous: tuple[object, ...] | None = None
    for index, (name, birth, each) in enumerate(around):
        innermost = index == len(around) - 1
        if birth is None or birth.transform is None:
            levels.append(_unknown_level(each, name))
            previous = None
            continue
        call = (birth.group, birth.transform)
        if call == previous:
            last = levels[-1]
            levels[-1] = TraceLevel(last.transform, last.function, last.line, name, (*last.traces, name), last.place)
            continue
        if not innermost and (birth.called_by != "user" or birth.transform in _RULES):
            continue
        place = places.of_point(birth.user) if birth.user is not None else None
        function = None if birth.function_name is None else str(birth.function_name)
        levels.append(TraceLevel(birth.transform, function, place.line if place else None, name, (name,), place))
        previous = call
    return tuple(levels)


def _unknown_level(trace: object | None, name: str) -> TraceLevel:
    function = None if trace is None else _jax.debug_function(trace)
    return TraceLevel(_TRANSFORM_OF_CLASS.get(name, "?"), function[0] if function else None, None, name, (name,))


def escaped_place(trace: object, census: Census, places: Places) -> Place | None:
    """The user's line whose transform had ended when the value was found alive."""
    birth = census.birth_of(trace)
    return None if birth is None or birth.user is None else places.of_point(birth.user)


def made_in_library(tracer: object, places: Places) -> bool:
    """Whether library code that the user called computed the value: ``optax.sgd(rate)`` makes ``-rate``."""
    for file, _, _, _ in _jax.creation_frames(tracer):
        owner = places.owners.of_file(file)
        if owner in ("user", "library"):
            return owner == "library"
    return False


def created_place(tracer: object, trace: object, census: Census, places: Places) -> tuple[Place | None, bool]:
    """Where the value was computed or entered its trace as an argument, and whether it is an argument."""
    birth = census.birth_of(trace)
    if _jax.is_argument(tracer):
        return _definition_of_traced(trace, birth, places), True
    made = census.made_at(tracer)
    if made is not None:
        if (
            birth is not None
            and birth.user is not None
            and made.code is birth.user.code
            and made.offset == birth.user.offset
        ):
            return _definition_of_traced(trace, birth, places), True
        return places.of_point(made), False
    for file, function, line, column in _jax.creation_frames(tracer):
        if places.owners.of_file(file) != "user":
            continue
        if birth is not None and birth.user is not None and _same_call(birth.user, file, function, line):
            return _definition_of_traced(trace, birth, places), True
        return places.of_line(file, line, column, function), False
    return None, False


def _same_call(call: CodePoint, file: str, function: str, line: int) -> bool:
    return (
        call.code.co_filename == file
        and function in (call.code.co_qualname, call.code.co_name)
        and call.position()[0] == line
    )


def _definition_of_traced(trace: object, birth: Birth | None, places: Places) -> Place | None:
    if birth is not None and birth.function is not None and places.owners(birth.function) == "user":
        code = birth.function
        return places.of_definition(code.co_filename, code.co_firstlineno, code.co_name, code.co_qualname)
    known = _jax.debug_function(trace)
    if known is not None and known[1] and known[2] and places.owners.of_file(known[1]) == "user":
        return places.of_definition(known[1], known[2], known[0])
    return None


def file_of(place: Place | None, places: Places) -> str | None:
    """``co_filename`` of a place, or None for no place."""
    if place is None:
        return None
    for filename in places.sources.filenames():
        source = places.sources.get(filename)
        if source is not None and source.cell == place.cell and source.file == place.file:
            return filename
    return place.file
