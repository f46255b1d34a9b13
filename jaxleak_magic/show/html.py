"""The report as one static, self-contained piece of HTML: no script, no link, readable without its style."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Collection, Sequence

from markupsafe import Markup

from jaxleak_magic.diagnose.model import ErrorInfo, Explanation, Fix, Leak, Link, Note, Report, TraceLevel
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import name, sentence
from jaxleak_magic.show.excerpt import Excerpt, Line, error_excerpts, leak_excerpts
from jaxleak_magic.show.fixes import Diff, diffs, fix_numbers, other_leaks
from jaxleak_magic.show.markup import NEWLINE, el, inline, joined
from jaxleak_magic.show.paths import steps
from jaxleak_magic.show.style import style_sheet

_DOT = Markup(" · ")
_DIFF_CLASSES = {"same": None, "added": "add", "removed": "del", "gap": "gap"}
_DIFF_SIGNS = {"same": "  ", "added": "+ ", "removed": "- ", "gap": "@@ "}
_MARK_ORDER = ("raised", "stored", "made", "ended")

PATHS_SHOWN = 4
"""Paths to one value that are shown; the others are counted."""


MARK_COLUMN = 56
"""Characters of a marked line up to which its mark stands beside it; beyond, it stands below."""


def render_html(
    report: Report,
    uid: str | None = None,
    *,
    svg: str | None = None,
    applied: Collection[int] = (),
    no_engine: bool = False,
    before: int | None = None,
) -> str:
    """The whole report as one element with its style.

    Args:
        report: what is to be shown.
        uid: letters and digits that no other output has; None makes one. The root is marked ``data-jaxleak="<uid>"``,
            each offered fix has a ``data-jaxleak-fix="N"``.
        svg: the referrer graph as `graph.render_svg` draws it, or None: then the paths are boxes with arrows.
        applied: numbers of the fixes that were applied to the notebook.
        no_engine: a picture was wanted and could not be drawn: say how to get one.
        before: how many leaks the last check of the same cell had, or None: it is said where it has changed.

    Returns:
        HTML that can be encoded as UTF-8.
    """
    token = re.sub(r"\W", "", uid or "", flags=re.ASCII) or uuid.uuid4().hex
    return str(_Fragment(report, token, svg, applied, no_engine=no_engine, before=before).root(with_style=True))


def fragment(report: Report, token: str, svg: str | None = None) -> Markup:
    """The report's element without a style: for a page that has one `scope` for all."""
    return _Fragment(report, token, svg).root(with_style=False)


def scope(token: str) -> str:
    """The selector that matches the roots made with this token only.

    It counts as three classes: JupyterLab 4.6 styles ``code`` in rendered HTML by a selector with two.
    """
    return f".jaxleak.jaxleak.jl-{token[:8]}"


class _Fragment:
    def __init__(
        self,
        report: Report,
        token: str,
        svg: str | None,
        applied: Collection[int] = (),
        *,
        no_engine: bool = False,
        before: int | None = None,
    ) -> None:
        self.of = report
        self.token = token
        self.svg = svg
        self.applied = applied
        self.no_engine = no_engine
        self.before = before
        self.numbers = fix_numbers(report)
        self.shown: set[Fix] = set()

    def root(self, *, with_style: bool) -> Markup:
        report = self.of
        real = report.real_leaks
        style = el("style", Markup(style_sheet(scope(self.token)))) if with_style else None
        body: list[Markup] = [el("h3", inline(words.headline(report)))]
        was = words.change(report, self.before)
        body += [el("p", was, class_="was")] if was else []
        if len(real) == 1:
            body += self.leak(real[0], alone=True)
        else:
            for n, leak in enumerate(real):
                title = [el("small", f"{n + 1} of {len(real)}"), " ", inline(words.verdict(leak))]
                parts = [el("summary", title), *self.leak(leak, alone=False)]
                body.append(el("details", parts, class_="leak", open="" if n == 0 else None))
            if real and self.svg:
                body += [el("h4", "Who keeps them alive, in one picture"), self.picture(self.svg, real)]
        if report.error:
            body += self.error(report.error)
        others = other_leaks(report)
        if others:
            body.append(self.harmless(others))
        for title, notes in words.note_groups(report.notes):
            body += self.notes(title, notes)
        quiet = len(body) == (2 if was else 1)
        body.append(self.foot(quiet=quiet))
        state = "jaxleak" if real or report.error else "jaxleak ok line" if quiet else "jaxleak ok"
        return el("div", style, body, class_=f"{state} jl-{self.token[:8]}", data_jaxleak=self.token)

    # a leak, from top to bottom

    def leak(self, leak: Leak, *, alone: bool) -> list[Markup]:
        facts = words.summary(leak)
        parts = [el("p", _DOT.join(inline(fact) for fact in facts), class_="sub")] if facts else []
        parts += self.excerpts(leak_excerpts(self.of, leak), leak.variable)
        parts += self.levels(leak)
        parts += self.paths(leak, self.svg if alone else None)
        parts += self.explanation(leak.explanation)
        return parts + self.fixes(leak.fixes)

    def excerpts(self, excerpts: Sequence[Excerpt], variable: str | None = None) -> list[Markup]:
        found: list[Markup] = []
        for excerpt in excerpts:
            lines: list[Markup] = []
            if excerpt.title:
                lines.append(el("span", excerpt.title, NEWLINE, class_="file"))
            gutter = max((len(str(line.number)) for line in excerpt.lines if line.number), default=1)
            for line in excerpt.lines:
                lines.append(self.line(line, gutter, variable))
            low = any(line.marks and len(line.text) > MARK_COLUMN for line in excerpt.lines)
            found.append(el("pre", lines, class_="src low" if low else "src"))
        return found

    def line(self, line: Line, gutter: int, variable: str | None) -> Markup:
        # The blanks and newlines between the spans are for readers without the style; a grid does not show them.
        if line.number is None:
            return el("span", el("i", f"{'⋮':>{gutter}}"), NEWLINE, class_="ln")
        kinds = {mark.kind for mark in line.marks}
        kind = next((k for k in _MARK_ORDER if k in kinds), "")
        parts: list[Markup] = [
            el("i", f"{line.number:>{gutter}}"),
            Markup("  "),
            el("span", _emphasised(line.text, variable)),
        ]
        for mark in line.marks:
            text = [el("mark", mark.kind), " ", inline(mark.text)]
            parts += [NEWLINE, Markup(" " * (gutter + 2)), el("span", text, class_="at")]
        return el("span", parts, NEWLINE, class_=f"ln {kind}".rstrip())

    def levels(self, leak: Leak) -> list[Markup]:
        stack = leak.trace_stack
        if not stack:
            return []
        shown = [el("b", leak.variable)] if leak.variable and len(leak.variable) <= 40 else [el("b", "the value")]
        value = words.value(leak)
        inner = el("li", el("span", shown, el("small", " ", name(value)) if value else None), class_="val")
        for level in reversed(stack):
            hit = "hit" if level is stack[-1] else None
            inner = el("li", self.level(level), el("ul", inner), class_=hit)
        title = "Transform" if len(stack) == 1 else "Transforms, outermost first"
        return [el("h4", title, title=words.LEVEL_HINT), el("ul", inner, class_="tr")]

    def level(self, level: TraceLevel) -> Markup:
        function = "lambda" if level.function == "<lambda>" else level.function
        parts: list[Markup | str | None] = [el("b", name(level.transform)), " ", name(function) if function else None]
        return el("span", parts, el("small", " ", _DOT.join(map(joined, words.level_notes(level)))))

    def paths(self, leak: Leak, svg: str | None) -> list[Markup]:
        if not leak.chains:
            return []
        best = self.path(leak, leak.chains[0])
        parts = [el("h4", "Who keeps it alive")]
        if svg:
            parts += [self.picture(svg, [leak]), el("details", el("summary", "The path in words"), best)]
        else:
            parts.append(best)
        others = leak.chains[1:]
        if others:
            title = words.plural(len(others), "other path") + " to the same value"
            more = [el("div", self.path(leak, chain)) for chain in others[: PATHS_SHOWN - 1]]
            hidden = len(others) - len(more)
            more += [el("p", f"{hidden} more not shown", class_="say")] if hidden > 0 else []
            parts.append(el("details", el("summary", title), more))
        if self.no_engine and leak is self.of.real_leaks[-1]:
            parts.append(el("p", inline(words.GRAPH_HINT), class_="say"))
        return parts

    def path(self, leak: Leak, chain: tuple[Link, ...]) -> Markup:
        items: list[Markup] = []
        for step in steps(chain, self.of):
            small = [step.label, f" ({step.note})" if step.note else ""]
            items.append(
                el("li", el("b", step.title), el("small", " ", small), class_=" ".join(sorted(step.look)) or None)
            )
        items.append(el("li", el("b", name(leak.variable or "the value")), el("small", " the leaked value")))
        return el("ol", items, class_="way")

    def picture(self, svg: str, leaks: Sequence[Leak]) -> Markup:
        data = base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
        spoken = "; ".join(
            " → ".join([*(s.title for s in steps(leak.chains[0], self.of)), name(leak.variable or "the leaked value")])
            for leak in leaks
            if leak.chains
        )
        image = el(
            "img",
            src=f"data:image/svg+xml;base64,{data}",
            alt=f"Graph of what keeps the value alive: {spoken}",
            style=_least_width(svg),
        )
        return el("figure", image, class_="pic")

    def explanation(self, text: Explanation) -> list[Markup]:
        parts = [("What", text.what), ("Where", text.where), ("Why", text.why), ("How", text.how)]
        rows = [[el("dt", head), el("dd", inline(sentence(body)))] for head, body in parts if body.strip()]
        if rows and text.more and text.more.startswith("https://"):
            rows.append([el("dt", "More"), el("dd", el("a", "JAX's own page on this", href=text.more))])
        return [el("h4", "What happened, and how to mend it"), el("dl", rows)] if rows else []

    def fixes(self, fixes: Sequence[Fix]) -> list[Markup]:
        parts: list[Markup] = []
        for fix in fixes:
            number = self.numbers.get(fix)
            if number is None:
                title = ["No rewrite offered: ", inline(sentence(fix.title))]
                parts += [el("h4", title, class_="fix"), el("p", inline(sentence(fix.refusal or "")), class_="no")]
            elif fix in self.shown:
                parts.append(el("h4", f"Fix {number}, above, mends this too", class_="fix"))
            else:
                self.shown.add(fix)
                parts += self.fix(fix, number)
        return parts

    def fix(self, fix: Fix, number: int) -> list[Markup]:
        parts = [el("h4", f"Fix {number}: ", inline(sentence(fix.title)), class_="fix")]
        if words.fix_check(fix):
            parts.append(el("p", words.fix_check(fix), class_="say"))
        found = diffs(fix)
        home = self.of.source.cell if self.of.source else None
        for diff in found:
            if len(found) > 1 or diff.cell != home:
                parts.append(el("p", words.cell_title(diff.cell, diff.file), class_="say"))
            parts.append(self.diff(diff))
        if self.of.file is None:
            take = ["Take it with ", el("code", f"%leakfix {number}")]
            said = "Applied. Run the cell again to check it." if number in self.applied else take
            parts.append(el("p", said, class_="say", data_jaxleak_fix=number))
        return parts

    def diff(self, diff: Diff) -> Markup:
        lines: list[Markup] = []
        for line in diff.lines:
            lines.append(el("span", _DIFF_SIGNS[line.kind], line.text, NEWLINE, class_=_DIFF_CLASSES[line.kind]))
        return el("pre", lines, class_="diff")

    # what stands beside the leaks

    def error(self, error: ErrorInfo) -> list[Markup]:
        parts = [el("h4", inline(words.error_sentence(error, self.of)), class_="fix")] if self.of.real_leaks else []
        message = words.error_message(error)
        parts += [el("p", message, class_="sub")] if message else []
        parts += self.excerpts(error_excerpts(self.of, error))
        explanation = words.error_explanation(error)
        parts += self.explanation(explanation) if explanation else []
        return parts + self.fixes(error.fixes)

    def harmless(self, leaks: Sequence[Leak]) -> Markup:
        parts: list[Markup] = []
        for leak in leaks:
            facts = [inline(words.verdict(leak)), *map(inline, words.summary(leak))]
            parts.append(el("p", _DOT.join(facts)))
            parts += [
                el("p", inline(sentence(text)), class_="say")
                for text in (leak.explanation.why, leak.explanation.how)
                if text
            ]
            if leak.chains:
                parts.append(self.path(leak, leak.chains[0]))
            parts += self.fixes(leak.fixes)
        title = f"{words.plural(len(leaks), 'value')} kept for no fault of yours"
        return el("details", el("summary", title), parts)

    def notes(self, title: str, notes: Sequence[Note]) -> list[Markup]:
        items: list[Markup] = []
        for note in notes:
            line = [el("small", f"line {note.line}"), " "] if note.line is not None else []
            items.append(el("p", line, inline(sentence(note.text))))
            items += self.fixes(note.fixes)
        return [el("h4", title), *items]

    def foot(self, *, quiet: bool) -> Markup:
        parts = [el("p", words.checked(self.of.checked))]
        parts += [
            el("p", el("span", "Not checked:", class_="miss"), " ", inline(text))
            for text in words.unchecked(self.of.checked)
        ]
        cost = words.cost(self.of)
        parts += [el("p", inline(cost))] if cost else []
        parts.append(el("p", words.versions(self.of)))
        return el("footer", parts, class_="quiet" if quiet else None)


def _least_width(svg: str) -> str | None:
    """A picture shrinks with the page down to three quarters, where its letters are still read; then it scrolls."""
    width = re.search(r'<svg[^>]* width="(\d+)pt"', svg)
    return f"min-width:{round(int(width[1]) * 4 / 3 * 0.75)}px" if width else None


def _emphasised(text: str, variable: str | None) -> list[Markup | str]:
    """The line with the leaked variable in bold where it stands as a whole word."""
    if not variable or len(variable) > 80:
        return [text]
    pattern = rf"(?<![\w.]){re.escape(variable)}(?!\w)"
    parts: list[Markup | str] = []
    end = 0
    for match in re.finditer(pattern, text):
        parts += [text[end : match.start()], el("b", match[0])]
        end = match.end()
    return [*parts, text[end:]]
