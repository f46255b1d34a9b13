"""The sentences that every renderer shares. Names of the user's stand between back-ticks, already made visible."""

from __future__ import annotations

import os
from collections.abc import Sequence

from jaxleak_magic.diagnose.explanation import at_place
from jaxleak_magic.diagnose.model import (
    PASTED_TEXT_ONLY,
    UNREAD_LINE,
    CellRef,
    Checked,
    ErrorInfo,
    Explanation,
    Fix,
    Holder,
    Leak,
    Link,
    Note,
    Place,
    Report,
    TraceLevel,
)
from jaxleak_magic.show.escaping import clip, code, name, sentence

LEVEL_HINT = (
    "A transform runs your function with stand-ins (tracers) for its values. "
    "A stand-in means something only until the transform that made it returns."
)
"""What a level of the transform stack is, for a tooltip."""

FIX_CHECK = {
    "same_results": "Run once: no leak, and the same results.",
    "leak_free": "Run once: no leak. Its results could not be compared.",
    "not_checked": "Checked without running it.",
}
"""How far a fix was checked, by `Fix.checked`."""

GRAPH_HINT = "For a picture of these paths install Graphviz, or run `%pip install 'jaxleak-magic[graph]'`."
"""Said where neither ``dot`` nor pygraphviz is there."""

_HOLDERS = {
    "global": "the global {}",
    "frame_local": "the local variable {}",
    "class_attribute": "the class attribute {}",
    "argument_default": "the argument default {}",
    "closure_cell": "the closure {}",
    "attribute": "the attribute {}",
    "generator": "the generator {}",
    "bound_method": "the bound method {}",
    "partial": "the partial {}",
    "cache": "the cache {}",
    "weak": "the weak registry {}",
}

_OWNERS = {
    "user": "",
    "library": "library",
    "jax": "jax",
    "python": "python",
    "ipython": "ipython",
}


def plural(n: int, one: str, many: str | None = None) -> str:
    """``"1 leak"``, ``"2 leaks"``."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def call(level: TraceLevel) -> str:
    """``vmap(loss)``, or ``vmap`` where the function is not known; as it is, not yet made visible."""
    function = "lambda" if level.function == "<lambda>" else level.function
    return f"{level.transform}({function})" if function else level.transform


def left(leak: Leak) -> str:
    """The transform that the value got out of, as code; ``a transform`` where it is not known."""
    return code(call(leak.trace_stack[-1])) if leak.trace_stack else "a transform"


def subject(leak: Leak) -> str:
    """The value in the user's words: its variable, or the function in which it was made."""
    if leak.variable:
        return code(leak.variable)
    if leak.created and leak.created.function:
        return f"a value made in {code(leak.created.function)}"
    return "a value"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def verdict(leak: Leak) -> str:
    """The one sentence that says what became of a value."""
    who = subject(leak)
    match leak.verdict:
        case "leak":
            return f"{_capital(who)} leaked out of {left(leak)}."
        case "library_cache":
            holder = f"The cache {code(leak.holder.name)}" if leak.holder else "A cache inside a library"
            return f"{holder} keeps {who} from {left(leak)}; nothing of yours does."
        case "exception":
            what = "a kept frame" if leak.mechanism == "debugger_or_ipython" else "the traceback of a stored exception"
            return f"Only {what} holds {who} from {left(leak)}."
        case "transient":
            return f"{_capital(who)} outlived {left(leak)}, but only for a while."


def value(leak: Leak) -> str:
    """Dtype and shape as JAX writes them, ``float32[3,4]``; empty where unknown; not yet made visible."""
    tracer = leak.tracer
    if tracer.dtype is None and tracer.shape is None:
        return ""
    shape = "" if tracer.shape is None else "[" + ",".join(str(n) for n in tracer.shape) + "]"
    return f"{tracer.dtype or ''}{shape}"


def kept_by(leak: Leak) -> str:
    """``kept alive by the global `learners```; empty where the holder is not known."""
    if leak.holder is None:
        return ""
    access = leak.facts.access
    if access and access != leak.holder.name and leak.holder.owner == "user":
        return f"kept alive by {code(access)}"
    return f"kept alive by {holder(leak.holder)}"


def verdict_and_keeper(leak: Leak) -> str:
    """Both in one sentence without its full stop."""
    keeper = kept_by(leak)
    return verdict(leak).rstrip(".") + (f", {keeper}" if keeper else "")


def holder(root: Holder) -> str:
    """The root in words: ``the global `learners```."""
    text = _HOLDERS.get(root.kind, "{}").format(code(root.name))
    return f"{text} ({_OWNERS[root.owner]})" if _OWNERS.get(root.owner) else text


def summary(leak: Leak) -> list[str]:
    """Short facts under the verdict: the value's type, who keeps it, how often it was found."""
    facts = [code(text) for text in [value(leak)] if text]
    if leak.verdict in ("leak", "transient") and kept_by(leak):
        facts.append(kept_by(leak))
    if leak.count > 1:
        facts.append(f"{leak.count} tracers of this one cause")
    return facts


def cell_title(cell: CellRef | None, file: str | None) -> str:
    """``In [3]`` for a cell, else the file's name without its folders."""
    if cell is not None:
        return "this cell" if cell.execution_count is None else f"In [{cell.execution_count}]"
    return name(os.path.basename(file)) if file else "this code"


def where(place: Place | None, report: Report) -> str:
    """``line 20``, with the cell or file where it is not the checked one; empty for None."""
    if place is None:
        return ""
    home = report.source
    if home is None or (place.cell == home.cell and place.file in (home.file, None)):
        return f"line {place.line}"
    return f"{cell_title(place.cell, place.file)}, line {place.line}"


def level_notes(level: TraceLevel) -> list[str]:
    """Small print of a transform level: its line and its trace classes."""
    traces = level.traces or ((level.trace,) if level.trace else ())
    return [*([f"line {level.line}"] if level.line is not None else []), *(name(t) for t in traces)]


def step_notes(link: Link, report: Report) -> list[str]:
    """Small print of a path's step: the line where the holder was defined, and whose it is when not the user's."""
    place = where(link.place, report) or (f"line {link.line}" if link.line is not None else "")
    return [text for text in (place, _OWNERS.get(link.owner, "")) if text]


def holder_facts(link: Link, report: Report) -> list[str]:
    """What a holder is, for somebody who points at it: its type, whose it is, where it was defined."""
    kind = "global variable" if link.kind == "global" and link.name else f"type {name(link.type)}"
    owner = {"user": "", "library": "of a library", "jax": "of JAX", "python": "of Python", "ipython": "of IPython"}
    place = where(link.place, report) or (f"line {link.line}" if link.line is not None else "")
    defined = f"defined {on(place)}" if place else ""
    return [text for text in (kind, owner.get(link.owner, ""), defined) if text]


def on(place: str) -> str:
    """``on line 20``, ``in In [2], line 5``: what `where` gives, after a verb."""
    return f"{'on' if place.startswith('line ') else 'in'} {place}"


def headline(report: Report) -> str:
    """The report's first line."""
    leaks = report.real_leaks
    if len(leaks) == 1:
        return verdict(leaks[0])
    if leaks:
        return f"{len(leaks)} leaks"
    if PASTED_TEXT_ONLY in report.checked.unchecked:
        if report.error is not None and report.error.kind == "not_by_jax":
            return "JAX does not print this text."
        if report.error is None or report.error.type == "unknown":
            return "The text tells of no leak."
        return f"The text tells of {code(report.error.type)}, and of no leak."
    if report.error is not None:
        return f"No leak was found, but the code raised {code(report.error.type)}."
    if report.leaks:
        return "No leak of yours."
    return "No leaked tracers."


def change(report: Report, before: int | None) -> str:
    """``Was 1 leak, now clean.`` where the last check of the same cell had another number of leaks, else empty."""
    now = len(report.real_leaks)
    if before is None or before == now:
        return ""
    none = "no leak" if report.error else "clean"
    return f"Was {plural(before, 'leak')}, now {plural(now, 'leak') if now else none}."


def note_groups(notes: Sequence[Note]) -> list[tuple[str, list[Note]]]:
    """The notes under their titles: those on code, and the lines of a pasted text that were not understood."""
    unread = [note for note in notes if note.kind == UNREAD_LINE]
    groups = [
        ("No leak, but worth knowing", [note for note in notes if note.kind != UNREAD_LINE]),
        ("Lines of the text that were not understood", unread),
    ]
    return [(title, group) for title, group in groups if group]


def error_sentence(error: ErrorInfo, report: Report) -> str:
    """What the code raised and where, in one sentence."""
    line = where(error.place, report) or (f"line {error.line}" if error.line is not None else "")
    elsewhere = error.place is not None and not line.startswith("line")
    at = f" {name(at_place(error.place))}" if elsewhere and error.place else f" on {line}" if line else ""
    after = f", a consequence of leak {error.leak_id}" if error.leak_id is not None else ""
    return f"The code raised {code(error.type)}{at}{after}."


def fix_check(fix: Fix) -> str:
    """How far the fix was checked; empty where nothing is known."""
    return FIX_CHECK.get(fix.checked or "", "")


def checked(what: Checked) -> str:
    """``Checked: ...``, only what was really done."""
    done = [
        text
        for flag, text in (
            (what.checking_leaks, "jax.checking_leaks() on"),
            (what.retraced, "functions traced anew"),
            (what.census, "live tracers counted"),
        )
        if flag
    ]
    return f"Checked: {', '.join(done)}." if done else "Checked: nothing; the check did not run."


def unchecked(what: Checked) -> list[str]:
    """Sentences on what could not be seen; never empty where a part of the check was left out."""
    said = [sentence(text) for text in what.unchecked]
    if said:
        return said
    left_out = (
        (what.checking_leaks, "JAX's own leak check was off."),
        (what.retraced, "Functions compiled earlier were not traced again, so leaks inside them stay unseen."),
        (what.census, "Tracers that JAX's own check does not see were not counted."),
    )
    return [text for flag, text in left_out if not flag]


MUCH_COMPILING = 1.0
"""Seconds of compiling from which on a report tells of them, where they are also more than half of the run."""


def cost(report: Report) -> str:
    """What tracing anew cost the user, and how to do without it; empty where it was little."""
    spent = report.checked.compile_s
    if spent < MUCH_COMPILING or spent < report.elapsed.run_s / 2:
        return ""
    return (
        f"Compiling anew for the check took {_seconds(spent)} "
        f"({plural(report.checked.compiled, 'program')}, kept until `jax.clear_caches()` or a restart). "
        "`--fast` does without, and does not see leaks in functions that were compiled earlier."
    )


def versions(report: Report) -> str:
    """Versions and timings, for the foot of a report."""
    spent = report.elapsed
    rest = spent.detect_s + spent.explain_s + spent.fix_s
    return (
        f"jax {name(report.jax_version)} · Python {name(report.python_version)} · "
        f"run {_seconds(spent.run_s)}, report {_seconds(rest)}"
    )


def _seconds(s: float) -> str:
    return f"{s:.2f} s" if s < 10 else f"{s:.0f} s"


def error_message(error: ErrorInfo) -> str:
    """The exception's own message on one line, of a bounded length; empty where it is a consequence of a leak."""
    return "" if error.leak_id is not None else sentence(clip(error.message, 400))


def error_explanation(error: ErrorInfo) -> Explanation | None:
    """What the error means; None where it is a consequence of a leak, which has the explanation."""
    return None if error.leak_id is not None else error.explanation
