"""Every text that explains: one golden page for the mechanisms and verdicts of leaks, one for the errors."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from jaxleak_magic.diagnose.errors import details, explanation_of, kind_from_words
from jaxleak_magic.diagnose.explanation import StoryFacts, explain
from jaxleak_magic.diagnose.model import MECHANISMS, CellRef, Explanation, Place, TraceLevel, TracerInfo

GOLDEN = Path(__file__).parent / "golden"
CELL = CellRef("a", 5)


def facts(mechanism: str, verdict: str = "leak", **changes: object) -> StoryFacts:
    """The facts of a story in which everything is known."""
    base: dict[str, object] = {
        "mechanism": mechanism,
        "verdict": verdict,
        "variable": "rate",
        "tracer": TracerInfo("BatchTracer", "float32", (), "float32[]"),
        "stack": (
            TraceLevel("jit", "train", 9, "DynamicJaxprTrace", ("DynamicJaxprTrace",)),
            TraceLevel("vmap", "make_learner", 8, "BatchTrace", ("BatchTrace",)),
        ),
        "created": Place(CELL, None, 2),
        "is_argument": True,
        "stored": Place(CELL, None, 5),
        "escaped": Place(CELL, None, 8),
        "keeper": "`learners.schedule`",
        "closure": "`schedule`",
        "pytree_class": "`Learner`",
    }
    return StoryFacts(**{**base, **changes})  # type: ignore[arg-type]


JIT = (TraceLevel("jit", "train", 9, "DynamicJaxprTrace", ("DynamicJaxprTrace",)),)
STORIES = {
    **{mechanism: facts(mechanism) for mechanism in MECHANISMS},
    "verdict library_cache": facts("jax_internal_cache", "library_cache", library="jax._src.pjit"),
    "verdict exception": facts("exception_traceback", "exception"),
    "verdict exception, a kept frame": facts("debugger_or_ipython", "exception", keeper="`frames`"),
    "verdict transient": facts("attribute_write", "transient"),
    "IPython's history": facts("debugger_or_ipython", history=True, keeper="`Out[5]`"),
    "an earlier run": facts("attribute_write", earlier=True, check_at="In [3], which runs `make_learner`"),
    "a constant": facts("closure_in_aux_data", constant=True, is_argument=False, stack=JIT),
    "several variables": facts("closure_escape", others=("scale", "bias")),
    "several cells": facts("closure_escape", created=Place(CellRef("b", 2), None, 7)),
    "a file": facts(
        "global_write",
        created=Place(None, "/home/ann/model.py", 2),
        stored=Place(None, "/home/ann/model.py", 5),
        escaped=Place(None, "/home/ann/model.py", 8),
        is_argument=False,
    ),
    "nothing is known": facts(
        "other",
        variable=None,
        stack=(),
        created=None,
        stored=None,
        escaped=None,
        keeper=None,
        closure=None,
        pytree_class=None,
    ),
}
ERRORS = {
    "unexpected_tracer": ("UnexpectedTracerError", "Encountered an unexpected tracer."),
    "concretization": (
        "TracerBoolConversionError",
        "Attempted boolean conversion of traced array with shape bool[].\nThe error occurred while tracing the "
        "function f at <cell>:3 for jit. This concrete value was not available in Python because it depends on the "
        "values of the arguments x and state.scale.\nSee https://docs.jax.dev",
    ),
    "branch_mismatch": (
        "TypeError",
        "cond branches must have equal output types but they differ.\n\ntrue_fun is fresh at /home/ann/cell.py:7\n"
        "false_fun is keep at /home/ann/cell.py:10\n\nThe output of true_fun has type float32[3] but the corresponding "
        "output of false_fun has type float32[4], so the shapes do not match.",
    ),
    "carry_mismatch": (
        "TypeError",
        "scan body function carry input and carry output must have equal types, but they differ:\n\nThe input carry c "
        "has type int32[] but the corresponding output carry component has type float32[], so the dtypes do not match.",
    ),
    "custom_rule_closure": ("CustomVJPException", "Detected differentiation of a custom_vjp function"),
    "key_reuse": ("KeyReuseError", "Previously-consumed key passed to jax.random.normal"),
}


def page(title: str, told: Explanation) -> str:
    lines = [f"## {title}"]
    for name in ("what", "where", "why", "how"):
        lines += textwrap.wrap(f"{name}: {getattr(told, name)}", 118, subsequent_indent="  ")
    assert (told.more or "").startswith("https://docs.jax.dev/")
    return "\n".join(lines)


def compare(name: str, text: str) -> None:
    """UPDATE_GOLDEN=1 writes the page anew: read the diff before you commit it."""
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_texts_of_leaks() -> None:
    compare("leaks.md", "\n\n".join(page(title, explain(story)) for title, story in STORIES.items()) + "\n")


def test_texts_of_errors() -> None:
    pages: list[str] = []
    for kind, (name, message) in ERRORS.items():
        assert kind_from_words(name, message, is_type_error=name == "TypeError") == kind
        told = explanation_of(kind, "It was raised on line 4 of In [5]." + details(kind, message))
        assert told is not None
        pages.append(page(f"{kind}: {name}", told))
    compare("errors.md", "\n\n".join(pages) + "\n")


def test_an_error_that_has_nothing_to_do_with_tracers_is_not_explained() -> None:
    assert kind_from_words("ValueError", "no", is_type_error=False) == "not_tracer_related"
    assert explanation_of("not_tracer_related", "") is None


@pytest.mark.parametrize("title", STORIES)
def test_every_text_is_one_or_two_sentences_with_no_hole_in_it(title: str) -> None:
    told = explain(STORIES[title])
    for text in (told.what, told.where, told.why, told.how):
        assert text.endswith("."), text
        assert (
            "`None`" not in text
            and "None " not in text.replace("Use None ", "")
            and "  " not in text
            and ".." not in text
        ), text
        assert text[0].isupper() or text.startswith("`"), text
