"""``%%px`` above ``%%leakcheck``: each engine of ipyparallel checks itself, and the reports are shown as one.

The engines run the magic as any shell does, and keep the report, which is plain data, until this shell asks for it.
"""

from __future__ import annotations

import re
from typing import Any

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.magics.checked_cell import read_checked_cell
from jaxleak_magic.magics.options import MagicOptions
from jaxleak_magic.own_errors import say

_PX_LINE = re.compile(r"\s*%%px(?!\w).*\n")


class EngineReports:
    """The reports of the engines that a shell has its cells run by.

    Args:
        shell: the client's shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def begin(self, raw_cell: str) -> bool:
        """Have the engines keep their reports; False where the cell is not to be checked by engines."""
        match, magics = _PX_LINE.match(raw_cell), self._magics
        if match is None or magics is None or read_checked_cell(raw_cell[match.end() :]) is None:
            return False
        magics.view.client[:].apply_sync(keep_reports)
        return True

    def end(self) -> dict[int, Report] | None:
        """The reports by rank; None where the engines have not ended (``%%px --noblock``)."""
        magics = self._magics
        if magics is None or magics.last_result is None:
            return None
        result = magics.last_result
        if not result.done():
            say("the engines are still running: %px %leakcheck shows each one's report when they have ended")
            return None
        asked: int | list[int] = result.engine_id
        ranks = [asked] if isinstance(asked, int) else list(asked)
        found = magics.view.client[ranks].apply_sync(take_report)
        return {rank: report for rank, report in zip(ranks, found, strict=True) if report is not None}

    @property
    def _magics(self) -> Any:
        """ipyparallel's magics in this shell, which know its engines, or None."""
        return self._shell.magics_manager.registry.get("ParallelMagics")


def keep_reports() -> None:
    """Run on an engine: load the extension, and have it keep the next report, and only that, instead of showing it."""
    from IPython.core.getipython import get_ipython

    from jaxleak_magic.magics import load
    from jaxleak_magic.magics.showing import store_output

    shell: Any = get_ipython()
    magics = load(shell)

    def keep(report: Report, options: MagicOptions, raw_cell: str | None) -> None:
        magics.checker.present = magics.present  # by itself: the client may be interrupted before it asks
        store_output(shell, report, options)

    magics.checker.last_report = None
    magics.checker.present = keep


def take_report() -> Report | None:
    """Run on an engine: what the last check found, or None; from now on reports are shown again."""
    from IPython.core.getipython import get_ipython

    from jaxleak_magic.magics import load

    shell: Any = get_ipython()
    magics = load(shell)
    magics.checker.present = magics.present
    return magics.checker.last_report
