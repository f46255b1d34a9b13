"""``jaxleak check``: run files, show the reports, and answer with the exit status of the contract."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxleak_magic.checked_run import CheckOptions
from jaxleak_magic.cli.fresh_process import CellReport, Job, Outcome
from jaxleak_magic.cli.inputs import InputError, Notebook, files_of, read_input
from jaxleak_magic.cli.many_files import run_jobs, summary_lines, telling
from jaxleak_magic.cli.writing import write_text
from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show.causes import causes_of


def check(args: argparse.Namespace) -> int:
    """Check the files of the command line; gives the exit status. Raises InputError where nothing can be shown."""
    output = Path(args.output) if args.output else None
    if output is not None and not output.absolute().parent.is_dir():
        raise InputError(f"{output}: its folder does not exist; make it first, or give --output another path")
    files = files_of(args.paths)
    as_list = len(files) > 1 or files != args.paths
    statuses: list[int] = []
    jobs: list[Job] = []
    for file in files:
        try:
            as_list = isinstance(read_input(Path(file)), Notebook) or as_list
        except InputError as error:
            print(f"jaxleak: {error}", file=sys.stderr)
            statuses.append(3)
            continue
        options = CheckOptions(not args.keep_caches, args.fixes, args.notes, args.fast, args.locate)
        jobs.append(Job(file, options, keep_going=args.keep_going))
    apart = args.format != "text" and output is None
    outcomes = run_jobs(jobs, args.jobs, "stderr" if apart else "stdout", args.verify)
    results = [each for outcome in outcomes for each in outcome.reports]
    statuses += map(exit_status, outcomes)
    if results or as_list:
        _write(render(results, args.format, as_list, of_files=len(files)), output)
    return worst(statuses)


def exit_status(outcome: Outcome) -> int:
    """1 for a leak, else 2 where code raised, else 0."""
    outcomes = [each.report.outcome for each in outcome.reports]
    if "leaks" in outcomes:
        return 1
    return 2 if outcome.raised or "error" in outcomes else 0


def worst(statuses: Sequence[int]) -> int:
    """The status that wins: 3, 1, 2, 0 in this order."""
    return next((status for status in (3, 1, 2) if status in statuses), 0)


def render(results: Sequence[CellReport], form: str, as_list: bool, of_files: int = 1) -> str:
    """All reports as one text, in JSON an object for a single script and else a list.

    Args:
        results: the reports.
        form: ``text``, ``json`` or ``html``.
        as_list: whether they are of several files or cells.
        of_files: how many files were to be checked: for several there is a summary by root cause, and text leaves out
            the reports of clean code and those that tell no new cause.
    """
    if form == "json":
        plain = [_plain(each) for each in results]
        return json.dumps(plain if as_list else plain[0], indent=2, ensure_ascii=True) + "\n"
    reports = [each.report for each in results]
    summary = summary_lines(reports) if of_files > 1 else []
    if form == "html":
        from jaxleak_magic.show.page import render_page

        return render_page(reports, summary=summary)
    from jaxleak_magic.show.text import render_text

    shown = telling(reports) if of_files > 1 else reports
    titles = [_heading(report) if as_list else "" for report in shown]
    texts = [f"{title}{render_text(report).rstrip()}\n" for title, report in zip(titles, shown, strict=True)]
    if summary:
        texts.append("\n".join(["Summary", "=======", *summary, ""]))
    return "\n".join(texts)


def _heading(report: Report) -> str:
    from jaxleak_magic.show.page import page_title

    title = page_title(report)
    return f"{title}\n{'=' * len(title)}\n" if title else ""


def _plain(each: CellReport) -> dict[str, Any]:
    plain = each.report.to_dict()
    causes = iter(causes_of(each.report))
    for leak in plain["leaks"]:
        leak["cause"] = next(causes).key if leak["verdict"] == "leak" else None
    if each.cell_index is not None:
        source = each.report.source
        cell = source.cell if source else None
        plain["cell"] = {
            "id": cell.id if cell else None,
            "execution_count": cell.execution_count if cell else None,
            "index": each.cell_index,
        }
    return plain


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print_report(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        print_report(text)
        raise InputError(f"{output}: cannot be written, {error.strerror or error}; the report is on stdout") from None


def print_report(text: str) -> None:
    """Print in whatever encoding stdout has: a terminal in the C locale gets escapes, never an error."""
    write_text(sys.stdout, text)
