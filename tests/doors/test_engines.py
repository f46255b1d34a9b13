"""%%px above %%leakcheck on a real cluster of two engines."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from jaxleak_magic.show.by_engine import engines_bundle
from tests.conftest import REPOSITORY
from tests.doors.fakes import empty_report
from tests.show.sample_reports import one_leak

CLIENT = """
import json, sys
import ipyparallel as ipp
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance(colors="nocolor" if sys.argv[1] == "new" else "NoColor")

def run(text):
    with capture_output(display=False) as shown:
        shell.run_cell(text, store_history=True)
    return shown.stdout + shown.stderr

said = {}
with ipp.Cluster(n=2, log_level=40) as client:
    client[:].block = True
    run("%load_ext jaxleak_magic")
    client[:].scatter("rank", [0, 1], flatten=True, block=True)
    run('''%%px
import jax, jax.numpy as jnp
kept = []
def double(x):
    y = 2 * x
    kept.append(y)
    return y''')
    said["both"] = run("%%px\\n%%leakcheck\\njax.jit(double)(1.0)")
    said["one"] = run("%%px\\n%%leakcheck\\nif rank == 1:\\n    jax.vmap(double)(jnp.ones(2))")
    said["again"] = run("%leakcheck --text")
    said["target"] = run("%%px --targets 0\\n%%leakcheck\\njax.jit(double)(jnp.ones(3))")
    said["raises"] = run("%%px\\n%%leakcheck\\n1 / 0")
    said["unchecked"] = run("%%px\\nprint('plain')")
    said["each"] = run("%px %leakcheck")
print("SAID", json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    pytest.importorskip("ipyparallel")
    import IPython

    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CLIENT, "new" if IPython.version_info >= (9,) else "old"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert lines, done.stderr
    return json.loads(lines[0].removeprefix("SAID "))


@pytest.mark.kernel
def test_a_leak_on_both_engines_is_told_once(said):
    out = said["both"]
    assert "2 engines: 2 with leaks, 0 that raised, 0 clean." in out
    assert "Engines 0, 1\n============\n`y` leaked out of `jit(double)`." in out
    assert out.count("Who keeps it alive") == 1
    assert "internal" not in out and "error inside" not in out


@pytest.mark.kernel
def test_a_leak_on_one_engine_names_it(said):
    assert "2 engines: 1 with leaks, 0 that raised, 1 clean." in said["one"]
    assert "Engine 1\n========\n`y` leaked out of `vmap(double)`." in said["one"]
    assert "Engine 0" not in said["one"]
    assert "`y` leaked out of `vmap(double)`." in said["again"]


@pytest.mark.kernel
def test_only_the_targets_are_asked(said):
    assert "1 engine: 1 with leaks" in said["target"]


@pytest.mark.kernel
def test_errors_on_engines(said):
    assert "2 engines: 0 with leaks, 2 that raised, 0 clean." in said["raises"]
    assert "Engines 0, 1" in said["raises"]


@pytest.mark.kernel
def test_other_cells_are_left_alone_and_engines_show_their_own_reports_when_asked(said):
    assert "plain" in said["unchecked"] and "engines:" not in said["unchecked"]
    assert said["each"].count("the code raised `ZeroDivisionError`") == 2


def test_one_output_by_rank():
    leaking = one_leak()
    other = dataclasses.replace(leaking, jax_version="9.9.9")
    bundle = engines_bundle({0: leaking, 1: empty_report(), 2: other})
    assert bundle["text/plain"].startswith("3 engines: 2 with leaks, 0 that raised, 1 clean.")
    assert "Engines 0, 2\n" in bundle["text/plain"]
    assert "9.9.9" not in bundle["text/html"]
