"""The report as plain text for terminals: 80 columns, colour on request, readable without it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxleak_magic.diagnose.model import ErrorInfo, Explanation, Fix, Leak, Link, Note, Report
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import columns, name, sentence, wrap
from jaxleak_magic.show.excerpt import Excerpt, error_excerpts, leak_excerpts
from jaxleak_magic.show.fixes import diffs, fix_numbers, other_leaks

_STYLES = {"strong": "1", "bad": "1;31", "warn": "33", "good": "32", "quiet": "2", "removed": "31", "added": "32"}
_MARKS = {"made": "warn", "stored": "bad", "ended": "warn", "raised": "bad"}
_SIGNS = {"same": " ", "added": "+", "removed": "-"}


def render_text(report: Report, width: int = 80, color: bool = False, before: int | None = None) -> str:
    """The whole report as text.

    Args:
        report: what is to be shown.
        width: columns that no line exceeds but for lines of the user's source.
        color: mark with ANSI colours; nothing else differs.
        before: how many leaks the last check of the same cell had, or None: it is said where it has changed.

    Returns:
        lines joined by newlines, without one at the end; encodable as UTF-8 whatever the user's names are.
    """
    page = _Page(report, max(width, 40), color, before)
    page.report()
    return "\n".join(page.lines)


class _Page:
    def __init__(self, report: Report, width: int, color: bool, before: int | None) -> None:
        self.of = report
        self.width = width
        self.color = color
        self.before = before
        self.numbers = fix_numbers(report)
        self.shown: set[Fix] = set()
        self.pages: set[str] = set()
        self.lines: list[str] = []

    # the pieces that lines are made of

    def paint(self, text: str, style: str | None) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color and style and text else text

    def say(self, text: str, style: str | None = None, first: str = "", rest: str | None = None) -> None:
        indent = first if rest is None else rest
        for line in wrap(text, self.width, first, indent):
            self.lines.append(self.paint(line, style))

    def blank(self) -> None:
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def title(self, text: str) -> None:
        self.blank()
        self.say(text, "strong")

    # the report, from top to bottom

    def report(self) -> None:
        report = self.of
        real = report.real_leaks
        self.say(words.headline(report), "bad" if real else "strong" if report.error else "good")
        if was := words.change(report, self.before):
            self.say(was, "good")
        if len(real) == 1:
            self.leak(real[0])
        else:
            for n, leak in enumerate(real, 1):
                self.blank()
                self.rule(f"Leak {n} of {len(real)}")
                self.say(words.verdict(leak), "bad")
                self.leak(leak)
        if report.error:
            self.error(report.error)
        for leak in other_leaks(report):
            self.harmless(leak)
        for title, notes in words.note_groups(report.notes):
            self.notes(title, notes)
        self.foot()

    def rule(self, text: str) -> None:
        self.lines.append(self.paint(f"── {text} " + "─" * max(self.width // 2 - columns(text) - 4, 2), "quiet"))

    def leak(self, leak: Leak) -> None:
        facts = words.summary(leak)
        if facts:
            self.say(" · ".join(facts))
        self.excerpts(leak_excerpts(self.of, leak))
        self.levels(leak)
        self.paths(leak)
        self.explanation(leak.explanation)
        self.fixes(leak.fixes)

    def excerpts(self, excerpts: Sequence[Excerpt]) -> None:
        for excerpt in excerpts:
            self.blank()
            if excerpt.title:
                self.say(excerpt.title, "quiet", "  ")
            gutter = max((len(str(line.number)) for line in excerpt.lines if line.number), default=1)
            for line in excerpt.lines:
                if line.number is None:
                    self.lines.append(self.paint(f"  {'⋮':>{gutter}}", "quiet"))
                    continue
                self.lines.append(f"  {self.paint(f'{line.number:>{gutter}}', 'quiet')}  {line.text}".rstrip())
                indent = " " * (gutter + 4 + min(len(line.text) - len(line.text.lstrip()), self.width // 3))
                for mark in line.marks:
                    self.say(f"{mark.kind}: {mark.text}", _MARKS[mark.kind], f"{indent}╰ ", f"{indent}  ")

    def levels(self, leak: Leak) -> None:
        if not leak.trace_stack:
            return
        stack = leak.trace_stack
        self.title("Transform" if len(stack) == 1 else "Transforms, outermost first")
        for depth, level in enumerate(stack):
            lead = "  " + ("   " * (depth - 1) + "└─ " if depth else "")
            notes = words.level_notes(level)
            if depth == len(stack) - 1:
                notes.append(f"{words.subject(leak)} belongs to this one")
            text = " · ".join([name(words.call(level)), *notes])
            self.say(text, "strong" if depth == len(stack) - 1 else None, lead, " " * (len(lead) + 2))

    def paths(self, leak: Leak) -> None:
        if not leak.chains:
            return
        self.title("Who keeps it alive")
        self.path(leak, leak.chains[0])
        others = len(leak.chains) - 1
        if others:
            self.say(f"and {words.plural(others, 'other path')} to the same value:", "quiet", "  ")
            for chain in leak.chains[1:4]:
                self.path(leak, chain)
            if others > 3:
                self.say(f"{others - 3} more not shown", "quiet", "  ")

    def path(self, leak: Leak, chain: tuple[Link, ...]) -> None:
        lead = "  "
        for link in reversed(chain):
            notes = words.step_notes(link, self.of)
            text = name(link.label) + (f"  ({', '.join(notes)})" if notes else "")
            self.say(text, None, lead, " " * (columns(lead) + 2))
            lead = " " * columns(lead) + "└─ " if lead.strip() else "  └─ "
            if columns(lead) > self.width // 2:
                lead = "  └─ "
        self.say(f"{words.subject(leak)}, the leaked value", "bad", lead, " " * (columns(lead) + 2))

    def explanation(self, text: Explanation) -> None:
        parts = [("What", text.what), ("Where", text.where), ("Why", text.why), ("How", text.how)]
        parts = [(head, sentence(body)) for head, body in parts if body.strip()]
        if not parts:
            return
        self.title("What happened, and how to mend it")
        for head, body in parts:
            self.say(body, None, f"  {head + ':':<7}", " " * 9)
        if text.more and text.more not in self.pages:
            self.pages.add(text.more)
            self.say(text.more, "quiet", "  ")

    def fixes(self, fixes: Sequence[Fix]) -> None:
        for fix in fixes:
            self.blank()
            number = self.numbers.get(fix)
            if number is None:
                self.say(f"No rewrite offered: {sentence(fix.title)}", "strong")
                self.say(sentence(fix.refusal or ""), None, "  ")
                continue
            if fix in self.shown:
                self.say(f"Fix {number}, above, mends this too.", "strong")
                continue
            self.shown.add(fix)
            self.say(f"Fix {number}: {sentence(fix.title)}", "strong")
            if words.fix_check(fix):
                self.say(words.fix_check(fix), "quiet", "  ")
            self.diffs(fix)
            if self.of.file is None:
                self.say(f"Take it with: %leakfix {number}", None, "  ")

    def diffs(self, fix: Fix) -> None:
        found = diffs(fix)
        for diff in found:
            if len(found) > 1 or diff.cell != (self.of.source.cell if self.of.source else None):
                self.say(words.cell_title(diff.cell, diff.file), "quiet", "  ")
            for line in diff.lines:
                if line.kind == "gap":
                    self.lines.append(self.paint(f"  @@ {line.text}", "quiet"))
                else:
                    style = line.kind if line.kind != "same" else None
                    self.lines.append(self.paint(f"  {_SIGNS[line.kind]} {line.text}".rstrip(), style))

    def error(self, error: ErrorInfo) -> None:
        if self.of.real_leaks:
            self.title(words.error_sentence(error, self.of))
        message = words.error_message(error)
        if message:
            self.say(message, "quiet", "  ")
        self.excerpts(error_excerpts(self.of, error))
        explanation = words.error_explanation(error)
        if explanation:
            self.explanation(explanation)
        self.fixes(error.fixes)

    def harmless(self, leak: Leak) -> None:
        self.title(words.verdict(leak))
        facts = words.summary(leak)
        if facts:
            self.say(" · ".join(facts), None, "  ")
        if leak.explanation.why:
            self.say(sentence(leak.explanation.why), None, "  ")
        if leak.explanation.how:
            self.say(sentence(leak.explanation.how), None, "  ")
        self.fixes(leak.fixes)

    def notes(self, title: str, notes: Sequence[Note]) -> None:
        self.title(title)
        for note in notes:
            line = f"line {note.line}: " if note.line is not None else ""
            self.say(line + sentence(note.text), None, "  ", "    ")
            self.fixes(note.fixes)

    def foot(self) -> None:
        if len(self.lines) > 1:
            self.blank()
        self.say(words.checked(self.of.checked), "quiet")
        for text in words.unchecked(self.of.checked):
            self.say(f"Not checked: {text}", "quiet", "", "  ")
        if cost := words.cost(self.of):
            self.say(cost, "quiet")
        self.say(words.versions(self.of), "quiet")
