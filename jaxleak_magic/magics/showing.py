"""What the notebook door shows of a report, and under which name it stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.magics.options import MagicOptions
from jaxleak_magic.magics.recording import front_end_id
from jaxleak_magic.report import LeakReport

Presenter = Callable[[Report, MagicOptions, str | None], None]


def show_report(shell: InteractiveShell, report: Report, options: MagicOptions) -> None:
    """Store the report under the name of ``-o`` and show it as the options ask."""
    if options.output:
        shell.user_ns[options.output] = LeakReport(report)
    if options.quiet:
        return
    if options.text or "text/html" not in _shown_types(shell):
        from jaxleak_magic.show.text import render_text

        print(render_text(report).rstrip("\n"))
        return
    _display(report, live=front_end_id(shell) is not None)


def forget_output(shell: InteractiveShell, options: MagicOptions) -> None:
    """Where there is no report, let no earlier one stand under the name of ``-o``."""
    if options.output and isinstance(shell.user_ns.get(options.output), LeakReport):
        del shell.user_ns[options.output]


def _display(report: Report, live: bool) -> None:
    """One output with all forms. Where somebody is looking, the graph, which takes a child process, comes second."""
    from IPython.display import display, update_display

    from jaxleak_magic.show.bundle import has_graph, mimebundle

    uid = uuid4().hex
    later = live and has_graph(report)
    display(mimebundle(report, uid, draw=not later), raw=True, display_id=uid)
    if later:
        update_display(mimebundle(report, uid), raw=True, display_id=uid)


def _shown_types(shell: InteractiveShell) -> list[str]:
    formatter: Any = shell.display_formatter
    return [] if formatter is None else formatter.active_types
