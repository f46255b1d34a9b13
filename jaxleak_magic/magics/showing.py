"""What the notebook door shows: the report, and the error of ``--raise``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.magics.options import MagicOptions

Presenter = Callable[[Report, MagicOptions, str | None], None]


def leak_error(report: Report | None) -> Exception:
    """The exception of ``--raise``; None where the check itself failed, which must not pass for a clean run."""
    from jaxleak_magic.errors import LeakError

    return LeakError(report)


def show_report(shell: InteractiveShell, report: Report, options: MagicOptions) -> None:
    """Store the report under the name of ``-o`` and show it as the options ask."""
    if options.output:
        from jaxleak_magic.report import LeakReport

        shell.user_ns[options.output] = LeakReport(report)
    if options.quiet:
        return
    if options.text:
        from jaxleak_magic.show.text import render_text

        print(render_text(report))
        return
    from IPython.display import display

    from jaxleak_magic.show.bundle import mimebundle

    bundle: Any = mimebundle(report)
    display(bundle, raw=True, display_id=uuid4().hex)
