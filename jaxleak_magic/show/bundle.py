"""The report in every form that a front end may choose from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from jaxleak_magic.diagnose.model import Report


def mimebundle(report: Report, uid: str | None = None) -> dict[str, str]:
    """The report as ``text/plain`` and ``text/html``, with its graph drawn.

    Args:
        report: what is to be shown.
        uid: letters and digits that no other output has, for the live bridge; None makes one.
    """
    output = ReportOutput(report, uid)
    output.draw()
    return output.bundle()


@dataclass
class ReportOutput:
    """One output that shows a report, and what became of it since.

    A door with a live front end shows it before it is drawn, for drawing takes a child process (0.03 s with ``dot``,
    0.5 s with pygraphviz, measured on two cores), and then updates the display.

    Attributes:
        report: what is shown.
        uid: letters and digits that no other output has, for the live bridge; None makes one.
        before: how many leaks the last check of the same cell had, or None.
        applied: numbers of the fixes that are applied to the notebook.
        svg: the drawn graph, or None.
        no_engine: a picture was wanted and could not be drawn.
    """

    report: Report
    uid: str | None = None
    before: int | None = None
    applied: Collection[int] = ()
    svg: str | None = field(default=None, repr=False)
    no_engine: bool = False

    @property
    def has_graph(self) -> bool:
        """Whether there is anything to draw, so that a second rendering is worth it."""
        return any(leak.chains for leak in self.report.real_leaks or self.report.leaks)

    def draw(self) -> None:
        """Draw the referrer graph, in a child process."""
        from jaxleak_magic.show.graph import graph_svg

        self.svg = graph_svg(self.report)
        self.no_engine = self.svg is None and self.has_graph

    def bundle(self) -> dict[str, str]:
        """The report as it stands now, as ``text/plain`` and ``text/html``."""
        from jaxleak_magic.show.html import render_html
        from jaxleak_magic.show.text import render_text

        html = render_html(
            self.report,
            self.uid,
            svg=self.svg,
            applied=self.applied,
            no_engine=self.no_engine,
            before=self.before,
        )
        return {"text/plain": render_text(self.report, before=self.before), "text/html": html}
