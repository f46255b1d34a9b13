"""A leak in one line, for a cell that was only watched; where HTML is shown the whole report unfolds below it."""

from __future__ import annotations

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show import words


def notice_line(report: Report) -> str:
    """``Leak: `y` leaked out of `jit(f)`, kept alive by the global `kept`.`` with the command for the whole report."""
    leaks = report.real_leaks
    head = "Leak" if len(leaks) == 1 else f"{len(leaks)} leaks, the first"
    return f"{head}: {words.verdict_and_keeper(leaks[0])}. `%leakcheck` shows the report."


def notice_bundle(report: Report) -> dict[str, str]:
    """The line as ``text/plain``, and as ``text/html`` with the report folded below it; it opens without a kernel."""
    from jaxleak_magic.show.html import render_html  # markupsafe: not imported while the extension is loaded
    from jaxleak_magic.show.markup import Markup, el, inline

    line = notice_line(report)
    whole = Markup(render_html(report))
    folded = el("details", el("summary", inline(line), style="cursor:pointer"), whole, data_jaxleak_notice="")
    return {"text/plain": line.replace("`", ""), "text/html": str(folded)}
