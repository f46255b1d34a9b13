"""Running one file under the check in a process of its own."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import jaxleak_magic
from jaxleak_magic.checked_run import CheckOptions
from jaxleak_magic.cli.results import Results
from jaxleak_magic.diagnose.model import Checked, ErrorInfo, Report

PARENT_OF_PACKAGE = str(Path(jaxleak_magic.__file__).resolve().parent.parent)
"""Folder from which a fresh process imports this package."""
_STDERR = 2


@dataclass(frozen=True)
class Replaced:
    """A new text for a script (``cell_index`` is None), or for the cell at this place of the notebook's list."""

    cell_index: int | None
    text: str


@dataclass(frozen=True)
class Job:
    """What the process is to do.

    Attributes:
        file: the file as given.
        options: how it is checked.
        replaced: texts to run instead of those in the file.
        how: under the check, without it, or without it and with ``jax.disable_jit()``.
        keep_going: a notebook's cell that raises does not stop the others.
    """

    file: str
    options: CheckOptions = field(default_factory=CheckOptions)
    replaced: tuple[Replaced, ...] = ()
    how: Literal["check", "plain", "without_jit"] = "check"
    keep_going: bool = True

    def context(self) -> AbstractContextManager[object]:
        """What the user's code runs in."""
        if self.how != "without_jit":
            return nullcontext()
        import jax

        return jax.disable_jit()


@dataclass(frozen=True)
class CellReport:
    """A report, and the notebook cell it belongs to (by its place in the notebook's list); None for a script."""

    report: Report
    cell_index: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a file.

    Attributes:
        reports: one for a script, one a checked cell for a notebook.
        raised: whether code raised that no report speaks of: a cell that is not checked.
        executed: index of the notebook cell by its execution count.
        results: what the run left in its names, for a job with other texts or without the check; else None.
    """

    reports: tuple[CellReport, ...]
    raised: bool = False
    executed: tuple[tuple[int, int], ...] = ()
    results: Results | None = None


def run_in_fresh_process(
    job: Job,
    output: Literal["stdout", "stderr"],
    limit: float | None = None,
    kept: tuple[IO[bytes], IO[bytes]] | None = None,
) -> Outcome:
    """Run a file under the check.

    Args:
        job: the file and how it is checked.
        output: where the output of the user's code goes that it writes to stdout.
        limit: seconds after which the process is ended, or None.
        kept: two files that take what it writes to stdout and stderr, for files that run at the same time.

    Returns:
        What came of it; a process that dies gives a report with an error that says so.
    """
    bootstrap = "import sys; sys.path.insert(0, sys.argv[1]); from jaxleak_magic.cli.worker import main; main()"
    with tempfile.TemporaryDirectory(prefix="jaxleak-") as folder:
        job_file, outcome_file = Path(folder, "job"), Path(folder, "outcome")
        job_file.write_bytes(pickle.dumps(job))
        command = [sys.executable, "-c", bootstrap, PARENT_OF_PACKAGE, str(job_file), str(outcome_file)]
        sys.stdout.flush()
        try:
            to_stdout, to_stderr = kept or (_STDERR if output == "stderr" else None, None)
            process = subprocess.run(command, stdout=to_stdout, stderr=to_stderr, check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            return Outcome((CellReport(died(job, -signal.SIGKILL)),), raised=True)
        try:
            outcome = pickle.loads(outcome_file.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return Outcome((CellReport(died(job, process.returncode)),), raised=job.how != "check")
    assert isinstance(outcome, Outcome)
    return outcome


def report_without_check(file: str, error: ErrorInfo | None, unchecked: str) -> Report:
    """The report of code that could not be checked.

    Args:
        file: the file as given.
        error: what stood in the way, or None where there was nothing to run.
        unchecked: the sentence that says so.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        jax_version = version("jax")
    except PackageNotFoundError:
        jax_version = "not installed"
    return Report(
        jax_version=jax_version,
        python_version=".".join(map(str, sys.version_info[:3])),
        file=file,
        checked=Checked(False, False, False, (unchecked,)),
        error=error,
    )


def died(job: Job, status: int | None) -> Report:
    """The report of code whose process ended before it did; the status is None where nobody knows it."""
    how = "" if status is None else f" with exit status {status}"
    if status is not None and status < 0:
        known = {s.value: s.name for s in signal.Signals}
        how = f" by the signal {known.get(-status, -status)}"
    message = f"the process ended{how} before the check could finish, so nothing is known about leaks"
    error = ErrorInfo("ProcessEnded", message, None, None, "not_tracer_related")
    return report_without_check(job.file, error, "The process ended before the check could finish.")
