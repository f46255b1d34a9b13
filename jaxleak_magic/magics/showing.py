"""What the notebook door shows of a report, and under which name it stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.magics.front_end import front_end_id
from jaxleak_magic.magics.options import MAGIC, MagicOptions
from jaxleak_magic.own_errors import say_internal_error
from jaxleak_magic.report import LeakReport
from jaxleak_magic.show.bundle import ReportOutput
from jaxleak_magic.show.progress import StatusLine

Presenter = Callable[[Report, MagicOptions, str | None], None]


class ReportShower:
    """Shows the reports of one shell.

    Args:
        shell: the shell in whose running cell a report appears.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._bridges: dict[str, Any] = {}
        self._leaks_before: dict[str, int] = {}

    def show(self, report: Report, options: MagicOptions) -> None:
        """Store a report under the name of ``-o`` and show it as the options ask."""
        store_output(self._shell, report, options)
        if options.quiet:
            return
        if options.text or not self._shows_html:
            from jaxleak_magic.show.text import render_text

            print(render_text(report).rstrip("\n"))
        else:
            self._display(report)

    def notify(self, report: Report) -> None:
        """Show in one line that the running cell, which was only watched, leaked."""
        from jaxleak_magic.show.notice import notice_bundle

        self._show_bundle(notice_bundle(report))

    def show_engines(self, reports: Mapping[int, Report]) -> None:
        """Show the reports of several engines as one, by rank."""
        from jaxleak_magic.show.by_engine import engines_bundle

        self._show_bundle(engines_bundle(reports))

    def _show_bundle(self, bundle: dict[str, str]) -> None:
        if self._shows_html:
            from IPython.display import display

            display(bundle, raw=True)
        else:
            print(bundle["text/plain"])

    def status_line(self, options: MagicOptions, traces: Callable[[], int]) -> StatusLine | None:
        """A line that says that a long check is running; None where nobody looks on.

        Args:
            options: what the magic's line asks for.
            traces: how many traces were seen up to now.
        """
        if options.quiet or options.text or not self._shows_html or front_end_id(self._shell) is None:
            return None
        publisher: Any = self._shell.display_pub
        transient = {"display_id": uuid4().hex}

        def publish(bundle: dict[str, str], *, update: bool) -> None:
            if self._shell.display_pub is publisher:  # else the user's code captures what is shown now
                publisher.publish(data=bundle, metadata={}, transient=transient, update=update)

        return StatusLine(
            lambda bundle: publish(bundle, update=False), lambda bundle: publish(bundle, update=True), traces
        )

    def close(self) -> None:
        """Close what gives the shown reports their buttons."""
        for bridge in self._bridges.values():
            bridge.close()
        self._bridges.clear()

    @property
    def _shows_html(self) -> bool:
        formatter: Any = self._shell.display_formatter
        return "text/html" in formatter.active_types

    def _display(self, report: Report) -> None:
        """One output with all forms. Where somebody looks on, the graph, which takes a child process, comes last."""
        from IPython.display import display, update_display

        cell_id = front_end_id(self._shell)
        output = ReportOutput(report, uuid4().hex, self._before(report, cell_id))
        if cell_id is None:
            output.draw()
        display(output.bundle(), raw=True, display_id=output.uid)
        if cell_id is None:
            return

        def update() -> None:
            update_display(output.bundle(), raw=True, display_id=output.uid)

        if not cell_id.startswith("vscode-"):  # there nobody would answer the bridge
            try:
                self._bring_to_life(output, cell_id, update)
            except Exception as error:
                say_internal_error("the report has no buttons", error)
        if output.has_graph:
            output.draw()
            update()

    def _before(self, report: Report, cell_id: str | None) -> int | None:
        """How many leaks the last check of the running cell had; None where not the whole cell is checked."""
        source = report.source
        if cell_id is None or source is None or not source.magic.startswith(f"%%{MAGIC}"):
            return None
        before = self._leaks_before.get(cell_id)
        self._leaks_before[cell_id] = len(report.real_leaks)
        return before

    def _bring_to_life(self, output: ReportOutput, cell_id: str, update: Callable[[], None]) -> None:
        from jaxleak_magic.show.bridge import attach_bridge

        def on_applied(applied: frozenset[int]) -> None:
            output.applied = applied
            update()

        if old := self._bridges.pop(cell_id, None):
            old.close()
        if bridge := attach_bridge(output.report, output.uid or "", on_applied):
            self._bridges[cell_id] = bridge


def store_output(shell: InteractiveShell, report: Report, options: MagicOptions) -> None:
    """Store a report under the name of ``-o``."""
    if options.output:
        shell.user_ns[options.output] = LeakReport(report)


def forget_output(shell: InteractiveShell, options: MagicOptions) -> None:
    """Where there is no report, let no earlier one stand under the name of ``-o``."""
    if options.output and type(shell.user_ns.get(options.output)) is LeakReport:
        del shell.user_ns[options.output]
