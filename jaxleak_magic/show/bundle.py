"""The report in every form that a front end may choose from."""

from __future__ import annotations

from collections.abc import Collection

from jaxleak_magic.diagnose.model import Report


def mimebundle(
    report: Report, uid: str | None = None, *, draw: bool = True, applied: Collection[int] = ()
) -> dict[str, str]:
    """The report as ``text/plain`` and ``text/html``.

    Args:
        report: what is to be shown.
        uid: letters and digits that no other output has, for the live bridge; None makes one.
        draw: draw the referrer graph, which takes a child process (0.03 s with ``dot``, 0.5 s with pygraphviz, measured
            on two cores). A door with a live front end shows the report without it first, and then updates the display.
        applied: numbers of the fixes that were applied to the notebook.
    """
    from jaxleak_magic.show.graph import graph_svg
    from jaxleak_magic.show.html import render_html
    from jaxleak_magic.show.text import render_text

    svg = graph_svg(report) if draw else None
    html = render_html(report, uid, svg=svg, applied=applied, no_engine=draw and svg is None)
    return {"text/plain": render_text(report), "text/html": html}


def drawing_is_quick() -> bool:
    """Whether ``dot`` is there, so that a drawing need not be shown later than the rest."""
    import shutil

    return shutil.which("dot") is not None


def has_graph(report: Report) -> bool:
    """Whether there is anything to draw, so that a second rendering is worth it."""
    return any(leak.chains for leak in report.real_leaks or report.leaks)
