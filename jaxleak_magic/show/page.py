"""A whole HTML document of one or several reports, for the command line."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import sentence
from jaxleak_magic.show.graph import graph_svg
from jaxleak_magic.show.html import fragment, scope
from jaxleak_magic.show.markup import el, inline
from jaxleak_magic.show.style import page_sheet, style_sheet


def render_page(
    reports: Report | Iterable[Report | tuple[str, Report]], *, draw: bool = True, summary: Sequence[str] = ()
) -> str:
    """A whole HTML document, for ``--format html``.

    Args:
        reports: one report, or several, each alone or with its title (default: its file and cell).
        draw: draw the referrer graphs (one child process for each); otherwise the paths are boxes with arrows.
        summary: lines to stand above the reports.
    """
    listed = [reports] if isinstance(reports, Report) else list(reports)
    pairs = [item if isinstance(item, tuple) else (page_title(item), item) for item in listed]
    token = uuid.uuid4().hex
    body: list[Markup] = []
    if len(pairs) != 1:
        body += [el("h1", inline(_tally([report for _, report in pairs])))]
    if summary:
        body += [el("pre", "\n".join(summary), class_="summary")]
    for title, report in pairs:
        svg = graph_svg(report) if draw else None
        body += [el("h2", sentence(title)) if title else Markup(""), fragment(report, token, svg)]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = [
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        el(
            "title",
            "jaxleak: " + (sentence(words.headline(pairs[0][1])).replace("`", "") if len(pairs) == 1 else "report"),
        ),
        el("style", Markup(page_sheet() + style_sheet(scope(token)))),
    ]
    return str(Markup("<!doctype html>\n") + el("html", el("head", head), el("body", body), lang="en")) + "\n"


def page_title(report: Report) -> str:
    """The file and cell of a report, for the heading over it; empty where neither is known."""
    source = report.source
    cell = words.cell_title(source.cell, None) if source is not None and source.cell is not None else ""
    return " · ".join(text for text in (report.file or "", cell) if text)


def _tally(reports: Sequence[Report]) -> str:
    leaks = sum(len(report.real_leaks) for report in reports)
    errors = sum(report.error is not None for report in reports)
    text = f"{words.plural(len(reports), 'report')}: {words.plural(leaks, 'leak')}"
    return text + (f", {words.plural(errors, 'error')}" if errors else "")
