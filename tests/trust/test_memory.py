"""Many checks in one process keep no tracer and no trace, and grow as the same cells do without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


def measured(how: str, cells: int) -> dict[str, float]:
    """What each cell leaves behind, by the benchmark of that name, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "benchmarks/memory.py", "--here", "--cells", str(cells), "--how", how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_growth(cells: int) -> None:
    cold, checked = measured("cold", cells), measured("checked", cells)
    plain, fast = measured("plain", cells), measured("fast", cells)
    assert checked["tracers"] == fast["tracers"] == 0
    assert cold["objects"] > 100, "the cell was not traced anew: there is nothing to compare with"
    assert checked["objects"] <= cold["objects"] * 1.01 + 1
    assert fast["objects"] <= plain["objects"] + 0.5


def test_forty_checks_grow_as_cold_cells_do():
    check_growth(40)


@pytest.mark.nightly
def test_a_thousand_checks_grow_as_cold_cells_do():
    check_growth(1000)
