"""``%leakfix`` and ``--fix`` in a shell, with made-up reports: nothing of the user's is ever lost."""

from __future__ import annotations

import dataclasses

import pytest

from jaxleak_magic.diagnose.model import CellRef, Edit, Fix, SourceText
from tests.doors.fakes import empty_report
from tests.show.sample_reports import one_leak

HERE, ABOVE = CellRef("here", 1), CellRef("above", 7)


def fix(*edits, **changes):
    first = edits[0]
    plain = Fix("lift", "Lift `a`", source=first.source, diff=first.diff, edits=edits, checked="not_checked")
    return dataclasses.replace(plain, **changes)


def edit(cell=HERE, source="mended = True\n", file=None):
    return Edit(cell, file, source, f"-old\n+{source}")


def report_with(*fixes, magic="%%leakcheck --fix 1 -q\n", **changes):
    leak = dataclasses.replace(one_leak().leaks[0], fixes=fixes)
    return empty_report(leaks=(leak,), source=SourceText("old = True\n", HERE, magic=magic), **changes)


@pytest.fixture
def inserted(shell, monkeypatch):
    """What is put into cells: (text, replace)."""
    calls = []
    monkeypatch.setattr(type(shell), "set_next_input", lambda self, text, replace=False: calls.append((text, replace)))
    return calls


def run(shell, fake_run, report, *cells):
    fake_run.report = staticmethod(lambda run, error: report)
    for cell in cells:
        shell.run_cell(cell, store_history=True, cell_id="here")


def test_fix_replaces_its_own_cell_and_drops_only_the_option(shell, fake_run, inserted):
    run(shell, fake_run, report_with(fix(edit())), "%%leakcheck --fix 1 -q -o kept\nold = True\n")
    assert inserted == [("%%leakcheck -q -o kept\nmended = True\n", True)]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("%%leakcheck --fix=1 -q", "%%leakcheck -q"),
        ("%%leakcheck -q --fix 1", "%%leakcheck -q"),
        ("%%leakcheck -q --output a_b --fix 1", "%%leakcheck -q --output a_b"),
    ],
)
def test_option_fix_in_its_other_spellings(shell, fake_run, inserted, line, kept):
    run(shell, fake_run, report_with(fix(edit())), f"{line}\nold = True")
    assert inserted == [(f"{kept}\nmended = True\n", True)]


def test_fix_of_several_cells_replaces_none(shell, fake_run, inserted, capsys):
    run(shell, fake_run, report_with(fix(edit(ABOVE), edit())), "%%leakcheck --fix 1 -q\nold = True\n")
    assert inserted == []
    assert "run %leakfix 1 in another cell" in capsys.readouterr().err


def test_fix_of_another_cell_does_not_replace_this_one(shell, fake_run, inserted):
    run(shell, fake_run, report_with(fix(edit(ABOVE))), "%%leakcheck --fix 1 -q\nold = True\n")
    assert inserted == []


def test_fix_number_that_is_not_there(shell, fake_run, inserted, capsys):
    run(shell, fake_run, report_with(fix(edit())), "%%leakcheck --fix 3 -q\nold = True\n")
    assert inserted == []
    assert "there is no fix 3; 1: Lift `a`" in capsys.readouterr().err


def test_a_clean_run_with_fix_leaves_the_cell(shell, fake_run, inserted):
    run(shell, fake_run, empty_report(), "%%leakcheck --fix 1 -q\nold = True\n")
    assert inserted == []


def test_leakfix_inserts_below_with_the_magic(shell, fake_run, inserted, capsys):
    run(shell, fake_run, report_with(fix(edit())), "%%leakcheck -q --fix 9\nold = True\n", "%leakfix 1")
    assert inserted == [("%%leakcheck -q\nmended = True\n", False)]
    assert "+mended = True" in capsys.readouterr().out


def test_leakfix_alone_takes_the_only_fix_and_asks_among_several(shell, fake_run, inserted, capsys):
    run(shell, fake_run, report_with(fix(edit())), "%%leakcheck -q\nold = True\n", "%leakfix")
    assert len(inserted) == 1
    two = report_with(fix(edit()), fix(edit(), title="Other way"))
    run(shell, fake_run, two, "%%leakcheck -q\nold = True\n", "%leakfix")
    assert len(inserted) == 1
    assert "which fix? 1: Lift `a`; 2: Other way" in capsys.readouterr().err


def test_leakfix_of_several_cells_is_one_new_cell(shell, fake_run, inserted):
    fixes = fix(edit(ABOVE, "def f(): pass\n"), edit())
    run(shell, fake_run, report_with(fixes, magic="%%leakcheck -q\n"), "%%leakcheck -q\nold = True\n", "%leakfix 1")
    ((text, replace),) = inserted
    assert replace is False
    assert text.startswith("%%leakcheck -q\n# In [7], with the fix\ndef f(): pass\n")
    assert text.endswith("# In [1], with the fix\nmended = True\n")


def test_leakfix_shows_cells_that_cannot_stand_in_one(shell, fake_run, inserted, capsys):
    """A cell magic works only on the first line of a cell."""
    fixes = fix(edit(ABOVE, "%%time\nx = 1\n"), edit())
    run(shell, fake_run, report_with(fixes), "%%leakcheck -q\nold = True\n", "%leakfix 1")
    assert inserted == []
    out = capsys.readouterr().out
    assert "%%time\nx = 1\n" in out
    assert "mended = True\n" in out


@pytest.fixture
def colab(shell, monkeypatch):
    """Cells as Colab sends them: it does not put text into cells when the kernel asks for it."""
    monkeypatch.setattr(shell, "parent_header", {"metadata": {"colab": {"cell_id": "c"}}}, raising=False)


def test_leakfix_shows_the_text_where_none_can_be_inserted(shell, fake_run, inserted, colab, capsys):
    run(shell, fake_run, report_with(fix(edit())), "%%leakcheck -q --fix 9\nold = True\n", "%leakfix 1")
    assert inserted == []
    assert capsys.readouterr().out.endswith("# The whole new text of In [1]:\n%%leakcheck -q\nmended = True\n\n")


def test_fix_says_where_no_text_can_be_replaced(shell, fake_run, inserted, colab, capsys):
    run(shell, fake_run, report_with(fix(edit())), "%%leakcheck -q --fix 1\nold = True\n")
    assert inserted == []
    assert "%leakfix 1 in another cell shows it whole" in capsys.readouterr().err


def test_leakfix_writes_no_file(shell, fake_run, inserted, tmp_path, capsys):
    module = tmp_path / "helpers.py"
    module.write_text("old = True\n")
    run(shell, fake_run, report_with(fix(edit(None, file=str(module)))), "%%leakcheck -q\nold = True\n", "%leakfix 1")
    assert inserted == []
    assert module.read_text() == "old = True\n"
    assert "by hand" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"), [("two", "not 'two'"), ("5", "there is no fix 5"), ("", "no cell was checked")]
)
def test_wrong_use_is_one_line(shell, fake_run, inserted, capsys, line, words):
    if line:
        run(shell, fake_run, report_with(fix(edit())), "%%leakcheck -q\nold = True\n")
    capsys.readouterr()
    shell.run_cell(f"%leakfix {line}", store_history=True)
    assert words in capsys.readouterr().err


def test_no_fix_at_all(shell, fake_run, inserted, capsys):
    run(shell, fake_run, empty_report(), "%%leakcheck -q\nold = True\n", "%leakfix")
    assert "offers no fix" in capsys.readouterr().err
