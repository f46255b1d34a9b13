"""No alarm on clean programs: train steps of the libraries, solvers, callbacks, pallas, checkify, eight devices.

Each runs in a process of its own, as in a notebook: an earlier cell defines, the cell runs once, then it is checked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.diagnose.clean_programs import PROGRAMS, CleanProgram

_RUN = """
import json, sys, warnings
warnings.simplefilter("ignore")
from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.diagnose.sources import SourceBook

setup, cell = json.load(sys.stdin)
namespace = {"__name__": "__main__"}
exec(compile(setup, "<setup>", "exec"), namespace)
exec(compile(cell, "<cell>", "exec"), namespace)
told = []
for fast in (False, True):
    book = SourceBook()
    book.add("<cell>", SourceText(cell))
    run = CheckedRun(book, namespace, "<cell>", CheckOptions(fast=fast))
    run.start()
    error = None
    try:
        exec(compile(cell, "<cell>", "exec"), namespace)
    except Exception as raised:
        error = raised
    report = run.finish(error)
    told.append([report.outcome, [(leak.verdict, leak.variable) for leak in report.leaks], str(report.error)])
print("TOLD" + json.dumps(told))
"""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_clean(program: CleanProgram) -> None:
    missing = [name for name in program.needs if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("JAXLEAK_ALL_LIBRARIES"):
        pytest.fail(f"not installed: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    ran = subprocess.run(
        [sys.executable, "-c", _RUN],
        env=environment,
        input=json.dumps([program.setup, program.cell]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TOLD" in ran.stdout, ran.stderr[-3000:]
    for outcome, found, error in json.loads(ran.stdout.rpartition("TOLD")[2]):
        assert (outcome, error) == ("clean", "None")
        assert [each for each in found if each[0] != "library_cache"] == []
