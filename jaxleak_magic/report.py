"""The report as users hold it: what ``%%leakcheck -o NAME`` stores and the Python API returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxleak_magic.diagnose.model import Checked, ErrorInfo, Leak, Note, Outcome, Report
from jaxleak_magic.errors import LeakError

if TYPE_CHECKING:
    import graphviz
    from ipywidgets import DOMWidget


@dataclass(frozen=True, repr=False)
class LeakReport:
    """A report that shows itself in notebooks and terminals. It is plain data: it holds no tracer and can be pickled.

    Attributes:
        report: the plain report.
    """

    report: Report

    @classmethod
    def pending(cls) -> LeakReport:
        """A report that is filled later, by `fill`; asked for anything before that it raises RuntimeError."""
        return object.__new__(cls)

    def fill(self, report: Report) -> None:
        """Give a pending report what it reports."""
        object.__setattr__(self, "report", report)

    def __getattr__(self, name: str) -> Any:
        if name == "report":  # not there: everything else goes through it
            raise RuntimeError("there is no report yet: it is made when the `with` block has ended")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def outcome(self) -> Outcome:
        """``"leaks"``, ``"error"`` or ``"clean"``."""
        return self.report.outcome

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """Everything that was found, those to act on (verdict ``leak``) first."""
        return self.report.leaks

    @property
    def error(self) -> ErrorInfo | None:
        """The exception of the checked code as plain text, or None."""
        return self.report.error

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is no leak and still surprises."""
        return self.report.notes

    @property
    def checked(self) -> Checked:
        """What was really done, and in words what could not be seen."""
        return self.report.checked

    @property
    def graph(self) -> graphviz.Digraph:
        """Who refers to the leaked values, as a `graphviz.Digraph`; shows its source where Graphviz is missing."""
        from jaxleak_magic.show.graph import build_graph

        return build_graph(self.report)

    def widget(self) -> DOMWidget:
        """The report as a widget, for dashboards: with buttons that copy a fix."""
        from jaxleak_magic.show.widget import report_widget

        return report_widget(self.report)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as plain dicts and lists."""
        return self.report.to_dict()

    def to_json(self, indent: int | None = 2) -> str:
        """The JSON form as text.

        Args:
            indent: blanks per level, None for one line.
        """
        return self.report.to_json(indent)

    def raise_if_leaks(self) -> None:
        """Raise `LeakError` if there is a leak to act on, for tests and CI."""
        if self.report.real_leaks:
            raise LeakError(self.report)

    def __str__(self) -> str:
        from jaxleak_magic.show.text import render_text

        return render_text(self.report)

    def __repr__(self) -> str:
        from jaxleak_magic.show.words import headline

        if "report" not in self.__dict__:
            return "<LeakReport: none yet, the block has not ended>"
        return f"<LeakReport: {headline(self.report).replace('`', '').rstrip('.')}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        from jaxleak_magic.show.bundle import mimebundle

        return mimebundle(self.report)["text/html"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from jaxleak_magic.show.bundle import mimebundle

        return mimebundle(self.report)
