"""The part of ``jaxleak check`` that runs inside a notebook's own kernel: checks each cell, leaves what came of it.

What comes of a cell is left in a file, whose name is counted up: plain data, written when the cell has ended and before
its reply is sent.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxleak_magic.cli.fresh_process import Job, report_without_check
from jaxleak_magic.cli.results import Results, plain_results
from jaxleak_magic.diagnose.model import ErrorInfo, Report
from jaxleak_magic.exits import failure_of
from jaxleak_magic.magics.options import MagicOptions


@dataclass(frozen=True)
class CellOutcome:
    """What came of a cell.

    Attributes:
        count: its ``In [n]``.
        reports: one where it was checked; none or several are possible too.
        raised: whether it raised.
        results: what the names of the notebook hold after it, where the job asks for that.
    """

    count: int | None
    reports: tuple[Report, ...]
    raised: bool
    results: Results | None = None


def outcome_file(folder: Path, number: int) -> Path:
    """Where the outcome of the cell is left that is the ``number``-th to run, from 1."""
    return folder / f"{number}.cell"


def setup_code(package_parent: str, folder: Path) -> str:
    """What the kernel is to run first, as one expression: it leaves no name in the user's namespace."""
    begin = '__import__("jaxleak_magic.cli.kernel_side", fromlist=["begin"]).begin'
    return f'__import__("sys").path.insert(0, {package_parent!r}) or {begin}({str(folder)!r}, {package_parent!r})'


def begin(folder: str, package_parent: str) -> None:
    """Load the extension into the kernel's shell and do as the job in the folder says."""
    from IPython.core.getipython import get_ipython

    sys.path.remove(package_parent)
    job, check_all = pickle.loads(Path(folder, "job").read_bytes())
    shell: Any = get_ipython()
    _KernelSide(shell, job, check_all, Path(folder)).install()


class _KernelSide:
    def __init__(self, shell: Any, job: Job, check_all: bool, folder: Path) -> None:
        self._shell, self._job, self._folder = shell, job, folder
        self._check_all = check_all
        self._number = 0
        self._count: int | None = None
        self._reports: list[Report] = []

    def install(self) -> None:
        from jaxleak_magic.magics import load

        magics = load(self._shell)
        self._shower = magics.shower
        self._checker = checker = magics.checker
        checker.present, checker.options, checker.check_all = self._keep, self._job.options, self._check_all
        checker.status_line = lambda *_: None
        if self._job.how == "without_jit":
            import jax

            jax.config.update("jax_disable_jit", True)
        self._shell.events.register("pre_run_cell", self._pre_run_cell)  # both after the checker's own
        self._shell.events.register("post_run_cell", self._post_run_cell)

    def _keep(self, report: Report, options: MagicOptions, raw_cell: str | None) -> None:
        from jaxleak_magic.magics.showing import store_output

        store_output(self._shell, report, options)
        if raw_cell is None:  # of one expression, or of a cell below another magic: part of its cell's output
            self._shower.show(report, dataclasses.replace(options, text=True))
        else:
            self._reports.append(dataclasses.replace(report, file=self._job.file))

    def _pre_run_cell(self, info: Any) -> None:
        cell = self._checker.running_cell
        self._count = None if cell is None else cell.ref.execution_count

    def _post_run_cell(self, result: Any) -> None:
        """Leave the outcome of a cell of the notebook; inner runs, and what begins this module, are no such cells."""
        info = getattr(result, "info", None)
        if info is None or not info.store_history or self._checker.inside_cell:
            return
        self._number += 1
        error = failure_of(result.error_before_exec or result.error_in_exec)
        reports = tuple(self._reports)
        self._reports.clear()
        if not reports and self._is_to_be_checked(info.raw_cell):
            reports = (_without_check(self._job.file, info.raw_cell, error),)
        names = {n: v for n, v in self._shell.user_ns.items() if n not in self._shell.user_ns_hidden}
        asked = self._job.replaced or self._job.how != "check"
        found = CellOutcome(self._count, reports, error is not None, plain_results(names) if asked else None)
        target = outcome_file(self._folder, self._number)
        target.with_suffix(".part").write_bytes(pickle.dumps(found))
        os.replace(target.with_suffix(".part"), target)

    def _is_to_be_checked(self, raw: str) -> bool:
        from jaxleak_magic.magics.checked_cell import read_checked_cell

        return self._job.how == "check" and (self._check_all or read_checked_cell(raw) is not None)


def _without_check(file: str, source: str, error: BaseException | None) -> Report:
    """The report of a cell that is to be checked and was not: an empty one, wrong options, an error of ours."""
    if error is None and source.strip():
        error = RuntimeError("the check of this cell failed; stderr says why")
    info = ErrorInfo(type(error).__name__, str(error), 1, None, "not_tracer_related") if error else None
    return report_without_check(file, info, "The cell was not run under the check.")
