"""The reports of several engines (ipyparallel) as one, by rank: what is the same on several is told once."""

from __future__ import annotations

from collections.abc import Mapping

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show import words
from jaxleak_magic.show.causes import cause_lines, causes_of, seen_causes


def engines_bundle(reports: Mapping[int, Report]) -> dict[str, str]:
    """One output for all engines, as ``text/plain`` and ``text/html``.

    Args:
        reports: each engine's report by its rank.
    """
    from jaxleak_magic.show.html import render_html
    from jaxleak_magic.show.markup import Markup, el
    from jaxleak_magic.show.text import render_text

    summary = _summary(reports)
    text, html = ["\n".join(summary)], [el("pre", "\n".join(summary), style="white-space:pre-wrap")]
    for ranks, report in _distinct(reports):
        title = _title(ranks)
        text.append(f"{title}\n{'=' * len(title)}\n{render_text(report)}")
        html += [el("h4", title), Markup(render_html(report))]
    return {"text/plain": "\n\n".join(text), "text/html": str(el("div", html, data_jaxleak_engines=""))}


def _summary(reports: Mapping[int, Report]) -> list[str]:
    outcomes = [report.outcome for report in reports.values()]
    leaking, raised = outcomes.count("leaks"), outcomes.count("error")
    counts = f"{leaking} with leaks, {raised} that raised, {len(outcomes) - leaking - raised} clean"
    seen = seen_causes((f"[{rank}]", cause) for rank, report in reports.items() for cause in causes_of(report))
    return [
        f"{words.plural(len(reports), 'engine')}: {counts}.",
        *(line for each in seen for line in cause_lines(each, "engine")),
    ]


def _distinct(reports: Mapping[int, Report]) -> list[tuple[list[int], Report]]:
    """The reports that are worth their room, each with the ranks of all engines that have the like of it."""
    groups: dict[object, tuple[list[int], Report]] = {}
    for rank, report in sorted(reports.items()):
        if report.outcome == "clean":
            continue
        causes = frozenset(cause.key for cause in causes_of(report))
        error = None if report.error is None else (report.error.type, report.error.message, report.error.line)
        groups.setdefault((causes, error), ([], report))[0].append(rank)
    return list(groups.values())


def _title(ranks: list[int]) -> str:
    return f"{'Engine' if len(ranks) == 1 else 'Engines'} {', '.join(map(str, ranks))}"
