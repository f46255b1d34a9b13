"""How every door owns up to an error of ours: one line, never in the way of the user's own output or exception."""

from __future__ import annotations

import os
import sys
import traceback

ISSUES = "https://github.com/jaxleak-magic/jaxleak-magic/issues"


def say(text: str) -> None:
    """One line on stderr."""
    print(f"jaxleak-magic: {text}", file=sys.stderr)


def say_internal_error(consequence: str, error: Exception) -> None:
    """Say what the user goes without and where to report it; ``JAXLEAK_DEBUG=1`` adds the traceback.

    Args:
        consequence: what does not happen now, as the start of a sentence.
        error: the exception; nothing of it is kept.
    """
    text = " ".join(f"{type(error).__name__}: {error}".split())
    say(f"{consequence}: an error inside jaxleak-magic, {text[:300]}. Please report it: {ISSUES}")
    if os.environ.get("JAXLEAK_DEBUG"):
        traceback.print_exception(error)
