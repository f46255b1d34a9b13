"""Static checks of a finished draft: what it may not have changed."""

from __future__ import annotations

from collections.abc import Sequence

from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.masking import is_python
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.scopes import compiled_free_names
from jaxleak_magic.rewrite.texts import Text, Unreadable, apply_edits


def check(program: Program, draft: Draft, variables: Sequence[str]) -> None:
    """Raise `Refused` where the rewritten texts fail a static check."""
    for text, edits in draft.edits.items():
        new = apply_edits(text.text, edits)
        try:
            after = Text(SourceText(new))
        except Unreadable:
            raise Refused("The rewritten code would not be valid Python, so it is not offered.") from None
        before_names, after_names = compiled_free_names(text.tree), compiled_free_names(after.tree)
        if before_names is None or after_names is None or not is_python(after.masked):
            raise Refused("The rewritten code would not compile, so it is not offered.")
        lifted = {function_name(program, f) for f in draft.lifted if program.text_of[f] is text}
        for (name, _), all_free in after_names.items():
            if name in lifted and any(set(variables) & free for free in all_free):
                raise Refused(f"`{name}` would still close over a value after the rewrite, so it is not offered.")
