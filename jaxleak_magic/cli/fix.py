"""``jaxleak fix``: show or apply one fix, to a file that is still the one that was checked."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxleak_magic.cli.fresh_process import Job, Outcome, run_in_fresh_process
from jaxleak_magic.cli.inputs import InputError, Notebook, Script, read_input
from jaxleak_magic.diagnose.model import Edit, Fix, Leak, Report
from jaxleak_magic.show.words import FIX_CHECK


@dataclass(frozen=True)
class _Offer:
    """A fix, the leak that it mends, and the report that it stands in."""

    leak: Leak
    fix: Fix
    report: Report


def fix(args: argparse.Namespace) -> int:
    """Check the file and show or apply the first fix (or that of ``--leak N``): 0 where there is one, else 1."""
    path = Path(args.file)
    source = read_input(path)
    before = path.read_bytes()
    job = Job(args.file)
    outcome = run_in_fresh_process(job, "stderr")
    if args.verify:
        from jaxleak_magic.cli.verify import verified

        outcome = verified(outcome, job)
    offers = list(_offers(outcome, args.leak))
    if not offers:
        _say_why_none(outcome, args.leak)
        return 1
    offer = offers[0]
    edits = _edits(offer)
    print(f"Fix for leak {offer.leak.id}: {offer.fix.title}", file=sys.stderr)
    print(FIX_CHECK[offer.fix.checked or "not_checked"], file=sys.stderr)
    print("\n".join(edit.diff.rstrip("\n") for edit in edits))
    if not args.write:
        return 0
    elsewhere = sorted({edit.file for edit in edits if edit.file and not _same_file(edit.file, path)})
    if elsewhere:
        raise InputError(f"{path}: not changed, the fix changes {', '.join(elsewhere)} too; apply the diff by hand")
    if path.read_bytes() != before:
        raise InputError(f"{path}: not changed, since it was edited while it was checked; run the command again")
    _replace(path, _changed(source, edits, dict(outcome.executed)))
    more = len({offer.leak.id for offer in _offers(outcome, None)}) - 1
    print(f"{path} is changed.", "Run the command again for the next leak." if more else "", file=sys.stderr)
    return 0


def _offers(outcome: Outcome, leak_number: int | None) -> Iterable[_Offer]:
    for each in outcome.reports:
        for leak in each.report.real_leaks:
            if leak_number in (None, leak.id):
                yield from (_Offer(leak, fix, each.report) for fix in leak.fixes if fix.refusal is None)


def _say_why_none(outcome: Outcome, leak_number: int | None) -> None:
    leaks = [leak for each in outcome.reports for leak in each.report.real_leaks]
    chosen = [leak for leak in leaks if leak_number in (None, leak.id)]
    if not chosen:
        why = "no leak was found" if not leaks else f"there is no leak {leak_number}"
        print(f"jaxleak: {why}", file=sys.stderr)
    for leak in chosen:
        why = next((fix.refusal for fix in leak.fixes if fix.refusal), "no rewrite fits")
        print(f"jaxleak: leak {leak.id}: no fix is offered: {why}", file=sys.stderr)


def _edits(offer: _Offer) -> tuple[Edit, ...]:
    if offer.fix.edits:
        return offer.fix.edits
    source = offer.report.source
    cell, file = (source.cell, source.file) if source else (None, None)
    return (Edit(cell, file, offer.fix.source or "", offer.fix.diff or ""),)


def _changed(source: Script | Notebook, edits: tuple[Edit, ...], executed: dict[int, int]) -> bytes:
    if isinstance(source, Notebook):
        return _changed_notebook(source, edits, executed)
    from jaxleak_magic.magics.checked_cell import read_checked_cell

    cell = read_checked_cell(source.text)
    text = edits[-1].source
    return (cell.with_text(text) if cell else text).encode(source.encoding)


def _changed_notebook(notebook: Notebook, edits: tuple[Edit, ...], executed: dict[int, int]) -> bytes:
    from jaxleak_magic.magics.checked_cell import read_checked_cell

    cells: list[dict[str, Any]] = notebook.data["cells"]
    for edit in edits:
        index = executed.get(edit.cell.execution_count or -1) if edit.cell else None
        if index is None:
            raise InputError(f"{notebook.path}: not changed, since the fix names a cell that is not in it")
        old = next(cell.source for cell in notebook.cells if cell.index == index)
        checked = read_checked_cell(old)
        new = checked.with_text(edit.source) if checked else edit.source
        as_list = isinstance(cells[index].get("source"), list)
        cells[index]["source"] = new.splitlines(keepends=True) if as_list else new
    lines = notebook.text.split("\n", 2)
    indent = len(lines[1]) - len(lines[1].lstrip(" ")) if len(lines) > 1 else None
    text = json.dumps(notebook.data, indent=indent, ensure_ascii=False)
    return (text + ("\n" if notebook.text.endswith("\n") else "")).encode("utf-8")


def _same_file(name: str, path: Path) -> bool:
    try:
        return os.path.samefile(name, path)
    except OSError:
        return False


def _replace(path: Path, data: bytes) -> None:
    """Write the file whole or not at all, with the rights that it has; a link stays a link."""
    target = path.resolve()
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(data)
        os.chmod(file.name, target.stat().st_mode)
        os.replace(file.name, target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written, {error.strerror or error}; nothing was changed") from None
