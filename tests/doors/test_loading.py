"""Loading, reloading and unloading, what is recorded, and how light the package is."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from jaxleak_magic.diagnose.model import CellRef

HEAVY = ("jax", "jaxlib", "numpy", "IPython", "libcst", "ipywidgets", "anywidget", "graphviz", "markupsafe")


def state(shell):
    """All places of a shell that an extension may change."""
    return (
        list(shell.input_transformer_manager.cleanup_transforms),
        list(shell.input_transformer_manager.line_transforms),
        list(shell.input_transformers_post),
        {event: list(callbacks) for event, callbacks in shell.events.callbacks.items()},
        {kind: dict(table) for kind, table in shell.magics_manager.magics.items()},
        dict(shell.magics_manager.registry),
        dict(vars(type(shell))),
        {name: value for name, value in vars(shell).items() if name.startswith(("show", "run_", "_show"))},
    )


def test_unload_leaves_the_shell_as_it_was(bare_shell):
    bare_shell.find_line_magic("load_ext")  # IPython registers its own magics at their first use
    before = state(bare_shell)
    bare_shell.run_line_magic("load_ext", "jaxleak_magic")
    assert state(bare_shell) != before
    bare_shell.run_line_magic("unload_ext", "jaxleak_magic")
    assert state(bare_shell) == before


def test_loading_twice_changes_nothing(shell):
    from jaxleak_magic import load_ipython_extension

    before = state(shell)
    load_ipython_extension(shell)
    shell.run_line_magic("load_ext", "jaxleak_magic")
    assert state(shell) == before


def test_unloading_what_is_not_loaded_changes_nothing(bare_shell):
    from jaxleak_magic import unload_ipython_extension

    before = state(bare_shell)
    unload_ipython_extension(bare_shell)
    assert state(bare_shell) == before


def test_reload_keeps_one_set_of_hooks(shell, fake_run):
    shell.run_line_magic("reload_ext", "jaxleak_magic")
    assert len(shell.events.callbacks["pre_run_cell"]) == 1
    shell.run_cell("%%leakcheck -q\n1", store_history=True)
    assert len(fake_run.made) == 1


def test_loading_is_silent(bare_shell, capsys):
    bare_shell.run_line_magic("load_ext", "jaxleak_magic")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_unloading_inside_a_checked_cell_ends_the_check(shell, fake_run):
    shell.run_cell("%%leakcheck -q\n%unload_ext jaxleak_magic", store_history=True)
    assert not fake_run.made[0].running


def book_of(shell):
    return shell.magics_manager.registry["LeakcheckMagics"].checker.recorder.book


def test_cells_are_recorded_as_they_run(shell):
    shell.run_cell("x = 1\ndef f():\n    pass", store_history=True, cell_id="abc")
    code = shell.user_ns["f"].__code__
    place = book_of(shell).place(code.co_filename, code.co_firstlineno)
    assert place.cell == CellRef("abc", 1)
    assert (place.line, place.source) == (2, "def f():")


def test_checked_cells_are_recorded_without_their_magic(shell, fake_run):
    shell.run_cell("%%leakcheck -q\nx = 1\ndef f():\n    pass\n", store_history=True, cell_id="abc")
    code = shell.user_ns["f"].__code__
    source = book_of(shell).get(code.co_filename)
    assert source.text == "x = 1\ndef f():\n    pass\n"
    assert source.magic == "%%leakcheck -q\n"
    assert book_of(shell).place(code.co_filename, code.co_firstlineno).line == 2
    assert fake_run.made[0].checked_file == code.co_filename


def test_cells_that_ran_before_loading_are_known(bare_shell):
    bare_shell.run_cell("\nx = 'this cell'\ndef f():\n    pass\n\n", store_history=True)
    bare_shell.run_cell("def g():\n    pass\n%load_ext jaxleak_magic", store_history=True)
    for name, line, count in (("f", 3, 1), ("g", 1, 2)):
        code = bare_shell.user_ns[name].__code__
        place = book_of(bare_shell).place(code.co_filename, code.co_firstlineno)
        assert (place.cell, place.line) == (CellRef(None, count), line)
        assert place.source == f"def {name}():" or place.source is None


def test_two_runs_of_an_edited_cell_are_two_texts(shell):
    shell.run_cell("def f(): return 1", store_history=True, cell_id="abc")
    old = shell.user_ns["f"]
    shell.run_cell("\ndef f(): return 2", store_history=True, cell_id="abc")
    assert book_of(shell).place(old.__code__.co_filename, 1).source == "def f(): return 1"


def fresh_python(code):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)


def heavy_after(code):
    run = fresh_python(f"import sys\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.mark.parametrize(
    "module", ["jaxleak_magic", "jaxleak_magic.__main__", "jaxleak_magic.report", "jaxleak_magic.show"]
)
def test_import_is_light(module):
    assert heavy_after(f"import {module}") == []


def test_the_import_test_can_fail():
    assert "markupsafe" in heavy_after("import jaxleak_magic, markupsafe")


def test_loading_imports_neither_jax_nor_what_reports_need():
    code = """
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    import jaxleak_magic
    jaxleak_magic.load_ipython_extension(shell)
    """
    assert set(heavy_after(textwrap.dedent(code))) <= {"IPython"}


def test_public_names():
    import jaxleak_magic

    assert jaxleak_magic.LeakError.__name__ == "LeakError"
    assert {"LeakError", "LeakReport"} <= set(dir(jaxleak_magic))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jaxleak_magic.nothing


def test_version_is_that_of_the_package():
    import tomllib

    from jaxleak_magic import __version__
    from tests.conftest import REPOSITORY

    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"] == __version__
