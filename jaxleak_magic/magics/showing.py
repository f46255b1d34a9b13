"""What the notebook door shows of a report, and under which name it stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.magics.options import MagicOptions
from jaxleak_magic.magics.recording import front_end_id
from jaxleak_magic.own_errors import say_internal_error
from jaxleak_magic.report import LeakReport

Presenter = Callable[[Report, MagicOptions, str | None], None]


class ReportShower:
    """Shows the reports of one shell.

    Args:
        shell: the shell in whose running cell a report appears.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._bridges: dict[str, Any] = {}

    def show(self, report: Report, options: MagicOptions) -> None:
        """Store a report under the name of ``-o`` and show it as the options ask."""
        store_output(self._shell, report, options)
        if options.quiet:
            return
        formatter: Any = self._shell.display_formatter
        if options.text or "text/html" not in formatter.active_types:
            from jaxleak_magic.show.text import render_text

            print(render_text(report).rstrip("\n"))
        else:
            self._display(report)

    def close(self) -> None:
        """Close what gives the shown reports their buttons."""
        for bridge in self._bridges.values():
            bridge.close()
        self._bridges.clear()

    def _display(self, report: Report) -> None:
        """One output with all forms. Where somebody looks on, the graph, which takes a child process, comes second."""
        from IPython.display import display, update_display

        from jaxleak_magic.show.bundle import has_graph, mimebundle

        uid, cell_id = uuid4().hex, front_end_id(self._shell)

        def update(bundle: dict[str, str]) -> None:
            update_display(bundle, raw=True, display_id=uid)

        later = cell_id is not None and has_graph(report)
        display(mimebundle(report, uid, draw=not later), raw=True, display_id=uid)
        if later:
            update(mimebundle(report, uid))
        if cell_id is not None and not cell_id.startswith("vscode-"):  # there nobody would answer the bridge
            try:
                self._bring_to_life(report, uid, cell_id, update)
            except Exception as error:
                say_internal_error("the report has no buttons", error)

    def _bring_to_life(self, report: Report, uid: str, cell_id: str, update: Callable[[dict[str, str]], None]) -> None:
        from jaxleak_magic.show.bridge import attach_bridge

        if old := self._bridges.pop(cell_id, None):
            old.close()
        if bridge := attach_bridge(report, uid, update):
            self._bridges[cell_id] = bridge


def store_output(shell: InteractiveShell, report: Report, options: MagicOptions) -> None:
    """Store a report under the name of ``-o``."""
    if options.output:
        shell.user_ns[options.output] = LeakReport(report)


def forget_output(shell: InteractiveShell, options: MagicOptions) -> None:
    """Where there is no report, let no earlier one stand under the name of ``-o``."""
    if options.output and isinstance(shell.user_ns.get(options.output), LeakReport):
        del shell.user_ns[options.output]
