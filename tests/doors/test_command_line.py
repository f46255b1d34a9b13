"""``python -m jaxleak_magic``: statuses, formats, what goes where, and bad input. Every run is a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.doors.leaking import CLEAN, LEAKS, notebook


def jaxleak(*words, cwd=None, env=None, **kwargs):
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", **(env or {})}
    command = [sys.executable, "-m", "jaxleak_magic", *map(str, words)]
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", check=False, **kwargs
    )


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def check_json(*words, **kwargs):
    run = jaxleak("check", *words, "--format", "json", **kwargs)
    return run, json.loads(run.stdout)


def one_line(run):
    """The only line on stderr of a run that was refused."""
    assert run.returncode == 3
    assert run.stdout == ""
    (line,) = run.stderr.strip().splitlines()
    return line


def test_leaking_script(tmp_path):
    run, report = check_json(write(tmp_path / "cell.py", LEAKS))
    assert run.returncode == 1
    assert report["outcome"] == "leaks"
    (leak,) = report["leaks"]
    assert leak["variable"] == "y"
    assert (leak["created"]["line"], leak["stored"]["line"]) == (8, 9)
    assert leak["created"]["cell"] is None
    assert report["file"] == str(tmp_path / "cell.py")


def test_clean_script(tmp_path):
    run, report = check_json(write(tmp_path / "cell.py", CLEAN))
    assert (run.returncode, report["outcome"], report["leaks"]) == (0, "clean", [])


def test_script_saved_from_a_cell_keeps_its_numbers(tmp_path):
    run, report = check_json(write(tmp_path / "cell.py", "%%leakcheck -o r\n" + LEAKS))
    assert run.returncode == 1
    assert report["leaks"][0]["created"]["line"] == 8


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("x = 1\ny = = 2\n", "SyntaxError", 2),
        ("import no_such_module_anywhere\n", "ModuleNotFoundError", 1),
        ("x = 1\nraise ValueError('v')\n", "ValueError", 2),
        ("import sys\n\nsys.exit('sorry')\n", "SystemExit", 3),
        ("import sys\nsys.exit(2)\n", "SystemExit", 2),
    ],
)
def test_code_that_raises(tmp_path, source, kind, line):
    run, report = check_json(write(tmp_path / "cell.py", source))
    assert run.returncode == 2
    assert report["outcome"] == "error"
    assert (report["error"]["type"], report["error"]["line"]) == (kind, line)


@pytest.mark.parametrize("ending", ["sys.exit()", "sys.exit(0)", "sys.exit(None)"])
def test_a_script_that_exits_well_is_no_error(tmp_path, ending):
    run, report = check_json(write(tmp_path / "cell.py", f"{LEAKS}\nimport sys\n{ending}\n"))
    assert (run.returncode, report["error"]) == (1, None)
    assert check_json(write(tmp_path / "cell.py", f"import sys\n{ending}\n"))[0].returncode == 0
    assert check_json(notebook(tmp_path / "n.ipynb", f"%%leakcheck\nimport sys\n{ending}"))[0].returncode == 0


def test_a_leak_wins_over_an_error(tmp_path):
    run, report = check_json(write(tmp_path / "cell.py", LEAKS + "\n1 / 0\n"))
    assert run.returncode == 1
    assert report["error"]["type"] == "ZeroDivisionError"
    assert "ZeroDivisionError" in run.stderr
    assert "jaxleak_magic" not in run.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os\nos._exit(7)\n", "status 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "SIGKILL"),
    ],
)
def test_a_process_that_dies_is_an_error_that_says_so(tmp_path, source, words):
    run, report = check_json(write(tmp_path / "cell.py", source))
    assert run.returncode == 2
    assert words in report["error"]["message"]
    assert report["checked"]["checking_leaks"] is False


def test_output_of_the_code_stays_out_of_json(tmp_path):
    source = "import os\nprint('printed')\nos.write(1, b'written')\nos.system('echo from-a-child')\n"
    run, _ = check_json(write(tmp_path / "cell.py", source))
    for word in ("printed", "written", "from-a-child"):
        assert word in run.stderr
        assert word not in run.stdout


def test_output_of_the_code_comes_before_the_text_report(tmp_path):
    run = jaxleak("check", write(tmp_path / "cell.py", "print('printed')\n" + LEAKS))
    assert run.stdout.index("printed") < run.stdout.index("`y` leaked")


def test_the_script_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "beside.py", "value = 'beside'\n")
    source = """\
        import os, sys
        import beside
        assert __name__ == "__main__" and sys.modules["__main__"].beside is beside
        assert sys.argv == ["../cell.py"], sys.argv
        assert os.path.samefile(os.getcwd(), os.path.join(os.path.dirname(__file__), "elsewhere"))
        assert os.path.samefile(sys.path[0], os.path.dirname(__file__)), sys.path
        assert "" not in sys.path
        import dataclasses, pickle

        @dataclasses.dataclass
        class Point:
            x: int

        assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
        """
    lines = [line.removeprefix("        ") for line in source.splitlines()]
    write(tmp_path / "cell.py", "\n".join(lines))
    run, report = check_json("../cell.py", cwd=tmp_path / "elsewhere")
    assert report["error"] is None, report["error"]
    assert run.returncode == 0


def test_top_level_await_and_future_imports(tmp_path):
    source = (
        "from __future__ import annotations\nimport asyncio\nx: nowhere = await asyncio.sleep(0, 5)\nassert x == 5\n"
    )
    assert jaxleak("check", write(tmp_path / "cell.py", source)).returncode == 0


def test_functions_see_the_scripts_names(tmp_path):
    source = "def f():\n    return later\nlater = 5\nassert [f() for _ in range(2)] == [5, 5]\nf()"
    assert jaxleak("check", write(tmp_path / "cell.py", source)).returncode == 0


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_other_encodings_and_line_endings(tmp_path, newline):
    text = "# -*- coding: latin-1 -*-\nassert 'é' == chr(233)\n" + LEAKS
    run, report = check_json(write(tmp_path / "cell.py", text.replace("\n", newline).encode("latin-1")))
    assert run.returncode == 1, run.stderr
    assert report["leaks"][0]["created"]["line"] == 10


def test_byte_order_mark(tmp_path):
    assert jaxleak("check", write(tmp_path / "cell.py", b"\xef\xbb\xbfx = 1\n")).returncode == 0


# --- formats ---


def test_html(tmp_path):
    run = jaxleak("check", write(tmp_path / "cell.py", LEAKS), "--format", "html")
    assert run.returncode == 1
    assert run.stdout.startswith("<!doctype html>")
    assert "<script" not in run.stdout


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_output_file(tmp_path, form):
    target = tmp_path / "report"
    run = jaxleak("check", write(tmp_path / "cell.py", LEAKS), "--format", form, "--output", target)
    assert (run.returncode, run.stdout) == (1, "")
    assert "double" in target.read_text()


def test_text_in_a_terminal_that_knows_only_ascii(tmp_path):
    run = jaxleak("check", write(tmp_path / "cell.py", LEAKS), env={"PYTHONIOENCODING": "ascii"})
    assert run.returncode == 1, run.stderr
    assert run.stdout.isascii()


def test_keep_caches_and_no_fixes_are_passed_on(tmp_path):
    _, report = check_json(write(tmp_path / "cell.py", LEAKS), "--keep-caches", "--no-fixes")
    assert report["checked"]["retraced"] is False
    assert report["leaks"][0]["fixes"] == []


# --- several files, notebooks ---


def test_several_files_are_a_list_and_the_worst_status_wins(tmp_path):
    clean, leaks = write(tmp_path / "a.py", CLEAN), write(tmp_path / "b.py", LEAKS)
    broken = write(tmp_path / "c.py", "1 / 0\n")
    run, reports = check_json(clean, leaks, broken)
    assert [r["outcome"] for r in reports] == ["clean", "leaks", "error"]
    assert run.returncode == 1
    assert jaxleak("check", clean, broken).returncode == 2
    assert jaxleak("check", leaks, tmp_path / "none.py").returncode == 3


def test_notebook_with_magics_gives_a_report_for_each(tmp_path):
    path = notebook(
        tmp_path / "n.ipynb",
        "%load_ext jaxleak_magic",
        "def double(x):\n    y = 2 * x\n    kept.append(y)\n    return y",
        "%%leakcheck\nimport jax\nkept = []\njax.jit(double)(1.0)",
        "",
        "%%leakcheck -q\njax.jit(lambda x: x)(1.0)",
    )
    run, reports = check_json(path)
    assert run.returncode == 1, run.stderr
    assert [r["outcome"] for r in reports] == ["leaks", "clean"]
    assert [r["cell"] for r in reports] == [
        {"id": "cell-2", "execution_count": 3, "index": 2},
        {"id": "cell-4", "execution_count": 4, "index": 4},
    ]
    created = reports[0]["leaks"][0]["created"]
    assert created["cell"] == {"id": "cell-1", "execution_count": 2}
    assert (created["line"], created["source"]) == (2, "    y = 2 * x")
    assert reports[0]["file"] == str(path)


def test_notebook_without_magics_gives_a_report_for_every_code_cell(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "import jax\nkept = []", "", "jax.jit(kept.append)(1.0)", "1 / 0", "2 + 2")
    run, reports = check_json(path)
    assert run.returncode == 1, run.stderr
    assert [r["outcome"] for r in reports] == ["clean", "clean", "leaks", "error", "clean"]
    assert [r["cell"]["index"] for r in reports] == [0, 1, 2, 3, 4]


def test_notebook_runs_in_its_folder_with_magics_shell_lines_and_await(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "beside.py", "value = 'beside'\n")
    path = notebook(
        tmp_path / "sub" / "n.ipynb",
        "import os, beside, asyncio\nassert os.path.basename(os.getcwd()) == 'sub'\nlines = !echo hello",
        "%%leakcheck\nassert await asyncio.sleep(0, lines[0]) == 'hello'\n%time 1",
    )
    run, reports = check_json("sub/n.ipynb", cwd=tmp_path)
    assert [r["error"] for r in reports] == [None], run.stderr
    assert run.returncode == 0, path


def test_error_in_a_cell_that_is_not_checked(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "raise KeyError('unchecked')", "%%leakcheck\n1")
    run, reports = check_json(path)
    assert (run.returncode, [r["outcome"] for r in reports]) == (2, ["clean"])
    assert "KeyError" in run.stderr


def test_tag_of_cells_that_may_raise(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "1 / 0", "%%leakcheck\n1")
    data = json.loads(path.read_text())
    data["cells"][0]["metadata"]["tags"] = ["raises-exception"]
    path.write_text(json.dumps(data))
    assert jaxleak("check", path).returncode == 0


def test_name_of_a_report_and_line_form_in_a_notebook(tmp_path):
    path = notebook(
        tmp_path / "n.ipynb",
        "%load_ext jaxleak_magic",
        "%%leakcheck -o kept\nimport jax",
        "assert kept.outcome == 'clean'\nlist_of = []\n%leakcheck jax.jit(list_of.append)(1.0)\n%leakfix",
    )
    run, reports = check_json(path)
    assert [r["cell"]["index"] for r in reports] == [1]
    assert run.returncode == 2, run.stderr
    assert "leaked" in run.stderr
    assert "UsageError: the last report offers no fix" in run.stderr


def test_text_of_several_reports_has_headings(tmp_path):
    run = jaxleak("check", notebook(tmp_path / "n.ipynb", "%%leakcheck\n1", "%%leakcheck\n2"))
    assert run.stdout.count("No leaked tracers.") == 2
    assert "n.ipynb" in run.stdout
    assert "In [2]" in run.stdout


@pytest.mark.parametrize("source", ["%%leakcheck --nope\n1", "%%leakcheck\n"])
def test_a_cell_with_wrong_options_or_no_body_still_gets_its_report(tmp_path, source):
    run, reports = check_json(notebook(tmp_path / "n.ipynb", source))
    assert run.returncode == 2
    assert [r["error"]["type"] for r in reports] == ["UsageError"]


def test_notebook_of_an_older_minor_format_without_ids(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "%%leakcheck\n1", nbformat_minor=4)
    data = json.loads(path.read_text())
    del data["cells"][0]["id"]
    path.write_text(json.dumps(data))
    run, reports = check_json(path)
    assert run.returncode == 0
    assert reports[0]["cell"] == {"id": None, "execution_count": 1, "index": 0}


def test_empty_notebook(tmp_path):
    run, reports = check_json(notebook(tmp_path / "n.ipynb"))
    assert (run.returncode, reports) == (0, [])


# --- bad input ---


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.py", None, "no such file"),
        ("missing.ipynb", None, "no such file"),
        ("bytes.py", b"x = 1\n\xff\xfe\n", "UTF-8"),
        ("bytes.ipynb", b"\xff{}", "UTF-8"),
        ("coding.py", b"# coding: klingon\n", "klingon"),
        ("text.ipynb", b"print(1)\n", "not JSON"),
        ("list.ipynb", b"[]", "no list of cells"),
        ("old.ipynb", b'{"worksheets": [], "nbformat": 3}', "format 3"),
        ("odd.ipynb", b'{"cells": [{"cell_type": "code", "source": 5}]}', "source"),
        ("deep.ipynb", b"[" * 100_000, "not JSON"),
        ("cell.txt", b"x = 1", ".ipynb"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, content, words):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    line = one_line(jaxleak("check", path))
    assert str(path) in line
    assert words in line


def test_folder_and_unreadable_file(tmp_path):
    (tmp_path / "folder.py").mkdir()
    assert "folder" in one_line(jaxleak("check", tmp_path / "folder.py"))


@pytest.mark.parametrize(
    "words", [[], ["check"], ["nope"], ["check", "a.py", "--nope"], ["check", "a.py", "--format", "pdf"], ["fix"]]
)
def test_usage_errors_have_status_3(words):
    run = jaxleak(*words)
    assert run.returncode == 3
    assert "usage: " in run.stderr
    assert "Traceback" not in run.stderr


def test_help_has_status_0_and_tells_the_statuses():
    run = jaxleak("check", "--help")
    assert run.returncode == 0
    assert "exit status" in run.stdout


def test_output_in_a_folder_that_is_not_there(tmp_path):
    line = one_line(jaxleak("check", write(tmp_path / "c.py", "print('ran')"), "--output", tmp_path / "no" / "r.html"))
    assert "does not exist" in line


def test_output_that_cannot_be_written_goes_to_stdout(tmp_path):
    run = jaxleak("check", write(tmp_path / "c.py", LEAKS), "--output", tmp_path)
    assert run.returncode == 3
    assert "`y` leaked" in run.stdout
    assert "cannot be written" in run.stderr


def test_null_bytes_in_the_source(tmp_path):
    run, report = check_json(write(tmp_path / "c.py", b"x = '\0'\n"))
    assert run.returncode == 2
    assert report["error"]["type"] in ("SyntaxError", "ValueError")


def test_an_exception_that_cannot_be_printed(tmp_path):
    source = "class Bad(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Bad\n"
    run, report = check_json(write(tmp_path / "c.py", source))
    assert run.returncode == 2
    assert report["error"]["type"] == "Bad"
