"""``jaxleak explain``: a pasted message of JAX, from a file or stdin, as a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from jaxleak_magic.cli.check import print_report, render
from jaxleak_magic.cli.fresh_process import CellReport
from jaxleak_magic.cli.inputs import InputError, Notebook, read_input
from jaxleak_magic.cli.script import without_magic
from jaxleak_magic.diagnose.messages import explain_text
from jaxleak_magic.diagnose.model import CellRef, SourceText


def explain(args: argparse.Namespace) -> int:
    """Explain the text that the command line names; gives the exit status 0. Raises InputError."""
    sources = [source for file in args.source for source in _sources(file)]
    report = explain_text(_text(args.file), sources)
    print_report(render([CellReport(report)], args.format, as_list=False))
    return 0


def _text(file: str) -> str:
    if file == "-":
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(file).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{file}: cannot be read, {reason}; name a text file, or - for stdin") from None
    return data.decode("utf-8-sig", "backslashreplace")


def _sources(file: str) -> list[SourceText]:
    found = read_input(Path(file))
    if isinstance(found, Notebook):
        counts = [_count(found.data["cells"][cell.index]) for cell in found.cells]
        cells = zip(found.cells, counts, strict=True)
        return [_source(cell.source, CellRef(cell.id, count), None) for cell, count in cells]
    return [_source(found.text, None, file)]


def _source(text: str, cell: CellRef | None, file: str | None) -> SourceText:
    magic, rest = without_magic(text)
    return SourceText(rest, cell, file, magic)


def _count(cell: dict[str, Any]) -> int | None:
    count = cell.get("execution_count")
    return count if isinstance(count, int) else None
