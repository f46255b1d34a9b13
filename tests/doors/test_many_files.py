"""`jaxleak check` on folders and many files at once, and a notebook in its own kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from jaxleak_magic.cli.inputs import InputError, files_of
from jaxleak_magic.cli.many_files import summary_lines, telling
from tests.conftest import REPOSITORY
from tests.doors.leaking import CLEAN, notebook
from tests.doors.test_command_line import check_json, jaxleak, write

LIBRARY = "kept = []\ndef double(x):\n    y = 2 * x\n    kept.append(y)\n    return y\n"
USES = "import jax, lib\njax.jit(lib.double)({0}.0)\nprint('out', {0})\n"


@pytest.fixture
def project(tmp_path):
    """A folder with a library that leaks, three scripts that use it, one that raises, and a notebook."""
    write(tmp_path / "lib.py", LIBRARY)
    for i in (1, 2, 3):
        write(tmp_path / f"s{i}.py", USES.format(i))
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "bad.py", "1 / 0\n")
    notebook(tmp_path / "n.ipynb", "import jax, lib", "jax.jit(lib.double)(1.0)", "1 / 0", "print('after')")
    for left_out in (".ipynb_checkpoints", "__pycache__"):
        (tmp_path / left_out).mkdir()
        write(tmp_path / left_out / "old.py", "raise SystemExit(9)")
    return tmp_path


def test_a_folder_several_at_once_one_summary(project):
    run = jaxleak("check", ".", "--jobs", 2, cwd=project)
    assert run.returncode == 1
    out = run.stdout
    assert out.index("out 1") < out.index("out 2") < out.index("out 3") < out.index("Summary")
    assert out.count("Who keeps it alive") == 1, "each root cause is told once"
    summary = out[out.index("Summary") :].splitlines()
    assert summary[2:] == [
        "6 files: 4 with leaks, 1 that raised, 1 clean.",
        "1 root cause:",
        "4 files: `y` leaked out of `jit(double)`, kept alive by `kept[0]`",
        "    stored in lib.py, line 4",
        "    n.ipynb, s1.py, s2.py and 1 more",
    ]
    assert "[6/6]" in run.stderr and "s1.py: 1 leak" in run.stderr and "bad.py: raised" in run.stderr
    assert "old.py" not in run.stderr


def test_json_is_a_list_in_the_order_of_the_files_with_causes(project):
    run, reports = check_json("s2.py", "s1.py", "lib.py", "--jobs", 2, cwd=project)
    assert [r["file"] for r in reports] == ["s2.py", "s1.py", "lib.py"]
    assert [r["outcome"] for r in reports] == ["leaks", "leaks", "clean"]
    causes = {leak["cause"] for r in reports for leak in r["leaks"]}
    assert causes == {"container_append | lib.py, line 4"}
    assert "out 1" in run.stderr


def test_html_has_the_summary_above_the_reports(project):
    run = jaxleak("check", "s1.py", "s2.py", "--format", "html", "--output", "page.html", "-j", 2, cwd=project)
    assert run.returncode == 1
    page = (project / "page.html").read_text()
    assert page.index("2 files: 2 with leaks") < page.index("Who keeps it alive")


def test_a_progress_bar_where_stderr_is_a_terminal(project):
    if os.name != "posix":
        pytest.skip("needs a pseudo-terminal")
    outer, inner = os.openpty()
    command = [sys.executable, "-m", "jaxleak_magic", "check", "s1.py", "lib.py", "-j", "2"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "TERM": "xterm"}
    with subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=inner) as process:
        os.close(inner)
        seen = b""
        while True:
            try:
                seen += os.read(outer, 4096)
            except OSError:  # the other end is closed
                break
        process.wait()
    os.close(outer)
    assert process.returncode == 1
    assert b"2/2" in seen and b"s1.py: 1 leak" in seen and b"[1/2]" not in seen


def test_which_files_a_folder_stands_for(project, monkeypatch):
    monkeypatch.chdir(project)
    assert files_of(["sub", "s1.py", "s1.py", "none.py"]) == ["sub/bad.py", "s1.py", "none.py"]
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    write(project / "env" / "x.py", "")
    with pytest.raises(InputError, match="env: a folder with no"):
        files_of(["env"])


def test_jobs_is_at_least_one():
    assert jaxleak("check", "x.py", "--jobs", "0").returncode == 3


def test_keep_going_or_not(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "x = 1", "1 / 0", "print('after')")
    run, reports = check_json(path)
    assert [r["outcome"] for r in reports] == ["clean", "error", "clean"]
    assert "after" in run.stderr
    run, reports = check_json(path, "--no-keep-going")
    assert [r["outcome"] for r in reports] == ["clean", "error"]
    assert "after" not in run.stderr
    assert run.returncode == 2


def test_a_notebook_runs_in_a_kernel(tmp_path):
    path = notebook(
        tmp_path / "n.ipynb",
        "print(type(get_ipython()).__name__)\nfrom IPython.display import display, HTML\ndisplay(HTML('<b>'))",
    )
    run = jaxleak("check", path)
    assert run.returncode == 0, run.stderr
    assert "ZMQInteractiveShell" in run.stdout and "HTML object" in run.stdout
    assert run.stderr == ""


def test_a_kernel_that_dies_is_an_error_that_says_so(tmp_path):
    path = notebook(
        tmp_path / "n.ipynb", "import jax\nkept = []\njax.jit(kept.append)(1.0)", "import os\nos._exit(3)", "2"
    )
    run, reports = check_json(path)
    assert run.returncode == 1, run.stderr
    assert [r["outcome"] for r in reports] == ["leaks", "error"]
    assert reports[1]["error"]["type"] == "ProcessEnded"
    assert reports[1]["cell"]["index"] == 1


def test_a_kernel_that_is_not_installed(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "x = 1")
    data = json.loads(path.read_text())
    data["metadata"]["kernelspec"]["name"] = "of-another-machine"
    path.write_text(json.dumps(data))
    run, reports = check_json(path)
    assert [r["outcome"] for r in reports] == ["clean"]
    assert "its kernel 'of-another-machine' is not installed here" in run.stderr


def test_a_notebook_of_another_language_is_refused(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "x <- 1")
    data = json.loads(path.read_text())
    data["metadata"]["kernelspec"]["language"] = "R"
    path.write_text(json.dumps(data))
    run = jaxleak("check", path)
    assert run.returncode == 3
    assert "a notebook in R" in run.stderr


def test_what_is_told_of_many_reports(tmp_path):
    run, _ = check_json(write(tmp_path / "clean.py", CLEAN))
    assert run.returncode == 0
    assert telling([]) == []
    assert summary_lines([]) == ["0 files: 0 with leaks, 0 that raised, 0 clean."]
