"""Pasted messages at the doors: ``%%leakexplain``, ``%leakcheck --last`` and ``jaxleak explain``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import REPOSITORY

CELL = "stash = []\ndef f(x):\n    y = x * 2\n    stash.append(y)\n    return y\n"
MESSAGE = """Leaked trace BatchTrace. Leaked tracer(s):

VmapTracer(aval=float32[], batched=float32[3])
This BatchTracer with object id 1 was created on line:
  {file}:3:8 (f)
<BatchTracer 1> is referred to by <list 2>[0]
<list 2> is referred to by <dict 3>['stash']
<dict 3> is referred to by <InteractiveShell 4>._user_ns
<InteractiveShell 4> is referred to by app.shell
nobody knows this line
"""


def explain(*words, text=None):
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "jaxleak_magic", "explain", *map(str, words)]
    return subprocess.run(command, env=env, input=text, capture_output=True, text=True, encoding="utf-8", check=False)


def test_cell_magic_names_the_lines_of_this_notebook(shell, capsys):
    shell.run_cell(CELL, store_history=True)
    shell.run_cell("%%leakexplain -o told\n" + MESSAGE.format(file="/tmp/ipykernel_1/2.py"), store_history=True)
    (leak,) = shell.user_ns["told"].leaks
    assert (leak.created.cell.execution_count, leak.created.line, leak.created.source) == (1, 3, "    y = x * 2")
    assert (leak.stored.line, leak.variable, leak.holder.name) == (4, "y", "stash")
    assert "nobody knows this line" in capsys.readouterr().out


def test_cell_magic_refuses_what_it_cannot_do(shell, capsys):
    shell.run_cell("%%leakexplain --raise\nx")
    assert "takes -o NAME" in capsys.readouterr().err


def test_last_exception(shell, monkeypatch):
    class Loud(ValueError):
        def __str__(self):
            raise AssertionError("was run")

    try:
        exec(compile("\n\nraise Loud('no')", "/home/user/cell.py", "exec"), {"Loud": Loud})
    except Loud as error:
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
    shell.run_line_magic("leakcheck", "--last -q -o last")
    report = shell.user_ns["last"]
    assert (report.error.type, report.error.message, report.error.line, report.error.kind) == (
        "Loud",
        "no",
        3,
        "not_tracer_related",
    )


def test_command_line(tmp_path):
    source = tmp_path / "cell.py"
    source.write_text("%%leakcheck\n" + CELL, encoding="utf-8")
    message = tmp_path / "message.txt"
    message.write_text(MESSAGE.format(file="/home/user/cell.py"), encoding="utf-8")
    run = explain(message, "--source", source, "--format", "json")
    (leak,) = json.loads(run.stdout)["leaks"]
    assert (run.returncode, run.stderr) == (0, "")
    assert (leak["variable"], leak["trace_stack"][-1]["transform"], leak["created"]["line"]) == ("y", "vmap", 3)


@pytest.mark.parametrize(("form", "start"), [("text", "A value made in `f` leaked"), ("html", "<!doctype html>")])
def test_command_line_reads_stdin(form, start):
    run = explain("-", "--format", form, text=MESSAGE.format(file="/home/user/cell.py"))
    assert run.returncode == 0 and run.stdout.startswith(start) and "nobody knows this line" in run.stdout


def test_command_line_without_the_file(tmp_path):
    run = explain(tmp_path / "none.txt")
    assert run.returncode == 3 and len(run.stderr.strip().splitlines()) == 1


def test_last_in_the_cell_form_is_refused_and_the_cell_does_not_run(shell: Any, capsys: Any) -> None:
    shell.run_cell("%%leakcheck --last\nran = True\n")
    assert "ran" not in shell.user_ns
    assert "on a line of its own" in capsys.readouterr().err
