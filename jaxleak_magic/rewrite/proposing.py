"""From a leak and the user's texts to offered fixes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Edit, Fix, Leak, Place, SourceText
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.checks import check
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.moved_leaks import MovedPlaces, moved_leak
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import all_rules
from jaxleak_magic.rewrite.texts import Shift, Text, Unreadable, apply_edits, unified_diff

_MOST_TOGETHER = 8
"""Leaks that are mended together at most: each takes the time of one proposal."""


@dataclass(frozen=True)
class _Step:
    """A rewrite of one leak: its rule, title and draft, on the program of its case."""

    rule: str
    title: str
    draft: Draft
    case: Case

    def covers(self, other: Case) -> bool:
        """Whether the rewrite of this leak mends another one of the same program too."""
        if other.function is not None and other.function in self.draft.lifted:
            left = set(other.variables) - set(self.case.variables)
            return not left
        if other.fields and other.fields <= set(self.draft.children) | self.case.fields:
            return bool(other.fields & set(self.draft.children))
        return self._takes_out(other.leak.stored)

    def _takes_out(self, place: Place | None) -> bool:
        """Whether the statement at a place, which stores the value, goes."""
        if place is None:
            return False
        for text, edits in self.draft.edits.items():
            if (text.source.cell, text.source.file) == (place.cell, place.file):
                return Shift(edits)(text.first_of_line(place.line)) is None
        return False


def propose_all(
    leaks: Sequence[Leak], sources: Sequence[SourceText], checked: SourceText
) -> tuple[tuple[Fix, ...], ...]:
    """The fixes of each leak: where several leak, one that mends them all, if the rewrites go together."""
    texts = list(sources) if checked in sources else [*sources, checked]
    own = tuple(propose(leak, texts, checked) for leak in leaks)
    offered = [i for i, fixes in enumerate(own) if fixes and fixes[0].refusal is None]
    if len(offered) < 2 or len(offered) > _MOST_TOGETHER:
        return own
    chosen = [leaks[i] for i in offered]
    if len({own[i][0].edits for i in offered}) == 1:
        together: Fix | None = own[offered[0]][0]
    else:
        together = _together(chosen, texts, checked) or _together(chosen[::-1], texts, checked)
    return own if together is None else tuple((together,) if i in offered else fixes for i, fixes in enumerate(own))


def _together(leaks: Sequence[Leak], texts: list[SourceText], checked: SourceText) -> Fix | None:
    """One fix that makes the rewrites of all leaks, one after the other; None where one is in the way of another."""
    steps: list[_Step] = []
    now, left = texts, list(leaks)
    while left:
        cases = [Case.of(leak, now) for leak in left]
        step = _first_step(cases[0])
        if not isinstance(step, _Step):
            return None
        steps.append(step)
        left = [case.leak for case in cases[1:] if not step.covers(case)]
        program = step.case.program
        after = Program(
            [_rewritten(text, step.draft) for text in program.texts], program.known_names, program.library_objects
        )
        if len(after.texts) != len(program.texts):
            return None
        places = MovedPlaces(program.texts, after.texts, step.draft.edits)
        changed = {id(old.source): new.source for old, new in zip(program.texts, after.texts, strict=True)}
        now = [changed.get(id(source), source) for source in now]
        left = [moved_leak(leak, places) for leak in left]
    pairs = [(old, new) for old, new in zip(texts, now, strict=True) if old.text != new.text]
    title = "; ".join(dict.fromkeys(step.title for step in steps))
    return _fix(steps[0].rule, title, pairs, checked)


def _rewritten(text: Text, draft: Draft) -> SourceText:
    edits = draft.edits.get(text)
    return dataclasses.replace(text.source, text=apply_edits(text.text, edits)) if edits else text.source


def propose(leak: Leak, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """See `jaxleak_magic.rewrite.propose_fixes`."""
    if leak.verdict != "leak":
        return ()
    texts = list(sources) if checked in sources else [*sources, checked]
    try:
        case = Case.of(leak, texts)
    except RecursionError:  # expressions nested deeper than Python's own limit
        return ()
    step = _first_step(case)
    if isinstance(step, _Step):
        return (fix_of(step.rule, step.title, case.program, step.draft, checked),)
    # A lift that was refused is refused by each rule that builds on it.
    return step[:1] if step and step[0].id == "make_pytree_child" else step[-1:]


def _first_step(case: Case) -> _Step | tuple[Fix, ...]:
    """The rewrite of the first rule that knows one, or the refusals of all that apply."""
    refusals: list[Fix] = []
    for rule in all_rules():
        try:
            proposed = rule.propose(case)
            if proposed is None:
                continue
            title, draft = proposed
            check(case.program, draft, (*case.variables, *draft.variables))
            return _Step(rule.id, title, draft, case)
        except RecursionError:
            continue
        except (Refused, Unreadable) as reason:
            refusals.append(Fix(rule.id, rule.title(case), refusal=str(reason)))
    return tuple(refusals)


def fix_of(identity: str, title: str, program: Program, draft: Draft, checked: SourceText) -> Fix:
    """The offered fix that a draft makes, with the new text and the diff of each text that changes."""
    pairs = [(t.source, _rewritten(t, draft)) for t in program.texts if draft.edits.get(t)]
    return _fix(identity, title, pairs, checked)


def _fix(identity: str, title: str, pairs: Sequence[tuple[SourceText, SourceText]], checked: SourceText) -> Fix:
    """The offered fix of texts and their rewritten forms."""
    edits = tuple(
        Edit(old.cell, old.file, new.text, unified_diff(old.text, new.text, old.file or "cell")) for old, new in pairs
    )
    own = next((e for e in edits if (e.cell, e.file) == (checked.cell, checked.file)), None)
    return Fix(
        id=identity,
        title=title,
        source=own.source if own else None,
        diff=own.diff if own else None,
        edits=edits,
        checked="not_checked",
    )
