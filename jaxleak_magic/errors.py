"""Exceptions that users may catch."""

from __future__ import annotations

from jaxleak_magic.diagnose.model import Report


class LeakError(Exception):
    """Leaked tracers were found and the caller asked for an error.

    Args:
        report: the plain report, free of tracers; None where the check itself failed, which must not pass for clean.

    Attributes:
        report: the same.
    """

    __module__ = "jaxleak_magic"  # where users import it from: tracebacks name it so

    def __init__(self, report: Report | None = None) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        if self.report is None:
            return "the check itself failed, so nothing is known about leaks"
        from jaxleak_magic.show.words import verdict

        sentences = [verdict(leak) for leak in self.report.real_leaks]
        if len(sentences) <= 1:
            return "".join(sentences)
        return "\n".join([f"{len(sentences)} leaks", *(f"{n}. {text}" for n, text in enumerate(sentences, 1))])
