"""An exception of the user's code as plain text: its kind, its line in the user's text, and what it means."""

from __future__ import annotations

import re
from dataclasses import replace
from types import TracebackType

from jaxleak_magic.diagnose.disagreement import disagreement
from jaxleak_magic.diagnose.explanation import DOCS_OF_ERRORS, at_place
from jaxleak_magic.diagnose.model import ErrorInfo, Explanation, Leak
from jaxleak_magic.diagnose.trace_stack import Places
from jaxleak_magic.heap.objects import class_name, is_a, is_one_of

_CONCRETIZATION = {
    "ConcretizationTypeError",
    "TracerBoolConversionError",
    "TracerArrayConversionError",
    "TracerIntegerConversionError",
    "NonConcreteBooleanIndexError",
}
_DEPENDS = re.compile(r"depends on the values? of the arguments? (?P<names>[\w.\[\]', ]+?)(?:\.(?:\s|$)|$|\n)")
_PLAIN = (str, int, float, bool, type(None))
_SYNTAX = vars(SyntaxError)
_MESSAGE_LIMIT = 4_000
"""Characters kept of an error's message: JAX's own texts end well before."""


def error_kind(error: BaseException) -> str:
    """The kind of an error (contract: ``error.kind``), from its class name and JAX's own words."""
    return kind_from_words(class_name(type(error)), message_of(error), is_type_error=is_a(error, TypeError))


def kind_from_words(name: str, text: str, *, is_type_error: bool) -> str:
    """The kind of an error by its class name and message, also where only its text is known."""
    if name == "UnexpectedTracerError" or "UnexpectedTracerError" in text:
        return "unexpected_tracer"
    refused = "No constant handler for type" in text or "is not a valid JAX type" in text
    if is_type_error and refused and "Tracer" in text:
        return "unexpected_tracer"
    if name in _CONCRETIZATION:
        return "concretization"
    if is_type_error:
        branch = ("branch" in text or "true_fun" in text) and ("output" in text or "same type structure" in text)
        if branch:
            return "branch_mismatch"
        if "carry" in text and ("body_fun" in text or "scan" in text):
            return "carry_mismatch"
    if name == "CustomVJPException":
        return "custom_rule_closure"
    if name == "KeyReuseError":
        return "key_reuse"
    return "not_tracer_related"


def explanation_of(kind: str, where: str) -> Explanation | None:
    """The four texts for a kind of error, or None for one that has nothing to do with tracers."""
    return replace(_EXPLAIN[kind](where), more=DOCS_OF_ERRORS[kind]) if kind in _EXPLAIN else None


def details(kind: str, message: str) -> str:
    """What a message tells beyond its kind: a sentence with a space before it, or the empty string.

    The types that disagree, or the arguments on which a value depends that is not known yet (JAX's own words).
    """
    if kind in ("branch_mismatch", "carry_mismatch"):
        return disagreement(message)
    found = _DEPENDS.search(message) if kind == "concretization" else None
    if found is None:
        return ""
    names = [f"`{name}`" for name in re.split(r",? and |, ", found["names"]) if name]
    word = "argument" if len(names) == 1 else "arguments"
    return f" It depends on the {word} {', '.join(names[:-1]) + ' and ' if names[1:] else ''}{names[-1]}."


def message_of(error: BaseException) -> str:
    """The error's message from its arguments: ``__str__`` may be the user's own and is not run."""
    arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    texts = [a if type(a) is str else f"<{class_name(type(a))}>" for a in arguments]
    if is_a(error, SyntaxError) and texts:
        texts = texts[:1]
    if is_a(error, OSError, SystemExit) or not texts:
        texts = [str(a) if is_one_of(type(a), *_PLAIN) else f"<{class_name(type(a))}>" for a in arguments]
    return ", ".join(texts)[:_MESSAGE_LIMIT]


def user_point(error: BaseException, places: Places) -> tuple[str, int] | None:
    """(file name, raw line) of the innermost frame of the traceback that is the user's, or None."""
    if is_a(error, SyntaxError):
        file, line = (_SYNTAX[name].__get__(error) for name in ("filename", "lineno"))
        if type(file) is str and type(line) is int:
            return file, line
    found: tuple[str, int] | None = None
    traceback: TracebackType | None = BaseException.__traceback__.__get__(error)  # type: ignore[attr-defined]
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if places.owners(code) == "user":
            found = code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def describe_error(error: BaseException, places: Places, cause: Leak | None) -> ErrorInfo:
    """The error as plain data.

    Args:
        error: the exception; nothing of it is kept.
        places: turns its line into the user's.
        cause: the leak whose consequence it is, or None.
    """
    point = user_point(error, places)
    kind = error_kind(error)
    place = None if point is None else places.of_line(*point, None, None)
    offset = _SYNTAX["offset"].__get__(error) if is_a(error, SyntaxError) else None
    column = offset - 1 if type(offset) is int and offset else None
    where = "The line could not be determined." if place is None else f"It was raised {at_place(place)}."
    where += details(kind, message_of(error))
    return ErrorInfo(
        class_name(type(error)),
        message_of(error),
        None if place is None else place.line,
        column,
        kind,
        explanation_of(kind, where) if cause is None else _consequence(cause, where),
        None if cause is None else cause.id,
        place=place,
    )


def _consequence(cause: Leak, where: str) -> Explanation:
    value = f"`{cause.variable}`" if cause.variable else "a value"
    return Explanation(
        f"The code used {value} after its transform had ended.",
        where,
        f"That is a consequence of leak {cause.id}.",
        f"Mend leak {cause.id}.",
    )


_EXPLAIN = {
    "unexpected_tracer": lambda where: Explanation(
        "A traced value was used after its transform had ended.",
        where,
        "A traced value has a meaning only while its transform runs; something kept it and used it later.",
        "Find what keeps it: see the leak in this report, or check the cell that defined the function.",
    ),
    "concretization": lambda where: Explanation(
        "Python needed a number where there is only a traced value. This is no leak.",
        where,
        "Inside a transform a value has a shape and a dtype and no numbers, so `if`, `float()`, `int()` and NumPy "
        "cannot look at it.",
        "Use `jnp.where` or `jax.lax.cond` instead of `if`, `jnp` instead of NumPy, or make the argument static.",
    ),
    "branch_mismatch": lambda where: Explanation(
        "The branches of a conditional return different types. This is no leak.",
        where,
        "`cond` and `switch` are compiled for all branches at once, so all return the same structure, shapes and "
        "dtypes.",
        "Make every branch return the same shape and dtype, for example with `jnp.full_like` or `astype`.",
    ),
    "carry_mismatch": lambda where: Explanation(
        "The carry of a loop changes its type from one turn to the next. This is no leak.",
        where,
        "A loop is compiled once for all its turns, so the carry keeps its structure, shapes and dtypes.",
        "Give the initial carry the shape and dtype that the body returns.",
    ),
    "custom_rule_closure": lambda where: Explanation(
        "A function with a derivative rule of its own closes over a value that is differentiated. This is no leak.",
        where,
        "The rule says how to differentiate by the function's arguments, and by nothing else.",
        "Pass that value to the function as an argument, and let the rule return a cotangent for it.",
    ),
    "key_reuse": lambda where: Explanation(
        "A random key was used twice. This is no leak.",
        where,
        "The same key gives the same numbers each time.",
        "Split the key and use each part once.",
    ),
}
