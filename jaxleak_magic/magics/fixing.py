"""Taking a fix in the notebook, without ever losing text of the user's.

A front end puts source into a cell only when a cell asks for it while it runs (``set_next_input``), and only one cell a
run: itself, or a new one below. So the running cell is replaced only by its own new text; all else is inserted.
"""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.diagnose.model import CellRef, Edit, Fix, Report, SourceText
from jaxleak_magic.magics.checked_cell import read_checked_cell
from jaxleak_magic.magics.front_end import takes_new_text
from jaxleak_magic.magics.options import MAGIC
from jaxleak_magic.own_errors import say
from jaxleak_magic.show.fixes import offered_fixes


def chosen_fix(report: Report, number: int | None) -> tuple[int, Fix]:
    """A fix by its number, or the only one. Raises UsageError, with what there is, where there is no such fix."""
    offered = offered_fixes(report)
    if not offered:
        raise UsageError("the last report offers no fix")
    if number is None and len(offered) == 1:
        return next(iter(offered.items()))
    if number not in offered:
        choice = "; ".join(f"{n}: {fix.title}" for n, fix in offered.items())
        raise UsageError(f"there is no fix {number}; {choice}" if number is not None else f"which fix? {choice}")
    return number, offered[number]


def insert_fix(shell: InteractiveShell, report: Report, line: str) -> None:
    """``%leakfix N``: show the fix's diff and insert the changed cells' source as one new cell below."""
    word = line.strip()
    if word and not word.isdecimal():
        raise UsageError(f"%leakfix takes the number of a fix, not {word!r}")
    number, fix = chosen_fix(report, int(word) if word else None)
    print(_diff(fix))
    in_cells = [edit for edit in _edits(fix, report) if edit.file is None]
    _tell_of_files(fix)
    # A cell magic works only on the first line of a cell: several such cells cannot stand one below the other.
    apart = len(in_cells) > 1 and any(edit.source.lstrip().startswith("%%") for edit in in_cells)
    if apart or not takes_new_text(shell):
        for edit in in_cells:
            magic = _magic(report) if _is_checked_text(edit, report) else ""
            print(f"\n# The whole new text of {_name(edit.cell)}:\n{magic}{edit.source}")
    elif in_cells:
        print(f"Fix {number}: the changed source of {_names(in_cells)} goes into a new cell below.")
        shell.set_next_input(_one_cell(in_cells, report), replace=False)


def replace_running_cell(shell: InteractiveShell, report: Report, number: int, raw_cell: str | None) -> None:
    """``%%leakcheck --fix N``: replace the running cell by its fixed text, or say why not and what to do."""
    try:
        number, fix = chosen_fix(report, number)
    except UsageError as error:
        say(str(error))
        return
    cell = read_checked_cell(raw_cell) if raw_cell else None
    edits = _edits(fix, report)
    if cell is None or len(edits) != 1 or not _is_checked_text(edits[0], report):
        say(f"fix {number} changes more than this cell: run %leakfix {number} in another cell to get all of it")
    elif not takes_new_text(shell):
        say(f"this front end takes no new text for a cell: %leakfix {number} in another cell shows it whole")
    elif report.error is not None:
        say(f"front ends take no new text from a cell that raised: run %leakfix {number} in another cell")
    else:
        words = cell.magic.split()
        ending = cell.magic[len(cell.magic.rstrip()) :]
        magic = " ".join(_without_fix(words)) + ending
        shell.set_next_input(cell.with_text(edits[0].source, magic), replace=True)


def _without_fix(words: list[str]) -> list[str]:
    """The magic's words without ``--fix N``: the new text is to be checked, not to be fixed again."""
    kept = [word for word in words if not word.startswith("--fix=")]
    while "--fix" in kept:
        at = kept.index("--fix")
        del kept[at : at + 2]
    return kept


def _edits(fix: Fix, report: Report) -> tuple[Edit, ...]:
    if fix.edits or fix.source is None:
        return fix.edits
    source = report.source or SourceText("")
    return (Edit(source.cell, source.file, fix.source, fix.diff or ""),)


def _is_checked_text(edit: Edit, report: Report) -> bool:
    return edit.file is None and report.source is not None and edit.cell == report.source.cell


def _diff(fix: Fix) -> str:
    return "\n".join(edit.diff.rstrip("\n") for edit in fix.edits) or (fix.diff or "").rstrip("\n")


def _tell_of_files(fix: Fix) -> None:
    for edit in fix.edits:
        if edit.file is not None:
            say(f"{edit.file} is left as it is: make the change above there by hand")


def _names(edits: list[Edit]) -> str:
    return ", ".join(_name(edit.cell) for edit in edits)


def _name(cell: CellRef | None) -> str:
    return f"In [{cell.execution_count}]" if cell and cell.execution_count is not None else "the cell"


def _one_cell(edits: list[Edit], report: Report) -> str:
    """The new source of all changed cells, one below the other, with the magic that the checked cell had on top."""
    magic = next((_magic(report) for edit in edits if _is_checked_text(edit, report)), "")
    if len(edits) == 1:
        return magic + edits[0].source
    parts = [f"# {_name(edit.cell)}, with the fix\n{edit.source.rstrip()}\n" for edit in edits]
    return magic + "\n".join(parts)


def _magic(report: Report) -> str:
    magic = report.source.magic if report.source else ""
    words = " ".join(_without_fix(magic.split()))
    return f"{words}\n" if words.startswith(f"%%{MAGIC}") else ""
