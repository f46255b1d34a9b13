"""Rewrites for notes and errors: numbers counted while tracing, and branches that disagree."""

from __future__ import annotations

import pytest

from jaxleak_magic.diagnose.model import ErrorInfo, Note, SourceText
from jaxleak_magic.rewrite import propose_error_fixes, propose_note_fixes
from jaxleak_magic.rewrite.rules import Example, like_branches

EXAMPLES = like_branches.EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=[e.shows for e in EXAMPLES])
def test_branches(example: Example):
    source = SourceText(example.before, file="cell.py")
    line = next(n for n, row in enumerate(example.before.splitlines(), 1) if "jax.lax." in row)
    error = ErrorInfo("TypeError", "", line, None, "branch_mismatch")
    (fix,) = propose_error_fixes(error, [source], source)
    assert fix.id == "like_branches"
    if example.after is None:
        assert fix.refusal is not None and example.refusal is not None and example.refusal in fix.refusal
    else:
        assert fix.refusal is None, fix.refusal
        assert fix.source == example.after


def test_other_errors_get_nothing():
    source = SourceText(EXAMPLES[0].before, file="cell.py")
    for kind, line in (("concretization", 11), ("branch_mismatch", 2), ("branch_mismatch", None)):
        assert propose_error_fixes(ErrorInfo("TypeError", "", line, None, kind), [source], source) == ()


COUNTER = """\
import jax

calls = 0

@jax.jit
def shifted(x):
    global calls
    calls += 1
    return x + calls

first = shifted(1)
"""


def fixes_of(text: str, line: int = 8):
    source = SourceText(text, file="cell.py")
    return propose_note_fixes(Note("impure_write", line, ""), [source], source)


def test_a_counter_goes_in_and_comes_out():
    (fix,) = fixes_of(COUNTER)
    assert fix.refusal is None and fix.source is not None
    assert "def shifted(x, calls):\n    calls += 1\n    return x + calls, calls\n" in fix.source
    assert "first, calls = shifted(1, calls)\n" in fix.source


@pytest.mark.parametrize(
    "use",
    ["if calls > 3:\n        x = x + 1", "x = x * [1, 2][calls]", "print(calls)", "for _ in range(calls): x += 1"],
)
def test_a_number_that_must_stay_a_number_is_refused(use: str):
    (fix,) = fixes_of(COUNTER.replace("return x + calls", f"{use}\n    return x + 1"))
    assert fix.refusal is not None and "as a Python number" in fix.refusal


@pytest.mark.parametrize(
    ("write", "start"), [("calls.append(1)", "[]"), ("calls = 'yes'", "'no'"), ("calls = {}", "None")]
)
def test_what_is_no_number_gets_nothing(write: str, start: str):
    text = COUNTER.replace("calls += 1", write).replace("calls = 0", f"calls = {start}").replace("+ calls", "+ 1")
    assert fixes_of(text) == ()


def test_other_notes_get_nothing():
    source = SourceText(COUNTER, file="cell.py")
    assert propose_note_fixes(Note("unrolled_loop", 8, ""), [source], source) == ()
    assert propose_note_fixes(Note("impure_write", None, ""), [source], source) == ()
