"""The plain-data model of a report: what every room after diagnosis and every door works on.

Everything here is frozen and made of strings, numbers and tuples; nothing refers to a live tracer, trace, frame or
object of the user's. ``Report.to_dict`` gives the JSON form, schema version 1.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxleak_magic.heap.paths import StepKind

SCHEMA_VERSION = 1

PASTED_TEXT_ONLY = "Only the pasted text was read."
"""Stands in `Checked.unchecked` where a report was made of a text and nothing was run."""

UNREAD_LINE = "other"
"""`Note.kind` of a line of a pasted text that was not understood; `Note.text` is the line, word for word."""

Verdict = Literal["leak", "library_cache", "exception", "transient"]
Outcome = Literal["leaks", "error", "clean"]
Owner = Literal["user", "library", "jax", "python", "ipython"]
LinkKind = StepKind
FixCheck = Literal["same_results", "leak_free", "not_checked"]

MECHANISMS = (
    "custom_vjp_closure",
    "closure_over_outer_transform",
    "pytree_static_field",
    "closure_in_aux_data",
    "lru_cache",
    "dict_memo",
    "rng_state",
    "default_arg",
    "class_attr",
    "generator",
    "partial_object",
    "callback",
    "weak_registry",
    "host_thread",
    "exception_traceback",
    "closure_escape",
    "attribute_write",
    "container_append",
    "global_write",
    "nonlocal_write",
    "jax_internal_cache",
    "debugger_or_ipython",
    "other",
)
"""Names of the mechanisms, in the order in which they are tried: the first that fits is the leak's."""


@dataclass(frozen=True)
class CellRef:
    """A notebook cell: the front end's id (None where it gives none) and its execution count ``In [n]``."""

    id: str | None
    execution_count: int | None


@dataclass(frozen=True)
class Place:
    """A place in source code.

    Attributes:
        cell: the notebook cell, or None for a file.
        file: the file's path as Python knows it, or None for a cell.
        line: 1-based line of the cell's text without its ``%%leakcheck`` line, or of the file.
        column: 0-based column in characters, or None.
        function: qualified name of the function around it, or None at top level.
        source: the line's text, or None where the source is not at hand.
    """

    cell: CellRef | None
    file: str | None
    line: int
    column: int | None = None
    function: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class TracerInfo:
    """The leaked tracer as plain text: class name, dtype, shape, and a short text that JAX's users know."""

    type: str
    dtype: str | None
    shape: tuple[int | str, ...] | None
    text: str


@dataclass(frozen=True)
class TraceLevel:
    """One transform around the leaked value.

    Attributes:
        transform: the user's word for it, e.g. ``"vmap"`` or ``"eqx.filter_jit"``.
        function: name of the function that was transformed, or None.
        line: 1-based line of the user's call, as in `Place`, or None.
        trace: class name of the innermost trace of that call, or None.
        traces: class names of all traces of that call, outermost first.
        place: where the call stands, or None (not part of the JSON of schema 1 but for ``line``).
    """

    transform: str
    function: str | None
    line: int | None
    trace: str | None
    traces: tuple[str, ...] = ()
    place: Place | None = None


@dataclass(frozen=True)
class Link:
    """One step of a path from the tracer up to a root.

    Attributes:
        kind: what holds what (see `LinkKind`).
        label: readable step in the user's names, e.g. ``"schedule closes over rate"``.
        type: type name of the holding object.
        owner: whose object the holder is.
        line: line where the holder was defined, or None.
        name: the bare name, attribute, key or index text of the step, or None (``rate``, ``.h``, ``'k'``, ``[0]``).
        holder: a short name of the holding object for a graph's node (``schedule()``, ``Learner``, ``list``).
        node: a number that is the same wherever the same object appears in a report: shared holders are one node.
        place: where the holder was defined, or None.
    """

    kind: LinkKind
    label: str
    type: str
    owner: Owner
    line: int | None = None
    name: str | None = None
    holder: str | None = None
    node: int | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Holder:
    """The root that keeps the value: ``kind`` as in `LinkKind`, its name (``learners``) and whose it is."""

    kind: str
    name: str
    owner: Owner


@dataclass(frozen=True)
class Explanation:
    """Four plain texts, each one or two sentences with the user's names; ``more`` is a page of JAX's, or None."""

    what: str
    where: str
    why: str
    how: str
    more: str | None = None


@dataclass(frozen=True)
class Edit:
    """A cell or file that a fix changes, with its whole new text (without the ``%%leakcheck`` line) and the diff."""

    cell: CellRef | None
    file: str | None
    source: str
    diff: str


@dataclass(frozen=True)
class Fix:
    """An offered rewrite, or the reason why none is offered (then ``source``, ``diff`` and ``edits`` are empty).

    Attributes:
        id: name of the rule.
        title: what it does, in a few words.
        refusal: why it is not offered and what to do by hand, or None where it is offered.
        source: whole new text of the checked cell or file, or None.
        diff: the same as a unified diff.
        edits: each cell and file that changes, with its whole new text.
        checked: how far it was checked: ``"same_results"`` (run, no leak, the same results), ``"leak_free"``
            (run, no leak), ``"not_checked"`` (not run).
    """

    id: str
    title: str
    refusal: str | None = None
    source: str | None = None
    diff: str | None = None
    edits: tuple[Edit, ...] = ()
    checked: FixCheck | None = None


@dataclass(frozen=True)
class FunctionFact:
    """A function of the user's on the path, for rewriting: where it is defined and what it closes over.

    Attributes:
        name: ``__name__`` of its code object.
        qualname: qualified name of its code object.
        variable: free variable through which the path runs.
        place: the ``def``/``lambda`` line.
    """

    name: str
    qualname: str
    variable: str
    place: Place | None


@dataclass(frozen=True)
class ClassFact:
    """A class of the user's on the path: its name, the attribute through which the path runs, where it is defined."""

    name: str
    attribute: str
    place: Place | None


@dataclass(frozen=True)
class CapturedValue:
    """What a free variable of the innermost function held.

    Attributes:
        name: the free variable.
        type: ``"tracer"`` for a tracer, else the type's name (``"dict"``, ``"Spring"``).
        dtype: the tracer's dtype, or None.
    """

    name: str
    type: str
    dtype: str | None = None


@dataclass(frozen=True)
class NameFact:
    """A name of the user's namespace and the full name of what it is bound to (``jax.numpy``), or of its class."""

    name: str
    full_name: str


@dataclass(frozen=True)
class LeakFacts:
    """Plain facts that the rewriting room starts from; not part of the JSON form.

    Attributes:
        captured: every (function, variable) of the best chain, from the tracer outwards.
        all_captured: free variables of the innermost function that held a tracer, the leaked one first.
        attributes: every (class, attribute) of the best chain, from the tracer outwards.
        in_aux_data: whether the path runs through the aux data of a pytree.
        differentiated: whether a JVP or Linearize level is in the value's stack.
        access: expression that reaches the holder from the namespace, e.g. ``learners.schedule``, or None.
        values: what each of ``all_captured`` held.
        constant: where the value was computed, when nothing traced goes into it (``jnp.arange(3)`` inside jit); empty
            when something does or it could not be told.
        names: modules, functions and classes of libraries that names of the namespace are bound to; needed for names
            that no recorded text imports.
        objects: names of the namespace that are bound to instances of classes that are not the user's, with their
            full names: ``tx.update`` is no method of the user's.
        captured_by_syntax: whether the function was found by its text alone, so that its other values are not known.
    """

    captured: tuple[FunctionFact, ...] = ()
    all_captured: tuple[str, ...] = ()
    attributes: tuple[ClassFact, ...] = ()
    in_aux_data: bool = False
    differentiated: bool = False
    access: str | None = None
    values: tuple[CapturedValue, ...] = ()
    constant: tuple[Place, ...] = ()
    names: tuple[NameFact, ...] = ()
    objects: tuple[NameFact, ...] = ()
    captured_by_syntax: bool = False


@dataclass(frozen=True)
class Leak:
    """One leaked value: one root cause, however many tracers it keeps alive.

    Attributes:
        id: 1, 2, ... in the order of the report.
        verdict: ``"leak"`` is one to act on. ``"library_cache"`` and ``"exception"``: only a cache of a library's or a
            stored exception keeps the value. ``"transient"``: it was gone when the run had ended.
        count: how many tracers of one root cause this stands for.
        mechanism: how it leaked, one of `MECHANISMS`.
        tracer: the leaked value.
        variable: the user's name for it, or None where that could not be determined.
        trace_stack: the transforms around it, outermost first; the last one is the one whose trace it belongs to.
        created: where it was made, or None where that could not be determined; likewise the next two.
        stored: the line that put it where it outlived its transform.
        escaped: the line of the call whose transform ended while it was alive.
        holder: the root that keeps it, or None where only C code is known to.
        chains: paths from the value to roots, the one that explains most first; each from the value outwards.
        explanation: what happened, where, why, and how to mend it.
        fixes: offered rewrites, and refused ones with their reason.
        facts: what the rewriting starts from.
        earlier_run: whether its trace was born before the checked run, in a run that was not checked.
        created_as_argument: whether ``created`` is the ``def`` or ``lambda`` by which it entered its trace.
    """

    id: int
    verdict: Verdict
    count: int
    mechanism: str
    tracer: TracerInfo
    variable: str | None
    trace_stack: tuple[TraceLevel, ...]
    created: Place | None
    stored: Place | None
    escaped: Place | None
    holder: Holder | None
    chains: tuple[tuple[Link, ...], ...]
    explanation: Explanation
    fixes: tuple[Fix, ...] = ()
    facts: LeakFacts = field(default=LeakFacts(), repr=False)
    earlier_run: bool = False
    created_as_argument: bool = False


@dataclass(frozen=True)
class Note:
    """What is no leak and still surprises.

    Attributes:
        kind: ``"impure_write"``, ``"unrolled_loop"`` or ``"baked_in_value"``; `UNREAD_LINE` for a line not understood.
        line: 1-based line of the checked text, or None.
        text: one or two sentences.
        fixes: as of a `Leak`.
    """

    kind: str
    line: int | None
    text: str
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class ErrorInfo:
    """An exception of the user's code, as plain text.

    Attributes:
        type: name of its class.
        message: its text.
        line: 1-based line that raised it, in whichever cell or file that is, or None.
        column: 0-based column, or None.
        kind: ``"unexpected_tracer"``, ``"concretization"``, ``"branch_mismatch"``, ``"not_tracer_related"``, ...
        explanation: in the same four parts as a leak's, or None.
        leak_id: the leak that it is a consequence of, or None.
        fixes: as of a `Leak`.
        place: the user's line that raised it.
    """

    type: str
    message: str
    line: int | None
    column: int | None
    kind: str
    explanation: Explanation | None = None
    leak_id: int | None = None
    fixes: tuple[Fix, ...] = ()
    place: Place | None = None


@dataclass(frozen=True)
class Checked:
    """What was really done.

    Attributes:
        checking_leaks: whether the code ran under ``jax.checking_leaks()``.
        retraced: whether functions that were compiled earlier were traced anew.
        census: whether births of traces were counted.
        unchecked: what could not be seen, in sentences.
        compiled: how many programs were compiled because functions were traced anew.
        compile_s: seconds of lowering and compiling them.
    """

    checking_leaks: bool
    retraced: bool
    census: bool
    unchecked: tuple[str, ...] = ()
    compiled: int = 0
    compile_s: float = 0.0


@dataclass(frozen=True)
class Elapsed:
    """Seconds spent running the code, detecting, explaining, and proposing fixes."""

    run_s: float = 0.0
    detect_s: float = 0.0
    explain_s: float = 0.0
    fix_s: float = 0.0


@dataclass(frozen=True)
class SourceText:
    """The text of a cell or file that a report speaks of.

    Attributes:
        text: the source without the ``%%leakcheck`` line, every byte of the rest as the user wrote it.
        cell: the notebook cell, or None for a file.
        file: path, or None for a cell.
        magic: the first line that was taken off (``"%%leakcheck -o r"``, with its line ending), or the empty string.
        complete: False where only the text as Python compiled it is known.
    """

    text: str
    cell: CellRef | None = None
    file: str | None = None
    magic: str = ""
    complete: bool = True


@dataclass(frozen=True)
class Report:
    """Everything that is known about one checked run.

    Attributes:
        jax_version: version of JAX.
        python_version: version of Python.
        file: the file that was checked, or None for a cell.
        checked: what was done, and what could not be seen.
        leaks: all that was found, verdict ``leak`` first.
        error: what the code raised, or None.
        notes: what is no leak and still surprises.
        elapsed: how long each part took.
        source: the checked text, or None where there is none.
        sources: the texts of all cells and files that the report speaks of.
    """

    jax_version: str
    python_version: str
    file: str | None
    checked: Checked
    leaks: tuple[Leak, ...] = ()
    error: ErrorInfo | None = None
    notes: tuple[Note, ...] = ()
    elapsed: Elapsed = Elapsed()
    source: SourceText | None = field(default=None, repr=False)
    sources: tuple[SourceText, ...] = field(default=(), repr=False)

    @property
    def outcome(self) -> Outcome:
        """``"leaks"``, ``"error"`` or ``"clean"``."""
        if self.real_leaks:
            return "leaks"
        return "error" if self.error is not None else "clean"

    @property
    def real_leaks(self) -> tuple[Leak, ...]:
        """The leaks with verdict ``leak``: those to act on."""
        return tuple(leak for leak in self.leaks if leak.verdict == "leak")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as plain dicts and lists."""
        return {
            "schema_version": SCHEMA_VERSION,
            "jax_version": self.jax_version,
            "python_version": self.python_version,
            "file": self.file,
            "outcome": self.outcome,
            "checked": _plain(self.checked),
            "error": _plain(self.error),
            "leaks": [_plain(leak) for leak in self.leaks],
            "notes": [_plain(note) for note in self.notes],
            "elapsed": {k: round(v, 6) for k, v in dataclasses.asdict(self.elapsed).items()},
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The JSON form as text; lone surrogates in the user's names are escaped, so that it is always valid UTF-8."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=True)


_NOT_IN_JSON = {"Leak": {"facts"}, "TraceLevel": {"place"}}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hidden = _NOT_IN_JSON.get(type(value).__name__, set())
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in hidden}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value
