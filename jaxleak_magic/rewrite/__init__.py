"""Proposes rewrites that end a leak, as edits of the user's own texts."""

from __future__ import annotations

from collections.abc import Sequence

from jaxleak_magic.diagnose.model import ErrorInfo, Fix, Leak, Note, SourceText

__all__ = ["propose_error_fixes", "propose_fixes", "propose_fixes_together", "propose_note_fixes"]


def propose_fixes(leak: Leak, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """Rewrites for one leak.

    Args:
        leak: the leak with its facts.
        sources: every text of the user's that is known, in the order in which they ran.
        checked: the text that was checked; it may be one of ``sources``.

    Returns:
        Offered fixes, or refusals that say what to do by hand; nothing where no rule fits. Nothing is ever raised for
        what stands in the texts.
    """
    (fixes,) = propose_fixes_together((leak,), sources, checked)
    return fixes


def propose_fixes_together(
    leaks: Sequence[Leak], sources: Sequence[SourceText], checked: SourceText
) -> tuple[tuple[Fix, ...], ...]:
    """Rewrites for all leaks of a report; where several leak, one fix mends them all if the rewrites go together.

    Args:
        leaks: the leaks with their facts. The others are as above.

    Returns:
        The fixes or refusals of each leak. A fix that mends several leaks stands at each of them.
    """
    from jaxleak_magic.rewrite.proposing import propose_all

    return propose_all(leaks, sources, checked)


def propose_note_fixes(note: Note, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """Rewrites for a note: a number that is counted while tracing goes in and comes out, a loop is run by JAX.

    Arguments and result as above.
    """
    from jaxleak_magic.rewrite.proposing_for_notes import for_note

    return for_note(note, sources, checked)


def propose_error_fixes(error: ErrorInfo, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """Rewrites for an error: branches that disagree become alike. Arguments as above."""
    from jaxleak_magic.rewrite.proposing_for_notes import for_error

    return for_error(error, sources, checked)
