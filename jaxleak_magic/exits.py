"""Telling an orderly end of the user's code from a failure."""

from __future__ import annotations


def failure_of(error: BaseException | None) -> BaseException | None:
    """The exception, or None where the code called ``sys.exit()`` with nothing or 0: then it has not failed."""
    if isinstance(error, SystemExit) and (error.code is None or error.code == 0):
        return None
    return error
