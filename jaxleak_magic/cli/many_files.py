"""Many files in one command: several at once, with their progress, and one summary by root cause."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from jaxleak_magic.cli.fresh_process import Job, Outcome, run_in_fresh_process
from jaxleak_magic.cli.writing import write_text
from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show.causes import cause_lines, causes_of, seen_causes
from jaxleak_magic.show.words import plural

Output = Literal["stdout", "stderr"]


class Ended(Protocol):
    """Is told of each file that is done."""

    def __call__(self, job: Job, outcome: Outcome) -> None:
        """Tell that a file is done; called from the thread that ran it."""
        ...


@dataclass(frozen=True)
class _Kept:
    """Where a file's process writes to, for files that run at the same time or below a progress bar."""

    stdout: Path
    stderr: Path

    def give(self, output: Output) -> None:
        """Write it where it belongs."""
        for kept, to in ((self.stdout, sys.stderr if output == "stderr" else sys.stdout), (self.stderr, sys.stderr)):
            text = kept.read_bytes().decode("utf-8", "backslashreplace")
            write_text(to, text)
            kept.unlink()


def run_jobs(jobs: Sequence[Job], at_once: int, output: Output, verify: bool) -> list[Outcome]:
    """Run each file in a process of its own; gives what came of them in their order.

    Args:
        jobs: the files.
        at_once: how many processes may run at the same time.
        output: where goes what the user's code writes to stdout; of several files each one's comes in one piece.
        verify: try the offered fixes.
    """
    if len(jobs) == 1:
        return [_run(jobs[0], output, verify, None)]
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="jaxleak-")))
        kept = [_Kept(folder / f"{number}.out", folder / f"{number}.err") for number in range(len(jobs))]
        ended = ending.enter_context(_progress(len(jobs)))

        def run(job: Job, place: _Kept) -> Outcome:
            with place.stdout.open("wb") as to_stdout, place.stderr.open("wb") as to_stderr:
                outcome = _run(job, output, verify, (to_stdout, to_stderr))
            ended(job, outcome)
            return outcome

        pool = ThreadPoolExecutor(at_once)
        ending.callback(pool.shutdown, cancel_futures=True)
        futures = [pool.submit(run, job, place) for job, place in zip(jobs, kept, strict=True)]
        outcomes: list[Outcome] = []
        for future, place in zip(futures, kept, strict=True):
            outcomes.append(future.result())
            place.give(output)
        return outcomes


def _run(job: Job, output: Output, verify: bool, kept: tuple[IO[bytes], IO[bytes]] | None) -> Outcome:
    outcome = run_in_fresh_process(job, output, kept=kept)
    if not verify:
        return outcome
    from jaxleak_magic.cli.verify import verified

    return verified(outcome, job)


@contextmanager
def _progress(count: int) -> Generator[Ended]:
    """A bar on stderr where that is a terminal, else a line for each file that is done."""
    done = 0

    def tell(job: Job, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        print(f"[{done}/{count}] {job.file}: {_in_short(outcome)}", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: list[Any] = [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    width = shutil.get_terminal_size().columns
    with Progress(*columns, console=Console(stderr=True, width=width), transient=True) as progress:
        task = progress.add_task("", total=count)

        def advance(job: Job, outcome: Outcome) -> None:
            if _in_short(outcome) != "clean":
                progress.console.print(f"{job.file}: {_in_short(outcome)}", markup=False, highlight=False)
            progress.update(task, advance=1, description=job.file)

        yield advance


def _in_short(outcome: Outcome) -> str:
    leaks = sum(len(each.report.real_leaks) for each in outcome.reports)
    if leaks:
        return plural(leaks, "leak")
    raised = outcome.raised or any(each.report.error is not None for each in outcome.reports)
    return "raised" if raised else "clean"


def telling(reports: Sequence[Report]) -> list[Report]:
    """The reports that are worth their room among many: not those of clean code, and each root cause once."""
    seen: set[str] = set()
    found: list[Report] = []
    for report in reports:
        causes = {cause.key for cause in causes_of(report)}
        if causes - seen or (report.outcome == "error" and not causes):
            found.append(report)
        seen |= causes
    return found


def summary_lines(reports: Sequence[Report]) -> list[str]:
    """How many files leak, and each root cause with the files in which it was seen."""
    by_file: dict[str, set[str]] = {}
    for report in reports:
        by_file.setdefault(report.file or "", set()).add(report.outcome)
    leaking = sum("leaks" in outcomes for outcomes in by_file.values())
    raised = sum(outcomes & {"leaks", "error"} == {"error"} for outcomes in by_file.values())
    causes = seen_causes((report.file or "", cause) for report in reports for cause in causes_of(report))
    clean = len(by_file) - leaking - raised
    lines = [f"{plural(len(by_file), 'file')}: {leaking} with leaks, {raised} that raised, {clean} clean."]
    if causes:
        lines.append(f"{plural(len(causes), 'root cause')}:")
    return lines + [line for each in causes for line in cause_lines(each, "file")]
