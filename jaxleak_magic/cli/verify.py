"""``--verify``: offered fixes are tried out in processes of their own, and say what came of it.

The rewritten code runs under the check. What it computes is compared with what the original computes when it is run
plainly, or under ``jax.disable_jit()`` where it raises, as code that leaks often does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxleak_magic.cli.fresh_process import CellReport, Job, Outcome, Replaced, run_in_fresh_process
from jaxleak_magic.cli.inputs import InputError, Notebook, Script, read_input
from jaxleak_magic.cli.results import Results, first_difference
from jaxleak_magic.diagnose.model import Edit, Fix, Leak, Report

LIMIT = 300.0
"""Seconds that one run may take; a fix whose run takes longer stays unchecked."""


def verified(outcome: Outcome, job: Job, run: Callable[[Job], Outcome] | None = None) -> Outcome:
    """The outcome with each offered fix run once.

    Args:
        outcome: of the job.
        job: the file and how it was checked.
        run: runs a job; None runs it in a fresh process, with the output of the user's code on stderr.

    Returns:
        The same reports. A fix that ran without a leak says ``same_results`` or ``leak_free`` in ``checked``; one that
        still leaks, raises or computes something else is refused with words.
    """
    trial = _Trial(outcome, job, run or (lambda each: run_in_fresh_process(each, "stderr", LIMIT)))
    reports = tuple(dataclasses.replace(each, report=trial.report(each)) for each in outcome.reports)
    return dataclasses.replace(outcome, reports=reports)


class _Trial:
    def __init__(self, outcome: Outcome, job: Job, run: Callable[[Job], Outcome]) -> None:
        self._before, self._job, self._run = outcome, job, run
        self._source = read_input(Path(job.file))
        self._intended: Results | None = None
        self._asked = False
        self._tried: dict[tuple[Replaced, ...], Outcome] = {}

    def report(self, cell: CellReport) -> Report:
        """The report of a cell with its fixes tried."""
        leaks = tuple(
            dataclasses.replace(leak, fixes=tuple(self._fix(fix, leak, cell) for fix in leak.fixes))
            if leak.fixes
            else leak
            for leak in cell.report.leaks
        )
        return dataclasses.replace(cell.report, leaks=leaks)

    def _fix(self, fix: Fix, leak: Leak, cell: CellReport) -> Fix:
        replaced = self._replaced(fix, cell) if fix.refusal is None else None
        if replaced is None:
            return fix
        if replaced not in self._tried:
            self._tried[replaced] = self._run(dataclasses.replace(self._job, replaced=replaced))
        after = self._tried[replaced]
        judged = _judge(cell, leak, after)
        if judged.refusal is not None:
            return Fix(fix.id, fix.title, refusal=judged.refusal)
        if not judged.leak_free:
            return fix
        intended = self._intended_results()
        if intended is None or after.results is None or not intended.keys() & after.results.keys():
            return dataclasses.replace(fix, checked="leak_free")
        name = first_difference(intended, after.results)
        if name is not None:
            what = "the last expression" if name == "_" else f"`{name}`"
            return Fix(
                fix.id, fix.title, refusal=f"A rewrite was run: it does not leak, but {what} came out different."
            )
        return dataclasses.replace(fix, checked="same_results")

    def _intended_results(self) -> Results | None:
        """What the original computes, or None where it raises in every way in which it can be run."""
        if not self._asked:
            self._asked = True
            for how in ("plain", "without_jit"):
                found = self._run(dataclasses.replace(self._job, how=how))
                if not found.raised and found.results is not None:
                    self._intended = found.results
                    break
        return self._intended

    def _replaced(self, fix: Fix, cell: CellReport) -> tuple[Replaced, ...] | None:
        """The new texts of a fix, or None where it changes another file too."""
        source = cell.report.source
        place = (source.cell, source.file) if source is not None else (None, None)
        edits = fix.edits or (Edit(*place, fix.source or "", fix.diff or ""),)
        found: list[Replaced] = []
        executed = dict(self._before.executed)
        for edit in edits:
            index = executed.get(edit.cell.execution_count or -1) if edit.cell is not None else None
            if isinstance(self._source, Script):
                if edit.cell is not None or edit.file != self._job.file:
                    return None
            elif index is None:
                return None
            found.append(Replaced(index, edit.source))
        return tuple(found)


@dataclass(frozen=True)
class _Judgement:
    refusal: str | None = None
    leak_free: bool = False


def _judge(before: CellReport, leak: Leak, after: Outcome) -> _Judgement:
    """Whether the rewritten code ran, and whether a leak is left."""
    now = next((each.report for each in after.reports if each.cell_index == before.cell_index), None)
    if now is None:
        return _Judgement()
    if now.error is not None and now.error.type == "ProcessEnded":
        return _Judgement()
    old, new = before.report.error, now.error
    same_error = old is not None and new is not None and (old.type, old.message) == (new.type, new.message)
    if new is not None and not same_error:
        return _Judgement(f"A rewrite was run and raised {new.type}: {_first_line(new.message)}")
    left = [_identity(each) for each in now.real_leaks]
    if _identity(leak) in left or len(left) >= len(before.report.real_leaks):
        return _Judgement("A rewrite was run and still leaks, so it is not offered.")
    return _Judgement(leak_free=not left and not any(each.report.real_leaks for each in after.reports))


def _identity(leak: Leak) -> tuple[object, ...]:
    return leak.mechanism, leak.variable, leak.holder.name if leak.holder else None


def _first_line(message: str) -> str:
    return (message.splitlines() or [""])[0][:200]


def source_with(source: Script | Notebook, replaced: tuple[Replaced, ...]) -> Script | Notebook:
    """A script or notebook with new texts in it; a ``%%leakcheck`` line stays.

    Raises:
        InputError: where a cell is not in the notebook.
    """
    from jaxleak_magic.magics.checked_cell import read_checked_cell

    def put(old: str, new: str) -> str:
        checked = read_checked_cell(old)
        return checked.with_text(new) if checked else new

    if isinstance(source, Script):
        return dataclasses.replace(source, text=put(source.text, replaced[-1].text)) if replaced else source
    new = {each.cell_index: each.text for each in replaced}
    if not new.keys() <= {cell.index for cell in source.cells}:
        raise InputError(f"{source.path}: a rewritten cell is not in it")
    cells = tuple(
        dataclasses.replace(cell, source=put(cell.source, new[cell.index])) if cell.index in new else cell
        for cell in source.cells
    )
    return dataclasses.replace(source, cells=cells)
