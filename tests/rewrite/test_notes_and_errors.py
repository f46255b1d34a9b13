"""Rewrites for notes and errors: numbers counted while tracing, and branches that disagree."""

from __future__ import annotations

import pytest

from jaxleak_magic.diagnose.model import ErrorInfo, Note, SourceText
from jaxleak_magic.rewrite import propose_error_fixes, propose_note_fixes
from jaxleak_magic.rewrite.rules import Example, like_branches, loop_to_scan

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
    assert propose_note_fixes(Note("unrolled_loop", 8, ""), [source], source) == ()  # no loop stands there
    assert propose_note_fixes(Note("baked_in_value", 8, ""), [source], source) == ()
    assert propose_note_fixes(Note("impure_write", None, ""), [source], source) == ()


def loop_fix(text: str, line: int):
    source = SourceText(text, file="cell.py")
    (fix,) = propose_note_fixes(Note("unrolled_loop", line, ""), [source], source)
    return fix


@pytest.mark.parametrize("example", loop_to_scan.EXAMPLES, ids=[e.shows for e in loop_to_scan.EXAMPLES])
def test_loops(example: Example):
    assert example.stored_line is not None
    fix = loop_fix(example.before, example.stored_line)
    assert fix.id == "loop_to_scan"
    if example.after is None:
        assert example.refusal is not None and fix.refusal is not None
        assert example.refusal in fix.refusal and "By hand: make its body a function" in fix.refusal
    else:
        assert fix.refusal is None, fix.refusal
        assert fix.source == example.after


LOOPS = [e for e in loop_to_scan.EXAMPLES if e.after is not None]


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
@pytest.mark.parametrize("example", LOOPS, ids=[e.shows for e in LOOPS])
def test_line_endings_and_tabs_stay_around_a_loop(example: Example, ending: str):
    def dressed(text: str) -> str:
        return ("# ümläut \N{SNOWMAN}\n" + text.rstrip("\n")).replace("    ", "\t").replace("\n", ending)

    assert example.after is not None and example.stored_line is not None
    assert loop_fix(dressed(example.before), example.stored_line + 1).source == dressed(example.after)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return x", "return x, _", "`_` is assigned in it or read after it"),
        ("return x", "return lambda: x", "another function reads `x`"),
        ("range(STEPS)", "[1, 2]", "only a loop over `range"),
        ("range(STEPS)", "range(0, STEPS, 2)", "only a loop over `range"),
        ("    return x\n", "    else:\n        pass\n    return x\n", "only a loop over `range"),
        ("relax(jnp.ones(3))", "relax(jnp.arange(3))", "before the loop are not known"),
        ("relax(jnp.ones(3))", "relax(jnp.ones(3, dtype=jnp.float16))", "before the loop are not known"),
        ("relax(jnp.ones(3))", "list(map(relax, points))", "not every call of `relax` is seen"),
        ("relax(jnp.ones(3))", "pass", "no call of `relax` shows what it is given"),
        ("@jax.jit\n", "", "`relax` is also called without `jax.jit`"),
        ("@jax.jit\n", "@timed\n", "not every call of `relax` is seen"),
        ("jnp.sin(x)  #", "jnp.sin(x); print(x)  #", "line 9 does more than to assign a variable"),
        ("import jax\n", 'import jax\njax.config.update("jax_numpy_rank_promotion", "raise")\n', "a setting of JAX"),
        ("import jax\n", 'import jax\njax.config.update("jax_enable_x64", True)\n', "a setting of JAX for dtypes"),
        ("STEPS = 100", "STEPS = len(data)", "do not follow from the text"),
        ("0.01 * slope", "jnp.outer(slope, slope)", "`jnp.outer(slope, slope)` do not follow from the text"),
    ],
)
def test_loops_that_are_left_alone(old: str, new: str, why: str):
    text = loop_to_scan.EXAMPLES[0].before.replace(old, new)
    assert text != loop_to_scan.EXAMPLES[0].before
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "for _ in" in row)
    fix = loop_fix(text, line)
    assert fix.refusal is not None and why in fix.refusal
