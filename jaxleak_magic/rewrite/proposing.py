"""From a leak and the user's texts to offered fixes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxleak_magic.diagnose.model import Edit, Fix, Leak, SourceText
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.checks import check
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import Rule, all_rules
from jaxleak_magic.rewrite.texts import Unreadable, apply_edits, unified_diff


def propose(leak: Leak, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """See `jaxleak_magic.rewrite.propose_fixes`."""
    if leak.verdict != "leak":
        return ()
    texts = list(sources) if checked in sources else [*sources, checked]
    try:
        case = Case.of(leak, texts)
    except RecursionError:  # expressions nested deeper than Python's own limit
        return ()
    refusals: list[Fix] = []
    for rule in all_rules():
        fix = _propose(rule, case, checked)
        if fix is not None and fix.refusal is None:
            return (fix,)
        if fix is not None:
            refusals.append(fix)
    if not refusals:
        return ()
    # A lift that was refused is refused by each rule that builds on it.
    return (refusals[0] if refusals[0].id == "make_pytree_child" else refusals[-1],)


def _propose(rule: Rule, case: Case, checked: SourceText) -> Fix | None:
    try:
        proposed = rule.propose(case)
        if proposed is None:
            return None
        title, draft = proposed
        check(case.program, draft, (*case.variables, *draft.variables))
        return fix_of(rule.id, title, case.program, draft, checked)
    except RecursionError:
        return None
    except (Refused, Unreadable) as reason:
        return Fix(rule.id, rule.title(case), refusal=str(reason))


def fix_of(identity: str, title: str, program: Program, draft: Draft, checked: SourceText) -> Fix:
    """The offered fix that a draft makes, with the new text and the diff of each text that changes."""
    edits: list[Edit] = []
    for text in program.texts:
        if draft.edits.get(text):
            new = apply_edits(text.text, draft.edits[text])
            diff = unified_diff(text.text, new, text.source.file or "cell")
            edits.append(Edit(text.source.cell, text.source.file, new, diff))
    own = next((e for e in edits if (e.cell, e.file) == (checked.cell, checked.file)), None)
    return Fix(
        id=identity,
        title=title,
        source=own.source if own else None,
        diff=own.diff if own else None,
        edits=tuple(edits),
        checked="not_checked",
    )
