"""A cell with the magic behaves as it would without it: one test for each trap that was met on the way."""

from __future__ import annotations

import ast
import textwrap

import IPython
import pytest

from jaxleak_magic.diagnose.model import CellRef, Report
from tests.doors.fakes import empty_report, points_at


def run(shell, text, **kwargs):
    return shell.run_cell(textwrap.dedent(text), store_history=True, **kwargs)


def test_the_cell_runs_between_start_and_finish(shell, fake_run):
    shell.user_ns["runs"] = fake_run.made
    result = run(shell, "%%leakcheck\nseen = list(runs[-1].calls)")
    assert result.success
    assert shell.user_ns["seen"] == ["start"]
    assert fake_run.made[0].calls[:2] == ["start", "finish"]
    assert len(fake_run.made) == 1


def test_a_cell_without_the_magic_is_not_checked(shell, fake_run):
    run(shell, "x = 1")
    assert fake_run.made == []


def test_last_value_is_shown_and_kept(shell, fake_run, capsys):
    result = run(shell, "%%leakcheck\nx = 20\nx + 22")
    assert result.result == 42
    assert "Out[1]: 42" in capsys.readouterr().out
    assert shell.user_ns["_"] == 42
    assert shell.user_ns["Out"][1] == 42
    assert shell.user_ns["x"] == 20


def test_semicolon_hides_the_value(shell, fake_run, capsys):
    run(shell, "%%leakcheck -q\n42;")
    assert "42" not in capsys.readouterr().out


def test_line_numbers_and_cell_number_of_an_error_are_the_users(shell, fake_run, capsys):
    result = run(shell, "%%leakcheck\nx = 1\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    out = capsys.readouterr().out
    assert out.count("ZeroDivisionError: ") == 1
    assert points_at(out, 1, 3)
    assert "----> 3 1 / 0" in out
    assert fake_run.made[0].error is result.error_in_exec
    assert not fake_run.made[0].running


def test_functions_defined_in_the_cell_keep_the_right_lines(shell, fake_run, capsys):
    run(shell, "%%leakcheck -q\n\ndef fails():\n    raise KeyError('k')")
    run(shell, "fails()")
    assert points_at(capsys.readouterr().out, 1, 4, "fails()")


def test_source_of_functions_defined_in_the_cell(shell, fake_run):
    import inspect

    run(shell, "%%leakcheck -q\ndef f():\n    return 1")
    assert inspect.getsource(shell.user_ns["f"]) == "def f():\n    return 1\n"


def test_syntax_error_is_the_users_and_ends_the_check(shell, fake_run, capsys):
    result = run(shell, "%%leakcheck\nx = 1\nx = = 2")
    assert isinstance(result.error_before_exec, SyntaxError)
    assert result.error_before_exec.lineno == 3
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("SyntaxError") == 1
    assert isinstance(fake_run.made[0].error, SyntaxError)
    assert not fake_run.made[0].running


def test_other_magics_and_shell_lines_inside(shell, fake_run, capfd):
    result = run(
        shell, "%%leakcheck -q\nn = 3\n!echo from-the-shell\n%timeit -n1 -r1 n\nlines = !echo caught\nlines[0]"
    )
    assert result.success
    out = capfd.readouterr().out
    assert "from-the-shell" in out
    assert "per loop" in out
    assert result.result == "caught"


def test_top_level_await(shell, fake_run):
    result = run(shell, "%%leakcheck\nimport asyncio\nawait asyncio.sleep(0, 'waited')")
    assert result.result == "waited"
    assert fake_run.made[0].calls[:2] == ["start", "finish"]


def test_future_import_as_the_first_statement(shell, fake_run):
    assert run(shell, "%%leakcheck -q\nfrom __future__ import annotations\nx: nowhere = 1").success


def test_triple_quoted_text_is_left_as_it_is(shell, fake_run):
    run(shell, '%%leakcheck -q\ntext = """\n  %%leakcheck\n    two\n"""')
    assert shell.user_ns["text"] == "\n  %%leakcheck\n    two\n"


@pytest.mark.parametrize("body", ["# only a comment", "pass\n\n\n", "if True:\n    x = 5\n\n"])
def test_unusual_bodies(shell, fake_run, body):
    assert run(shell, f"%%leakcheck -q\n{body}").success
    assert fake_run.made[0].calls[:2] == ["start", "finish"]


def test_blank_lines_above_the_magic(shell, fake_run):
    run(shell, "\n\n%%leakcheck -q\nx = 1\ndef f():\n    pass")
    book = fake_run.made[0].sources
    code = shell.user_ns["f"].__code__
    place = book.place(code.co_filename, code.co_firstlineno)
    assert (place.line, place.source) == (4, "def f():")
    assert book.get(code.co_filename).text == "\n\nx = 1\ndef f():\n    pass"


def test_ast_transformers_of_others_still_work(shell, fake_run):
    class Negate(ast.NodeTransformer):
        def visit_Constant(self, node):
            return ast.copy_location(ast.Constant(-node.value), node)

    shell.ast_transformers.append(Negate())
    run(shell, "%%leakcheck -q\nx = 3")
    assert shell.user_ns["x"] == -3


def test_system_exit(shell, fake_run, capsys):
    with pytest.warns(UserWarning, match="To exit"):
        run(shell, "%%leakcheck\nimport sys\nsys.exit(3)")
    assert isinstance(fake_run.made[0].error, SystemExit)
    assert not fake_run.made[0].running


def test_keyboard_interrupt_ends_the_check_without_a_report(shell, fake_run, capsys):
    result = run(shell, "%%leakcheck\nraise KeyboardInterrupt")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "finish" not in fake_run.made[0].calls
    assert not fake_run.made[0].running
    assert "interrupted" in capsys.readouterr().err
    assert run(shell, "%%leakcheck -q\n1").success
    assert fake_run.made[1].calls[:2] == ["start", "finish"]


# --- inside and around other magics ---


@pytest.mark.parametrize("outer", ["%%time", "%%time\n"])
def test_inside_time(shell, fake_run, capsys, outer):
    result = run(shell, f"{outer}\n%%leakcheck -q\nx = 1\nx + 1")
    assert result.result == 2
    assert "Wall time" in capsys.readouterr().out
    assert fake_run.made[0].calls[:2] == ["start", "finish"]
    assert len(fake_run.made) == 1


def test_around_time(shell, fake_run, capsys):
    result = run(shell, "%%leakcheck -q\n\n%%time\nx = 1\ndef f(): pass\nx + 1")
    assert result.result == 2
    assert "Wall time" in capsys.readouterr().out
    assert fake_run.made[0].calls[:2] == ["start", "finish"]
    code = shell.user_ns["f"].__code__
    place = fake_run.made[0].sources.place(code.co_filename, code.co_firstlineno)
    assert (place.line, place.source, place.cell) == (4, "def f(): pass", CellRef(None, 1))


TIME_SWALLOWS = IPython.version_info < (9,)
"""Whether ``%%time`` shows the error of its cell and lets it count as a success."""


def test_error_inside_time_is_raised_once_with_the_right_line(shell, fake_run, capsys):
    result = run(shell, "%%time\n%%leakcheck\nx = 1\n1 / 0")
    assert TIME_SWALLOWS or isinstance(result.error_in_exec, ZeroDivisionError)
    out = capsys.readouterr().out
    assert out.count("ZeroDivisionError: ") == 1
    assert points_at(out, 1, 4)
    assert "1 / 0" in out


@pytest.mark.parametrize(
    "text", ["%%capture kept\n%%leakcheck -q\nprint('one')\n2", "%%leakcheck -q\n%%capture kept\nprint('one')\n2"]
)
def test_capture(shell, fake_run, text):
    assert run(shell, text).success
    assert "one" in shell.user_ns["kept"].stdout
    assert fake_run.made[0].calls[:2] == ["start", "finish"]
    assert len(fake_run.made) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("%%capture kept\n%%leakcheck -q\nx = 1\ndef f(): pass", 3),
        ("%%leakcheck -q\n%%capture kept\nx = 1\ndef f(): pass", 3),
        ("%%time\n%%leakcheck -q\nx = 1\ndef f(): pass", 3),
    ],
)
def test_places_inside_other_magics_are_lines_of_the_cell(shell, fake_run, text, line):
    run(shell, text)
    code = shell.user_ns["f"].__code__
    place = fake_run.made[0].sources.place(code.co_filename, code.co_firstlineno)
    assert (place.line, place.source, place.cell) == (line, "def f(): pass", CellRef(None, 1))


def test_semicolon_inside_time(shell, fake_run):
    assert run(shell, "%%time\n%%leakcheck -q\n1;").result is None


def test_inside_a_checked_cell_a_second_check_only_runs_its_code(shell, fake_run):
    result = run(shell, "%%leakcheck -q\ny = 2\n%leakcheck y + 1")
    assert result.result == 3
    assert len(fake_run.made) == 1


# --- the line form ---


def test_line_form_gives_the_value(shell, fake_run):
    run(shell, "def twice(x):\n    return 2 * x")
    assert run(shell, "%leakcheck -q twice(-4) - 1").result == -9
    assert run(shell, "%leakcheck -q z = twice(5)").success
    assert shell.user_ns["z"] == 10
    assert [r.calls[:2] for r in fake_run.made] == [["start", "finish"]] * 2


def test_line_form_reports_in_the_line_of_its_cell(shell, fake_run, capsys):
    run(shell, "a = 1\n\n%leakcheck -q f = lambda: 1 / 0\nf()")
    code = shell.user_ns["f"].__code__
    assert fake_run.made[0].checked_file == code.co_filename
    assert fake_run.made[0].sources.place(code.co_filename, code.co_firstlineno).line == 3
    assert points_at(capsys.readouterr().out, 1, 3)


def test_line_form_sees_local_variables(shell, fake_run):
    run(shell, "def f(n):\n    m = %leakcheck -q n + 1\n    return m")
    assert run(shell, "f(1)").result == 2


def test_line_form_takes_an_expression_that_begins_with_a_minus(shell, fake_run):
    assert run(shell, "%leakcheck -q -- -3").result == -3


def test_braces_and_dollars_are_not_expanded(shell, fake_run):
    run(shell, "x = 5")
    assert run(shell, "%leakcheck -q '{x} $x'").result == "{x} $x"


# --- options ---


def test_output_name_holds_the_report(shell, fake_run):
    from jaxleak_magic import LeakReport

    run(shell, "%%leakcheck -q -o kept\n1")
    assert isinstance(shell.user_ns["kept"], LeakReport)
    assert shell.user_ns["_"] == 1


def test_keep_caches(shell, fake_run):
    run(shell, "%%leakcheck -q --keep-caches\n1")
    run(shell, "%%leakcheck -q\n1")
    assert [r.options.retrace for r in fake_run.made] == [False, True]


@pytest.mark.parametrize("text", ["%%leakcheck -h\nran = True", "%%leakcheck --help\nran = True", "%leakcheck -h"])
def test_help_shows_the_options_and_runs_nothing(shell, fake_run, capsys, text):
    run(shell, text)
    out = capsys.readouterr().out
    assert "%%leakcheck [-o NAME]" in out
    assert "--keep-caches" in out
    assert "ran" not in shell.user_ns
    assert fake_run.made == []


@pytest.mark.parametrize("line", ["--nope", "-o", "-o 1x", "--fix two", "-o 'open", "--fi 1"])
def test_wrong_options_are_one_line_and_run_nothing(shell, fake_run, capsys, line):
    result = run(shell, f"%%leakcheck {line}\nran = True")
    assert not result.success
    err = capsys.readouterr().err
    assert err.startswith("UsageError: %%leakcheck: ")
    assert len(err.strip().splitlines()) == 1
    assert "ran" not in shell.user_ns
    assert fake_run.made == []


def test_empty_body_is_one_line(shell, fake_run, capsys):
    run(shell, "%%leakcheck\n")
    assert capsys.readouterr().err.startswith("UsageError: ")


def test_question_mark_shows_the_docstring(shell, capsys):
    run(shell, "%%leakcheck?")
    assert "--keep-caches" in capsys.readouterr().out


def test_a_longer_name_is_not_ours(shell, fake_run, capsys):
    run(shell, "%%leakchecker\n1")
    assert "%%leakchecker" in capsys.readouterr().err
    assert fake_run.made == []


@pytest.mark.parametrize("body", ["", "\n", "\nx = 1", "\nx = 1\n", "\nif x:", "\nx = 1\n\n"])
def test_terminal_asks_for_more_as_with_any_cell_magic(shell, body):
    assert shell.check_complete("%%leakcheck" + body) == shell.check_complete("%%time" + body)


# --- leaks and --raise ---


def leaking(shell_run, error) -> Report:
    from tests.show.sample_reports import one_leak

    return one_leak()


def test_raise_fails_the_cell_after_the_report(shell, fake_run, capsys):
    from jaxleak_magic import LeakError

    fake_run.report = staticmethod(lambda run, error: leaking(run, error))
    result = run(shell, "%%leakcheck --raise --text\nx = 1\n'the value'")
    assert isinstance(result.error_in_exec, LeakError)
    assert result.result == "the value"
    out = capsys.readouterr().out
    assert out.index("the value") < out.index("leak") < out.index("LeakError")
    assert out.count("LeakError: ") == 1
    assert shell.last_execution_succeeded is False


def test_without_raise_a_leak_does_not_fail_the_cell(shell, fake_run):
    fake_run.report = staticmethod(lambda run, error: leaking(run, error))
    assert run(shell, "%%leakcheck -q\nx = 1").success


def test_the_users_own_error_wins_over_raise(shell, fake_run, capsys):
    fake_run.report = staticmethod(lambda run, error: leaking(run, error))
    result = run(shell, "%%leakcheck -q --raise\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "LeakError" not in capsys.readouterr().out


def test_raise_inside_another_magic(shell, fake_run):
    from jaxleak_magic import LeakError

    fake_run.report = staticmethod(lambda run, error: leaking(run, error))
    result = run(shell, "%%time\n%%leakcheck -q --raise\n1")
    assert TIME_SWALLOWS or isinstance(result.error_in_exec, LeakError)
    assert isinstance(run(shell, "%leakcheck -q --raise 1").error_in_exec, LeakError)


# --- our own errors ---


def test_a_check_that_cannot_start_lets_the_cell_run(shell, fake_run, capsys):
    fake_run.start_error = TypeError("broken hook")
    assert run(shell, "%%leakcheck\n40 + 2").result == 42
    err = capsys.readouterr().err
    assert "broken hook" in err
    assert "/issues" in err
    assert len(err.strip().splitlines()) == 1
    assert not fake_run.made[0].running


def test_an_error_of_ours_hides_neither_value_nor_exception(shell, fake_run, capsys):
    def broken(run, error):
        raise ValueError("two\nlines")

    fake_run.report = staticmethod(broken)
    assert run(shell, "%%leakcheck\n40 + 2").result == 42
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "ValueError: two lines" in captured.err
    assert not fake_run.made[0].running
    assert isinstance(run(shell, "%%leakcheck\n1 / 0").error_in_exec, ZeroDivisionError)


def test_an_error_of_ours_fails_a_cell_with_raise(shell, fake_run):
    def broken(run, error):
        raise ValueError("no")

    fake_run.report = staticmethod(broken)
    assert not run(shell, "%%leakcheck --raise\n1").success


@pytest.mark.parametrize(
    "cell", ["%%leakcheck --raise\nx = 1", "%%time\n%%leakcheck --raise\nx = 1", "%leakcheck --raise 1"]
)
def test_a_check_that_cannot_start_fails_a_cell_with_raise(shell, fake_run, cell):
    fake_run.start_error = TypeError("broken hook")
    result = run(shell, cell)
    assert not result.success or (TIME_SWALLOWS and "%%time" in cell)


def test_an_error_while_recording_lets_the_cell_run(shell, fake_run, capsys, monkeypatch):
    def broken(self, cell):
        raise ValueError("no text")

    monkeypatch.setattr("jaxleak_magic.magics.recording.CellRecorder.record", broken)
    assert run(shell, "%%leakcheck\n40 + 2").result == 42
    captured = capsys.readouterr()
    assert "ValueError: no text" in captured.err
    assert "Traceback" not in captured.out + captured.err


def test_after_a_failed_check_no_old_report_stands_under_the_name(shell, fake_run):
    run(shell, "%%leakcheck -q -o kept\n1")
    fake_run.start_error = TypeError("broken hook")
    run(shell, "%%leakcheck -q -o kept\n1")
    assert "kept" not in shell.user_ns


def test_interrupting_the_search_stops_run_all(shell, fake_run, capsys):
    def interrupted(run, error):
        raise KeyboardInterrupt

    fake_run.report = staticmethod(interrupted)
    result = run(shell, "%%leakcheck\n1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert not fake_run.made[0].running


def test_nothing_of_the_report_is_left_running_when_events_are_lost(shell, fake_run):
    """A front end that never tells that a cell ended: the next cell takes the hooks out."""
    checker = shell.magics_manager.registry["LeakcheckMagics"].checker
    shell.events.unregister("post_run_cell", checker.post_run_cell)
    run(shell, "%%leakcheck\n1")
    assert fake_run.made[0].running
    shell.events.register("post_run_cell", checker.post_run_cell)
    run(shell, "1")
    assert not fake_run.made[0].running


def test_report_of_the_last_run_is_shown_again(shell, fake_run, capsys):
    run(shell, "%leakcheck")
    assert "no cell was checked yet" in capsys.readouterr().err
    run(shell, "%%leakcheck -q\n1")
    run(shell, "%leakcheck --text")
    assert capsys.readouterr().out.strip()


def test_empty_report_is_clean():
    assert empty_report().outcome == "clean"
