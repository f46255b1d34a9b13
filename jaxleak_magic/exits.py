"""Telling an orderly end of the user's code from a failure."""

from __future__ import annotations


def failure_of(error: BaseException | None) -> BaseException | None:
    """The exception, or None where the code called ``sys.exit()`` with nothing or 0: then it has not failed."""
    if issubclass(type(error), SystemExit):  # the type alone: an exception of the user's may answer as it likes
        code = vars(SystemExit)["code"].__get__(error)
        if code is None or (type(code) in (int, bool) and code == 0):
            return None
    return error
