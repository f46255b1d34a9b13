"""Each rule does on its own examples what they say."""

from __future__ import annotations

import ast

import pytest

from jaxleak_magic.diagnose.model import Fix, SourceText
from jaxleak_magic.rewrite import propose_fixes
from jaxleak_magic.rewrite.rules import Example, Rule, all_rules
from tests.rewrite.made_up_leaks import made_up_leak

EXAMPLES = [(rule, example) for rule in all_rules() for example in rule.examples]
NAMES = [f"{rule.id}: {example.shows}" for rule, example in EXAMPLES]


def fixes_for(example: Example, text: str, more_lines: int = 0) -> tuple[Fix, ...]:
    """What is proposed for an example's text, which may stand some lines lower than the example says."""
    source = SourceText(text, file="cell.py")
    escaped_line = example.escaped_line and example.escaped_line + more_lines
    stored_line = example.stored_line and example.stored_line + more_lines
    leak = made_up_leak(
        source,
        example.function,
        example.variables,
        example.fields,
        example.dtype,
        example.transforms,
        escaped_line,
        stored_line=stored_line,
        variable=example.variable,
        constant_lines=tuple(line + more_lines for line in example.constant_lines),
    )
    return propose_fixes(leak, [source], source)


def refusal_of(rule: Rule, example: Example) -> Fix:
    """What a rule alone says to its example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxleak_magic.rewrite.proposing.all_rules", lambda: (rule,))
        (fix,) = fixes_for(example, example.before)
    return fix


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=NAMES)
def test_example(rule: Rule, example: Example):
    (fix,) = fixes_for(example, example.before)
    if example.after is None:
        assert example.refusal is not None
        if fix.refusal is None and fix.id != rule.id:  # another rule knows a way
            fix = refusal_of(rule, example)
        assert fix.refusal is not None
        assert example.refusal in fix.refusal
        assert (fix.source, fix.diff, fix.edits, fix.checked) == (None, None, (), None)
    else:
        assert fix.refusal is None, fix.refusal
        assert fix.source == example.after
        assert (fix.id, fix.checked) == (rule.id, "not_checked")


REWRITES = [(rule, example) for rule, example in EXAMPLES if example.after is not None]


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
@pytest.mark.parametrize(("rule", "example"), REWRITES, ids=[f"{r.id}: {e.shows}" for r, e in REWRITES])
def test_line_endings_and_other_bytes_stay(rule: Rule, example: Example, ending: str):
    def dressed(text: str) -> str:
        return ("# ümläut \N{SNOWMAN}\n" + text.rstrip("\n") + "  # no end of line").replace("\n", ending)

    assert example.after is not None
    (fix,) = fixes_for(example, dressed(example.before), more_lines=1)
    assert fix.source == dressed(example.after)


@pytest.mark.parametrize(("rule", "example"), REWRITES, ids=[f"{r.id}: {e.shows}" for r, e in REWRITES])
def test_twice_is_once(rule: Rule, example: Example):
    assert example.after is not None
    try:
        fixes = fixes_for(example, example.after)
    except AssertionError as nothing_left:
        assert "0 functions" in str(nothing_left)
    else:
        assert all(fix.refusal is not None for fix in fixes)


def test_a_rule_without_examples_cannot_be_registered():
    rule = all_rules()[0]
    with pytest.raises(ValueError, match="needs an example"):
        Rule("new", rule.propose, rule.title, [e for e in rule.examples if e.after is not None])


def test_examples_are_python():
    for _, example in EXAMPLES:
        for text in (example.before, example.after or ""):
            ast.parse(text)
