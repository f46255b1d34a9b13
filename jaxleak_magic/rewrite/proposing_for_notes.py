"""From a note or an error to offered fixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxleak_magic.diagnose.model import ErrorInfo, Fix, Note, SourceText
from jaxleak_magic.rewrite.checks import check
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.proposing import fix_of
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.rules import like_branches, loop_to_scan
from jaxleak_magic.rewrite.state_case import text_at_source
from jaxleak_magic.rewrite.state_notes import thread_plain_state
from jaxleak_magic.rewrite.texts import Text, Unreadable

Propose = Callable[[Program, Text, int], tuple[str, Draft] | None]


def for_note(note: Note, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """See `jaxleak_magic.rewrite.propose_note_fixes`."""
    if note.kind == "unrolled_loop":
        return _propose(loop_to_scan.ID, loop_to_scan.TITLE, loop_to_scan.propose, note.line, sources, checked)
    if note.kind != "impure_write":
        return ()
    return _propose("thread_state", "Pass the value in and return it", thread_plain_state, note.line, sources, checked)


def for_error(error: ErrorInfo, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """See `jaxleak_magic.rewrite.propose_error_fixes`."""
    if error.kind != "branch_mismatch":
        return ()
    return _propose(like_branches.ID, like_branches.TITLE, like_branches.propose, error.line, sources, checked)


def _propose(
    identity: str, title: str, rule: Propose, line: int | None, sources: Sequence[SourceText], checked: SourceText
) -> tuple[Fix, ...]:
    if line is None:
        return ()
    try:
        program = Program(list(sources) if checked in sources else [*sources, checked])
        text = text_at_source(program, checked)
        proposed = rule(program, text, line) if text is not None else None
        if proposed is None:
            return ()
        title, draft = proposed
        check(program, draft, draft.variables)
        return (fix_of(identity, title, program, draft, checked),)
    except RecursionError:
        return ()
    except (Refused, Unreadable) as reason:
        return (Fix(identity, title, refusal=str(reason)),)
