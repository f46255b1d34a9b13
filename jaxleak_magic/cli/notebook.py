"""Running a notebook's cells under the check in a shell of this process."""

from __future__ import annotations

import dataclasses
import os
import sys

from jaxleak_magic.cli.fresh_process import CellReport, Job, Outcome, report_without_check
from jaxleak_magic.cli.inputs import Notebook
from jaxleak_magic.cli.results import plain_results
from jaxleak_magic.diagnose.model import ErrorInfo, Report
from jaxleak_magic.exits import failure_of
from jaxleak_magic.magics.options import MagicOptions


def run_notebook(notebook: Notebook, job: Job) -> Outcome:
    """Run all code cells in order, with the notebook's folder as working folder, as Jupyter does.

    The cells that begin with ``%%leakcheck`` are checked, or all where none does. A cell that raises does not stop the
    run: each checked cell gets its report.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from jaxleak_magic.magics import load
    from jaxleak_magic.magics.checked_cell import read_checked_cell
    from jaxleak_magic.magics.showing import store_output

    folder = os.path.dirname(os.path.abspath(job.file))
    os.chdir(folder)
    sys.path.insert(0, "")
    sys.argv = [job.file]

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor" if _takes_lower_case_colours() else "NoColor"
    shell = InteractiveShell.instance(config=config)

    reports: list[Report] = []

    def keep(report: Report, options: MagicOptions, raw_cell: str | None) -> None:
        store_output(shell, report, options)
        if raw_cell is None:  # of one expression, or of a cell below another magic: part of its cell's output
            magics.shower.show(report, dataclasses.replace(options, text=True))
        else:
            reports.append(dataclasses.replace(report, file=job.file))

    magics = load(shell)
    checker = magics.checker
    checker.present, checker.options = keep, job.options
    marked = any(read_checked_cell(cell.source) for cell in notebook.cells)
    checker.check_all = not marked and job.how == "check"

    found: list[CellReport] = []
    executed: list[tuple[int, int]] = []
    raised = False
    for cell in notebook.cells:
        executed.append((shell.execution_count, cell.index))
        reports.clear()
        checked = read_checked_cell(cell.source)
        source = checked.text if checked is not None and job.how != "check" else cell.source
        with job.context():
            result = shell.run_cell(source, store_history=True, cell_id=cell.id)
        error = failure_of(result.error_before_exec or result.error_in_exec)
        if not reports and job.how == "check" and (checker.check_all or checked):
            reports.append(_without_check(job.file, cell.source, error))
        found += [CellReport(report, cell.index) for report in reports]
        raised = raised or not (error is None or reports or cell.may_raise)
    asked = job.replaced or job.how != "check"
    own = {name: value for name, value in shell.user_ns.items() if name not in shell.user_ns_hidden}
    return Outcome(tuple(found), raised, tuple(executed), plain_results(own) if asked else None)


def _without_check(file: str, source: str, error: BaseException | None) -> Report:
    """The report of a cell that is to be checked and was not: an empty one, wrong options, an error of ours."""
    if error is None and source.strip():
        error = RuntimeError("the check of this cell failed; stderr says why")
    info = ErrorInfo(type(error).__name__, str(error), 1, None, "not_tracer_related") if error else None
    return report_without_check(file, info, "The cell was not run under the check.")


def _takes_lower_case_colours() -> bool:
    """IPython 9 renamed the colour schemes."""
    import IPython

    return IPython.version_info >= (9,)
