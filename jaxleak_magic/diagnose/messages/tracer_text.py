"""A tracer as JAX prints it: its class, dtype, shape and the traces around it, in the forms of JAX 0.3 to 0.12."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

TRACE_OF = {"JitTracer": "DynamicJaxprTrace", "VmapTracer": "BatchTrace", "GradTracer": "LinearizeTrace"}
"""Trace class of the tracers that print another name than their class has (JAX 0.7.2 and later)."""

_SHORT_DTYPES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "bf": "bfloat", "s": "int"}
_ARRAY = re.compile(r"(?P<dtype>key<[^<>]*>|[a-z]+\d*(?:_?e\dm\d\w*)?)\[(?P<sizes>[^\[\]]*)\]")
_DTYPE = re.compile(r"\bdtype=(?P<dtype>\w+)")
_NESTED = re.compile(r"(?:primal|batched|val)=(?P<inner>\w+Tracer[(<].*)$", re.DOTALL)
_LEVEL = r"(?P<trace>\w+)(?:\(level=(?P<level>\d+)/(?P<sublevel>\d+)\))?"
_WITH = re.compile(rf"^(?P<field>\w+ = )?Traced<(?P<aval>.*)>with<{_LEVEL}>(?: with)?$", re.DOTALL)
_COLON = re.compile(rf"^(?P<field>\w+ = )?Traced<(?P<aval>.*):{_LEVEL}>(?: with)?$", re.DOTALL)
_NAMED = re.compile(r"^(?P<field>\w+ = )?(?P<name>\w+Tracer)[(<](?P<body>.*)[)>]$", re.DOTALL)
_STARTS = re.compile(r"^(?:\w+ = )?(?:Traced<|\w+Tracer[(<])")
_LIMIT = 40
"""Lines of one printed value that are read together: JAX prints an array's numbers on several."""


@dataclass(frozen=True)
class TracerText:
    """What one printed tracer tells.

    Attributes:
        type: class name of the tracer.
        dtype: its dtype in full (``float32``), or None.
        shape: its shape, or None.
        text: the first line as JAX printed it.
        traces: class names of the traces that it is nested in, outermost first, its own last.
        differentiates: for each of ``traces`` whether it is a reverse-mode pair of traces (JaxprTrace, JVPTrace).
    """

    type: str
    dtype: str | None
    shape: tuple[int | str, ...] | None
    text: str
    traces: tuple[str, ...]
    differentiates: tuple[bool, ...]


@dataclass(frozen=True)
class _Head:
    indent: int
    field: str
    type: str
    trace: str
    aval: str
    text: str


def starts_tracer(line: str) -> bool:
    """Whether a line is the first of a printed tracer."""
    return _STARTS.match(line.strip()) is not None


def read_tracer(lines: Sequence[str]) -> TracerText | None:
    """Read a printed tracer with the values nested in it, one to a line.

    Args:
        lines: its lines, with their indents.

    Returns:
        what it tells, or None where its first line is of no known form.
    """
    heads = [head for text, indent in _joined(lines) if (head := _head(text, indent))]
    if not heads or not starts_tracer(lines[0]):
        return None
    first = heads[0]
    levels = _levels(heads)
    dtype, shape = read_type(first.aval)
    return TracerText(
        first.type,
        dtype,
        shape,
        first.text,
        tuple(trace for trace, _ in levels),
        tuple(reverse for _, reverse in levels),
    )


def read_type(aval: str) -> tuple[str | None, tuple[int | str, ...] | None]:
    """Dtype and shape of an abstract value as JAX prints it (``ShapedArray(float32[3])``, ``~f32[]``, ``Ref{...}``)."""
    if aval.startswith("ConcreteArray("):
        given = _DTYPE.search(aval)
        return (given["dtype"] if given else None), None if "[" in aval else ()
    found = _ARRAY.search(aval)
    if found is None or found["dtype"] == "float0":
        return None, None
    sizes = [size.strip() for size in found["sizes"].split(",") if size.strip()]
    return _full_dtype(found["dtype"]), tuple(
        int(size) if size.isdecimal() and len(size) < 19 else size for size in sizes
    )


def trace_of(tracer: str) -> str:
    """Class name of a tracer's trace, by the name that JAX prints for the tracer or that its class has."""
    return TRACE_OF.get(tracer, f"{tracer.removesuffix('Tracer')}Trace")


def tracer_class(printed: str) -> str:
    """Class name of a tracer, by the name that JAX prints for it."""
    return f"{TRACE_OF[printed].removesuffix('Trace')}Tracer" if printed in TRACE_OF else printed


def open_brackets(text: str) -> int:
    """How many brackets of a text are not closed."""
    return sum(text.count(c) for c in "([{") - sum(text.count(c) for c in ")]}")


def _full_dtype(name: str) -> str:
    short = re.fullmatch(r"(bf|[fiucs])(\d+)", name)
    return f"{_SHORT_DTYPES[short[1]]}{short[2]}" if short else name


def _joined(lines: Sequence[str]) -> list[tuple[str, int]]:
    """The values, each on one line, with their indents: the numbers of an array go over several."""
    found: list[tuple[str, int]] = []
    at = 0
    while at < len(lines):
        text, indent, end = lines[at], len(lines[at]) - len(lines[at].lstrip()), at + 1
        while end < min(len(lines), at + _LIMIT) and open_brackets(text) > 0:
            text += "\n" + lines[end]
            end += 1
        if open_brackets(text) > 0:  # broken off, or an array's text with brackets of its own
            text, end = lines[at], at + 1
        found.append((text.strip(), indent))
        at = end
    return found


def _head(text: str, indent: int) -> _Head | None:
    shown = text.partition("\n")[0]
    old = _WITH.match(text) or _COLON.match(text)
    if old:
        trace = old["trace"]
        return _Head(indent, _field(old), f"{trace.removesuffix('Trace')}Tracer", trace, old["aval"], shown)
    named = _NAMED.match(text)
    if named:
        body = named["body"]
        own = body.partition("aval=")[2] or body.partition("typeof(tangent)=")[2] or body
        if "primal=" in body and "typeof(tangent)=" not in body:
            own = ""
        return _Head(indent, _field(named), tracer_class(named["name"]), trace_of(named["name"]), own, text)
    return None


def _field(match: re.Match[str]) -> str:
    return (match["field"] or "").removesuffix(" = ")


def _levels(heads: Sequence[_Head]) -> list[tuple[str, bool]]:
    """(trace, is it reverse mode) from the outermost trace to that of the first head."""
    first = heads[0]
    if named := _NAMED.match(first.text):
        inner = _NESTED.search(named["body"])
        outer = _named_levels(inner["inner"]) if inner else []
        return [*outer, (first.trace, False)]
    inside = [i for i, head in enumerate(heads) if i and head.indent > first.indent]
    depth = min((heads[i].indent for i in inside), default=0)
    children = [i for i in inside if heads[i].indent == depth]
    reverse = any(heads[i].field == "tangent" and heads[i].trace == "JaxprTrace" for i in children)
    carriers = [
        i for i in children if heads[i].trace != "JaxprTrace" and heads[i].field in ("val", "primal", "tangent")
    ]
    outer = _levels(heads[carriers[0] : _end(heads, carriers[0])]) if carriers else []
    return [*outer, (first.trace, reverse)]


def _named_levels(text: str) -> list[tuple[str, bool]]:
    name = re.match(r"\w+", text)
    inner = _NESTED.search(text)
    outer = _named_levels(inner["inner"]) if inner else []
    return [*outer, (trace_of(name[0]), False)] if name else outer


def _end(heads: Sequence[_Head], at: int) -> int:
    return next((i for i in range(at + 1, len(heads)) if heads[i].indent <= heads[at].indent), len(heads))
