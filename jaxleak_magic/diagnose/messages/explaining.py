"""A pasted message or traceback of JAX as a report: what its words tell, and nothing that they do not."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxleak_magic.diagnose.errors import details, explanation_of, kind_from_words
from jaxleak_magic.diagnose.explanation import StoryFacts, explain
from jaxleak_magic.diagnose.messages.jax_version import jax_version, python_version
from jaxleak_magic.diagnose.messages.not_by_jax import NO_JAX_PRINTS, NOT_BY_JAX, invented, notes_on_names
from jaxleak_magic.diagnose.messages.reading import (
    ErrorText,
    EscapedText,
    LeakedText,
    ParsedText,
    Spot,
    Traced,
    TracerBlock,
    read_text,
)
from jaxleak_magic.diagnose.messages.referrers_text import (
    Hop,
    chains_of,
    mechanism_of,
    root_of,
    variable_of,
)
from jaxleak_magic.diagnose.messages.tracer_text import TracerText, read_tracer, trace_of
from jaxleak_magic.diagnose.messages.user_lines import UserLines, is_library
from jaxleak_magic.diagnose.model import (
    PASTED_TEXT_ONLY,
    UNREAD_LINE,
    Checked,
    ErrorInfo,
    Explanation,
    Leak,
    Link,
    Note,
    Place,
    Report,
    SourceText,
    TraceLevel,
    TracerInfo,
    Verdict,
)
from jaxleak_magic.diagnose.sources import SourceBook

ABSTRACT = "jit or another compiled transform"
"""The word for a ``DynamicJaxprTrace`` of which the text does not say whether jit, scan, cond or another made it."""

_TRANSFORMS = {
    "BatchTrace": "vmap",
    "JVPTrace": "jvp",
    "LinearizeTrace": "grad",
    "JaxprTrace": "grad",
    "ShardMapTrace": "shard_map",
    "RewriteTrace": "shard_map",
    "MapTrace": "pmap",
    "DynamicJaxprTrace": ABSTRACT,
}
_UNDER_ABSTRACT = "DynamicJaxprTrace"
_PHRASES = (
    (r"Attempted boolean conversion of ", "TracerBoolConversionError"),
    (r"__array__\(\) was called on ", "TracerArrayConversionError"),
    (r"__index__\(\) method was called on ", "TracerIntegerConversionError"),
    (r"Array boolean indices must be concrete", "NonConcreteBooleanIndexError"),
    (r"Abstract tracer value encountered where concrete value is expected", "ConcretizationTypeError"),
    (r"No constant handler for type", "TypeError"),
    (
        r"must have (?:identical types|the same type structure|same type structure|the same pytree structure)",
        "TypeError",
    ),
    (r"carry input and carry output must have equal types", "TypeError"),
)


def explain_text(text: str, sources: Sequence[SourceText] = (), book: SourceBook | None = None) -> Report:
    """Explain a pasted message of JAX or a whole traceback, of JAX 0.3 to 0.12, without running anything.

    Args:
        text: what was pasted; terminal colours and the marks of quoting are ignored.
        sources: cells or files that it may speak of; lines are given in them where one, and only one, fits.

        book: knows the cells by the file names under which they were compiled, or None.

    Returns:
        a report in which what the text does not tell is None. Lines that were not understood are notes of kind
        `UNREAD_LINE`, word for word. Never raises for a ``str``.
    """
    parsed = read_text(text)
    lines = UserLines(sources, book)
    leaks = _leaks_of_report(parsed.leaked, lines) if parsed.leaked else []
    error, raised = _error(parsed, lines, leaks)
    home = lines.source_at(raised)
    if parsed.escaped is not None and not leaks:
        leaks = [_escaped_leak(parsed.escaped, raised, lines)]
        error = replace(error, leak_id=1) if error else None
    elif error is not None and leaks and error.kind == "unexpected_tracer":
        error = replace(error, leak_id=1)
    if parsed.leaked is not None and error is not None and error.type == "Exception":
        error = None
    notes = [*notes_on_names(text), *(Note(UNREAD_LINE, None, line) for line in parsed.unknown)]
    if home is None and error is None:
        places = [place for leak in leaks for place in (leak.escaped, leak.created, leak.stored)]
        home = next((source for place in places if (source := lines.source_at(place))), None)
    foreign = error is not None and error.kind == NOT_BY_JAX
    return Report(
        jax_version="unknown" if foreign else jax_version(text),
        python_version=python_version(text),
        file=home.file if home else None,
        checked=Checked(False, False, False, (PASTED_TEXT_ONLY, *_unchecked(leaks))),
        leaks=tuple(leaks),
        error=error,
        notes=tuple(notes),
        source=home,
        sources=tuple(sources),
    )


def _unchecked(leaks: Sequence[Leak]) -> list[str]:
    said: list[str] = []
    if any(level.transform == ABSTRACT for leak in leaks for level in leak.trace_stack):
        said.append("This text does not tell which compiled transform it was: jit, scan, cond, checkpoint or another.")
    if leaks and not any(leak.chains for leak in leaks):
        said.append("This text does not tell what keeps the value; `%%leakcheck` on the cell that made it does.")
    return said


# leak reports


@dataclass(frozen=True)
class _Group:
    """The tracers of a leak report that one tracer carries: the carrier's class and id, and the blocks."""

    carrier: str
    blocks: tuple[TracerBlock, ...]
    hops: tuple[tuple[Hop, ...], ...]
    own: TracerBlock | None


def _leaks_of_report(leaked: LeakedText, lines: UserLines) -> list[Leak]:
    blocks = leaked.tracers or [TracerBlock()]
    ended = _last_user_spot(leaked.frames)
    return [_leak(number, group, leaked, ended, lines) for number, group in enumerate(_groups(blocks), 1)]


def _groups(blocks: Sequence[TracerBlock]) -> list[_Group]:
    """Tracers that are alive only because another one refers to them are of that one's leak."""
    by_carrier: dict[object, list[TracerBlock]] = {}
    for block in blocks:
        by_carrier.setdefault(_carrier(block), []).append(block)
    groups: list[_Group] = []
    for carrier, members in by_carrier.items():
        own = next((b for b in members if not b.hops or b.hops[0].child_id == carrier), None)
        if own is not None and own.hops:
            chains = chains_of(own.hops)
        else:
            chains = [_above(chain, carrier) for block in members for chain in chains_of(block.hops)]
        unique = list(dict.fromkeys(tuple(chain) for chain in chains if chain))
        held = next((hop for block in members for hop in block.hops if hop.child_id == carrier), None)
        groups.append(_Group(held.child if held else "", tuple(members), tuple(unique), own))
    return groups


def _carrier(block: TracerBlock) -> object:
    """Id of the last tracer on the block's first path; the block itself where the text shows no path."""
    if not block.hops:
        return id(block)
    tracers = [hop.child_id for hop in chains_of(block.hops)[0] if hop.child.endswith("Tracer")]
    return tracers[-1] if tracers else block.hops[0].child_id


def _above(chain: Sequence[Hop], carrier: object) -> tuple[Hop, ...]:
    at = next((i for i, hop in enumerate(chain) if hop.child_id == carrier), 0)
    return tuple(chain[at:])


def _leak(number: int, group: _Group, leaked: LeakedText, ended: Spot | None, lines: UserLines) -> Leak:
    block = group.own or group.blocks[0]
    printed = block.printed
    kind = group.carrier or (printed.type if printed else f"{(leaked.trace or '').removesuffix('Trace')}Tracer")
    created = lines.place(block.created) if block.created and group.own else None
    around = created or (lines.place(block.traced.spot) if block.traced else None)
    stack = _stack(printed, kind, block.traced, around, lines)
    chains = _numbered(group.hops, lines)
    best = chains[0] if chains else ()
    if not stack and leaked.trace:
        stack = (_level((leaked.trace,), block.traced, around, lines),)
    tracer = TracerInfo(
        kind if kind != "Tracer" else "unknown",
        printed.dtype if printed else None,
        printed.shape if printed else None,
        _short(printed, kind),
    )
    root = root_of(best)
    variable = variable_of(best)
    stored = lines.stored_at(around, root.name) if root and root.kind == "global" else None
    if variable is None or (root is not None and variable == root.name):
        variable = variable or lines.assigned_at(created)
    escaped = lines.place(ended) if ended else None
    return _finished(number, tracer, variable, stack, created, stored, escaped, chains, block, lines)


def _escaped_leak(escaped: EscapedText, used: Place | None, lines: UserLines) -> Leak:
    created = lines.place(escaped.created) if escaped.created else None
    kind = escaped.tracer or "unknown"
    call = _call_of(escaped)
    around = created or (lines.place(escaped.traced.spot) if escaped.traced else None)
    stack = _stack(escaped.detail, kind if escaped.tracer else "", escaped.traced, around, lines)
    called = lines.place(call) if call else None
    if stack and called is not None:
        stack = (*stack[:-1], replace(stack[-1], line=called.line, place=called))
    dtype, shape = escaped.dtype, escaped.shape
    if dtype is None and escaped.detail is not None:
        dtype, shape = escaped.detail.dtype, escaped.detail.shape
    text = f"{dtype}[{','.join(map(str, shape))}]" if dtype and shape is not None else kind
    tracer = TracerInfo(kind, dtype, shape, text)
    block = TracerBlock(traced=escaped.traced)
    leak = _finished(1, tracer, lines.assigned_at(created), stack, created, None, called, (), block, lines)
    if used is None:
        return leak
    where = f"{leak.explanation.where} It was used again on {_at(used)}."
    return replace(leak, explanation=replace(leak.explanation, where=where))


def _finished(
    number: int,
    tracer: TracerInfo,
    variable: str | None,
    stack: tuple[TraceLevel, ...],
    created: Place | None,
    stored: Place | None,
    escaped: Place | None,
    chains: tuple[tuple[Link, ...], ...],
    block: TracerBlock,
    lines: UserLines,
) -> Leak:
    best = chains[0] if chains else ()
    holder = root_of(best)
    mechanism = mechanism_of(best)
    verdict: Verdict = "exception" if mechanism == "exception_traceback" else "leak"
    closure = next((link.holder for link in best if link.kind == "closure_cell" and _is_named(link)), None)
    facts = StoryFacts(
        mechanism=mechanism,
        verdict=verdict,
        variable=variable,
        tracer=tracer,
        stack=stack,
        created=created,
        is_argument=False,
        stored=stored,
        escaped=escaped,
        keeper=f"`{holder.name}`" if holder else None,
        closure=f"`{closure.removesuffix('()')}`" if closure else None,
        pytree_class=None,
    )
    explanation = explain(facts)
    if not stack:
        explanation = _without_transform(explanation, variable)
    what = explanation.what[0].upper() + explanation.what[1:]
    explanation = replace(explanation, what=what, where=_where(explanation.where, block, lines))
    return Leak(
        id=number,
        verdict=verdict,
        count=1,
        mechanism=mechanism,
        tracer=tracer,
        variable=variable,
        trace_stack=stack,
        created=created,
        stored=stored,
        escaped=escaped,
        holder=holder,
        chains=chains,
        explanation=explanation,
    )


def _is_named(link: Link) -> bool:
    return link.holder not in ("a function", "lambda")


def _without_transform(explanation: Explanation, variable: str | None) -> Explanation:
    name = f"`{variable}`" if variable else "A traced value"
    return replace(explanation, what=f"{name} outlived the transform that made it, and is still kept.")


def _where(where: str, block: TracerBlock, lines: UserLines) -> str:
    said = [where]
    if block.traced is not None and not is_library(block.traced.spot):
        place = lines.place(block.traced.spot)
        what = f" for {block.traced.transform}" if block.traced.transform else ""
        said.append(f"It belongs to `{block.traced.function}` ({_at(place)}), which was being traced{what}.")
    if block.arguments:
        said.append(f"It depends on the argument {block.arguments}.")
    for equation, spot in block.operations[:1]:
        at = f" ({_at(lines.place(spot))})" if spot else ""
        said.append(f"The operation that it comes from is `{' '.join(equation.split())}`{at}.")
    if len(said) > 1 and said[0].startswith("The lines could not be determined."):
        said[0] = said[0].removeprefix("The lines could not be determined.").strip()
    return " ".join(text for text in said if text)


def _at(place: Place) -> str:
    if place.file is not None:
        return f"line {place.line} of {os.path.basename(place.file)}"
    if place.cell is not None and place.cell.execution_count is not None:
        return f"line {place.line} of In [{place.cell.execution_count}]"
    return f"line {place.line}"


def _short(printed: TracerText | None, kind: str) -> str:
    if printed is None:
        return kind
    if printed.dtype is not None and printed.shape is not None:
        return f"{printed.dtype}[{','.join(map(str, printed.shape))}]"
    return printed.text


def _numbered(chains: Sequence[Sequence[Hop]], lines: UserLines) -> tuple[tuple[Link, ...], ...]:
    """The links, with one number for each object and with the places of frames."""
    numbers: dict[object, int] = {}
    found: list[tuple[Link, ...]] = []
    for chain in chains:
        links: list[Link] = []
        for hop in chain:
            key = hop.holder_id if hop.holder_id is not None else (hop.link.label, hop.file)
            link = replace(hop.link, node=numbers.setdefault(key, len(numbers)))
            if hop.file is not None and link.line is not None:
                place = lines.place(Spot(hop.file, link.line))
                link = replace(link, place=place, line=place.line)
            links.append(link)
        found.append(tuple(links))
    return tuple(found)


# transforms


def _stack(
    printed: TracerText | None, kind: str, traced: Traced | None, around: Place | None, lines: UserLines
) -> tuple[TraceLevel, ...]:
    traces = list(zip(printed.traces, printed.differentiates, strict=True)) if printed else []
    own = trace_of(kind) if kind.endswith("Tracer") and kind != "Tracer" else None
    if own == "JVPTrace" and traces and traces[-1][0] == "JaxprTrace":  # the two traces of reverse mode
        traces[-1] = (own, True)
    elif own is not None and (not traces or traces[-1][0] != own):
        traces.append((own, False))
    levels: list[TraceLevel] = []
    for depth, (trace, reverse) in enumerate(traces):
        names = ("JaxprTrace", trace) if reverse else (trace,)
        last = depth == len(traces) - 1
        levels.append(_level(names, traced if last else None, around if last else None, lines))
    if not levels and traced is not None and traced.transform:
        levels.append(TraceLevel(_transform_word(traced.transform), traced.function, None, None))
    return tuple(levels)


def _level(names: tuple[str, ...], traced: Traced | None, around: Place | None, lines: UserLines) -> TraceLevel:
    trace = names[-1]
    transform = "grad" if names[0] == "JaxprTrace" else _TRANSFORMS.get(trace, f"a transform with a {trace}")
    function = None
    if trace == _UNDER_ABSTRACT:
        if traced is not None:
            function = None if is_library(traced.spot) else traced.function
            transform = _transform_word(traced.transform) if traced.transform else transform
        if transform == ABSTRACT and around is not None:
            maker = traced.function if traced else around.function
            told = lines.transform_of(around, maker)
            if told is not None:
                transform, function = told, maker
    return TraceLevel(transform, function, None, trace, names)


def _transform_word(words: str) -> str:
    """The user's word for JAX's (``checkpoint / remat``, ``pallas_call kernel``, ``while_body``)."""
    if "remat" in words:
        return "checkpoint"
    if words.startswith("while_"):
        return "while_loop"
    return words.split()[0]


def _call_of(escaped: EscapedText) -> Spot | None:
    """The user's line that called the transform: the frame outside the traced function."""
    if escaped.traced is None:
        return None
    names = [spot.function for spot in escaped.stack]
    if escaped.traced.function not in names:
        return None
    inside = len(names) - 1 - names[::-1].index(escaped.traced.function)
    outer = [spot for spot in escaped.stack[:inside] if not is_library(spot)]
    return outer[-1] if outer else None


# errors


def _error(parsed: ParsedText, lines: UserLines, leaks: Sequence[Leak]) -> tuple[ErrorInfo | None, Place | None]:
    """The exception that the text ends with, and the user's line that raised it."""
    found = _chosen(parsed)
    if found is None:
        return (None, None) if leaks or parsed.escaped else (_nothing_found(), None)
    name, message, kind = found
    frames = message.frames or parsed.frames
    spot = _last_user_spot(frames)
    place = lines.place(spot) if spot else None
    text = "\n".join(message.message).strip()
    where = "The text does not tell the line." if place is None else f"It was raised by {_at(place)}."
    if message.traced is not None and not is_library(message.traced.spot):
        traced = message.traced
        where += f" `{traced.function}` ({_at(lines.place(traced.spot))}) was being traced for {traced.transform}."
    where += details(kind, text)
    explanation = _not_by_jax(where, text) if kind == NOT_BY_JAX else explanation_of(kind, where)
    error = ErrorInfo(name, text, place.line if place else None, place.column if place else None, kind, explanation)
    return error, place


def _chosen(parsed: ParsedText) -> tuple[str, ErrorText, str] | None:
    """(class name, error, kind): the last that has to do with tracers, else the last."""
    found: list[tuple[str, ErrorText, str]] = []
    for error in parsed.errors:
        name = error.type.rpartition(".")[2]
        text = "\n".join(error.message)
        if name == "UnfilteredStackTrace" and (inner := re.match(r"([\w.]+): ", text)):
            name = inner[1].rpartition(".")[2]
        if invented(error.type, text):
            kind = NOT_BY_JAX
        else:
            kind = kind_from_words(name, text, is_type_error=name in ("TypeError", "ScanTypeError"))
            kind = "unexpected_tracer" if text.startswith("Encountered an unexpected tracer.") else kind
        found.append((name, error, kind))
    if not found and (bare := _bare_error(parsed)):
        found.append(bare)
    about_tracers = [each for each in found if each[2] != "not_tracer_related"]
    return (about_tracers or found or [None])[-1]


def _bare_error(parsed: ParsedText) -> tuple[str, ErrorText, str] | None:
    """A message that was pasted without the name of its exception: JAX's own phrases tell it."""
    text = "\n".join(parsed.unknown)
    for phrase, name in _PHRASES:
        if re.search(phrase, text):
            kind = kind_from_words(name, text, is_type_error=name == "TypeError")
            if kind != "not_tracer_related":
                error = ErrorText(name, list(parsed.unknown), list(parsed.frames))
                parsed.unknown.clear()
                return name, error, kind
    if parsed.leaked is None and invented("", text):
        error = ErrorText("unknown", list(parsed.unknown), list(parsed.frames))
        parsed.unknown.clear()
        return "unknown", error, NOT_BY_JAX
    return None


def _nothing_found() -> ErrorInfo:
    return ErrorInfo(
        "unknown",
        "",
        None,
        None,
        "not_recognised",
        Explanation(
            "Nothing in this text is a message of JAX that is known here.",
            "The text does not tell a line.",
            "Messages of JAX 0.3 to 0.12 about tracers are known, with their tracebacks.",
            "Paste the whole traceback with its last lines, or put `%%leakcheck` on the cell and run it.",
        ),
    )


def _not_by_jax(where: str, text: str) -> Explanation:
    shown = re.search(r"(?:Traced<|\w+Tracer[(<]).*[>)]", text)
    tracer = read_tracer([shown[0]]) if shown else None
    if tracer is not None and tracer.traces:
        transform = _TRANSFORMS.get(tracer.traces[-1], tracer.traces[-1])
        where += f" It speaks of a `{_short(tracer, tracer.type)}` value of {transform}."
    return Explanation(
        NO_JAX_PRINTS,
        where,
        "JAX's own texts about leaks begin with `Leaked trace` (its leak checker) or with `Encountered an unexpected "
        "tracer` (a value used after its transform had ended); this one comes from another program, or is made up.",
        "To know whether a tracer leaks, put `%%leakcheck` on the cell, or run `jaxleak check FILE`.",
    )


def _last_user_spot(frames: Sequence[Spot]) -> Spot | None:
    """The innermost line of a traceback that is of no library."""
    return next((spot for spot in reversed(frames) if not is_library(spot)), None)
