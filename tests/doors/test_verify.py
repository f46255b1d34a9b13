"""``--verify``: what is said of a fix that was run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jaxleak_magic.cli.fresh_process import CellReport, Job, Outcome, Replaced
from jaxleak_magic.cli.inputs import read_input
from jaxleak_magic.cli.results import Results, first_difference, plain_results
from jaxleak_magic.cli.verify import source_with, verified
from jaxleak_magic.diagnose.model import Checked, ErrorInfo, Leak, Report, SourceText
from jaxleak_magic.rewrite import propose_fixes
from tests.doors.leaking import notebook
from tests.doors.test_command_line import check_json, jaxleak, write
from tests.rewrite.made_up_leaks import made_up_leak

LEAKY = """\
import jax
import jax.numpy as jnp

plans = {}

@jax.jit
def setup(k):
    stiffness = 2.0 * k
    def advance(x):
        return x - stiffness * x
    plans["euler"] = advance
    return stiffness

stiffness = setup(3.0)
moved = plans["euler"](1.0)
"""


def report(leaks: tuple[Leak, ...], error: ErrorInfo | None = None) -> Outcome:
    source = SourceText(LEAKY, file="cell.py")
    return Outcome((CellReport(Report("0", "3", "cell.py", Checked(True, True, True), leaks, error, source=source)),))


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    monkeypatch.chdir(tmp_path)
    Path("cell.py").write_text(LEAKY)
    source = SourceText(LEAKY, file="cell.py")
    leak = made_up_leak(source, "advance", ("stiffness",))
    fixes = propose_fixes(leak, [source], source)
    assert [fix.refusal for fix in fixes] == [None]
    return report((dataclasses.replace(leak, fixes=fixes),))


def try_out(offered: Outcome, after: Outcome, plain: Outcome, without_jit: Outcome | None = None):
    """The fix after its trial, in which the runs give these outcomes."""
    answers = {"check": after, "plain": plain, "without_jit": without_jit or plain}

    def run(job: Job) -> Outcome:
        assert bool(job.replaced) == (job.how == "check")
        return answers[job.how]

    (cell,) = verified(offered, Job("cell.py"), run).reports
    (leak,) = cell.report.leaks
    (fix,) = leak.fixes
    return fix


def with_results(outcome: Outcome, results: Results, raised: bool = False) -> Outcome:
    return dataclasses.replace(outcome, results=results, raised=raised)


CLEAN = with_results(report(()), {"moved": (-5.0,), "extra": (1.0,)})


def test_the_same_results(offered: Outcome):
    fix = try_out(offered, CLEAN, Outcome((), results={"moved": (-5.00001,), "other": (2.0,)}))
    assert (fix.checked, fix.refusal) == ("same_results", None)
    assert fix.source is not None


def test_other_results_are_no_fix(offered: Outcome):
    fix = try_out(offered, CLEAN, Outcome((), results={"moved": (-5.1,)}))
    assert fix.refusal is not None and "`moved` came out different" in fix.refusal
    assert (fix.source, fix.edits, fix.checked) == (None, (), None)


def test_where_the_original_raises_it_is_run_without_jit(offered: Outcome):
    raised = Outcome((), raised=True, results={"moved": (7.0,)})
    fix = try_out(offered, CLEAN, raised, Outcome((), results={"moved": (-5.0,)}))
    assert fix.checked == "same_results"


def test_nothing_to_compare(offered: Outcome):
    assert try_out(offered, CLEAN, Outcome((), results={"other": (1.0,)})).checked == "leak_free"
    assert try_out(offered, CLEAN, Outcome((), raised=True)).checked == "leak_free"


def test_a_rewrite_that_still_leaks(offered: Outcome):
    fix = try_out(offered, offered, CLEAN)
    assert fix.refusal is not None and "still leaks" in fix.refusal


def test_a_rewrite_that_raises(offered: Outcome):
    error = ErrorInfo("TypeError", "advance() takes 1 argument\nmore", 3, None, "not_tracer_related")
    fix = try_out(offered, report((), error), CLEAN)
    assert fix.refusal == "A rewrite was run and raised TypeError: advance() takes 1 argument"


def test_a_process_that_died_says_nothing(offered: Outcome):
    error = ErrorInfo("ProcessEnded", "", None, None, "not_tracer_related")
    assert try_out(offered, report((), error), CLEAN).checked == "not_checked"


def test_numbers_of_a_namespace():
    namespace = {"x": 1.5, "many": [1, (True, 2.0)], "text": "no", "_hidden": 1.0, "mixed": [1, "a"]}
    namespace["table"] = {"b": 2, "a": 1}
    found = plain_results(namespace, last=3 + 4j)
    assert found == {"x": (1.5,), "many": (1.0, 1.0, 2.0), "table": (1.0, 2.0), "_": (3.0, 4.0)}
    assert first_difference(found, {"x": (1.5,), "many": (1.0, 1.0)}) == "many"


def test_new_texts_keep_the_magic_line(tmp_path: Path):
    script = tmp_path / "cell.py"
    script.write_text("%%leakcheck -o r\nx = 1\n")
    source = source_with(read_input(script), (Replaced(None, "x = 2\n"),))
    assert getattr(source, "text", None) == "%%leakcheck -o r\nx = 2\n"


def test_a_script_is_really_run(tmp_path: Path):
    done = jaxleak("fix", write(tmp_path / "cell.py", LEAKY), "--verify")
    assert done.returncode == 0, done.stderr
    assert "no leak, and the same results" in done.stderr


def test_a_notebook_is_really_run(tmp_path: Path):
    first, _, second = LEAKY.partition("stiffness = setup")
    path = notebook(tmp_path / "cells.ipynb", first, "%%leakcheck\nstiffness = setup" + second)
    done, (checked,) = check_json(path, "--verify")
    fixes = [fix for leak in checked["leaks"] for fix in leak["fixes"]]
    assert [fix["checked"] for fix in fixes] == ["same_results"], done.stderr
