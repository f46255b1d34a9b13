"""Running a notebook's cells under the check in the notebook's own kernel, one after the other, with nbclient."""

from __future__ import annotations

import os
import pickle
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxleak_magic.cli.fresh_process import PARENT_OF_PACKAGE, CellReport, Job, Outcome, died, report_without_check
from jaxleak_magic.cli.inputs import CodeCell, Notebook
from jaxleak_magic.cli.kernel_side import CellOutcome, outcome_file, setup_code
from jaxleak_magic.cli.writing import write_text
from jaxleak_magic.magics.checked_cell import read_checked_cell
from jaxleak_magic.own_errors import say

STARTUP_S = 120
"""Seconds that a kernel may take to start."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run_notebook(notebook: Notebook, job: Job) -> Outcome:
    """Run all code cells in order, with the notebook's folder as working folder, as Jupyter does.

    The cells that begin with ``%%leakcheck`` are checked, or all where none does. Each checked cell gets its report. A
    cell that raises ends the run only where the job does not keep going. What the cells show is printed as text.
    """
    marked = any(read_checked_cell(cell.source) for cell in notebook.cells)
    with tempfile.TemporaryDirectory(prefix="jaxleak-") as folder:
        (Path(folder) / "job").write_bytes(pickle.dumps((job, not marked and job.how == "check")))
        return _Run(notebook, job, Path(folder), marked).run()


class _Run:
    def __init__(self, notebook: Notebook, job: Job, folder: Path, marked: bool) -> None:
        self._notebook, self._job, self._folder, self._marked = notebook, job, folder, marked
        self._found: list[CellReport] = []
        self._executed: list[tuple[int, int]] = []
        self._raised = False
        self._last = CellOutcome(0, (), False)
        self._number = 0

    def run(self) -> Outcome:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import DeadKernelError

        client = NotebookClient(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell()]),
            kernel_name=_kernel_name(self._notebook),
            timeout=None,
            startup_timeout=STARTUP_S,
            allow_errors=True,
            resources={"metadata": {"path": os.path.dirname(os.path.abspath(self._job.file))}},
        )
        client.create_kernel_manager()
        if os.name == "posix" and client.km is not None:
            # ipykernel 7 warns of TCP without encryption. The path is absolute: the kernel runs in another folder.
            client.km.transport, client.km.ip = "ipc", str(self._folder / "kernel")
        with client.setup_kernel():
            self._execute(client, setup_code(PARENT_OF_PACKAGE, self._folder), None, store_history=False)
            for cell in self._notebook.cells:
                try:
                    going_on = self._cell(client, cell)
                except DeadKernelError:
                    self._executed.append(((self._last.count or 0) + 1, cell.index))
                    self._found.append(CellReport(died(self._job, None), cell.index))
                    self._raised = True
                    break
                if not going_on and not self._job.keep_going:
                    break
        return Outcome(tuple(self._found), self._raised, tuple(self._executed), self._last.results)

    def _cell(self, client: Any, cell: CodeCell) -> bool:
        """Run a cell; False where it raised and may not."""
        checked = read_checked_cell(cell.source)
        source = checked.text if checked is not None and self._job.how != "check" else cell.source
        if not source.strip():  # no kernel runs it
            self._executed.append(((self._last.count or 0) + 1, cell.index))
            if self._job.how == "check" and not self._marked:
                report = report_without_check(self._job.file, None, "The cell was not run under the check.")
                self._found.append(CellReport(report, cell.index))
            return True
        self._execute(client, source, cell.id, store_history=True)
        self._number += 1
        outcome = pickle.loads(outcome_file(self._folder, self._number).read_bytes())
        assert isinstance(outcome, CellOutcome)
        self._last = outcome
        self._executed.append((outcome.count or 0, cell.index))
        self._found += [CellReport(report, cell.index) for report in outcome.reports]
        self._raised = self._raised or (outcome.raised and not outcome.reports and not cell.may_raise)
        return not outcome.raised or cell.may_raise

    def _execute(self, client: Any, source: str, cell_id: str | None, *, store_history: bool) -> None:
        import nbformat

        client.kc.session.metadata = {} if cell_id is None else {"cellId": cell_id}  # as a front end sends it
        cell = nbformat.v4.new_code_cell(source)
        client.execute_cell(cell, 0, store_history=store_history)
        for output in cell.outputs:
            _print(output)


def _print(output: Mapping[str, Any]) -> None:
    """An output of a cell as text: errors and stderr go to stderr, the rest to stdout."""
    kind = output["output_type"]
    if kind == "stream":
        to, text = sys.stderr if output["name"] == "stderr" else sys.stdout, output["text"]
    elif kind == "error":
        to, text = sys.stderr, "\n".join(output["traceback"]) + "\n"
    else:
        label = f"Out[{output['execution_count']}]: " if kind == "execute_result" else ""
        to, text = sys.stdout, f"{label}{output['data'].get('text/plain', '')}\n"
    write_text(to, _COLOUR.sub("", text))


def _kernel_name(notebook: Notebook) -> str:
    """The kernel that the notebook names, or this Python's where that one is not installed."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    metadata = notebook.data.get("metadata")
    spec = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    name = spec.get("name") if isinstance(spec, dict) else None
    if not isinstance(name, str):
        return "python3"
    try:
        KernelSpecManager().get_kernel_spec(name)
    except (NoSuchKernel, ValueError):
        say(f"{notebook.path}: its kernel {name!r} is not installed here; it is run with {sys.executable}")
        return "python3"
    return name
