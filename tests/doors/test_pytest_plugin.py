"""The pytest plugin, run by pytest in folders of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points

import pytest

from tests.conftest import REPOSITORY

pytest_plugins = ["pytester"]

LIBRARY = """
kept = []
def double(x):
    y = 2 * x
    kept.append(y)
    return y
"""

INSTALLED = any(point.name == "jaxleak" for point in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "jaxleak_magic.pytest_plugin")

HEADER = "import jax, jax.numpy as jnp, pytest, unittest, lib\n"


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest with the plugin on a test file, in a process of its own; gives its result."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makepyfile(lib=LIBRARY)

    def runs(tests, *args):
        pytester.makepyfile(HEADER + tests)
        return pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *args)

    return runs


MANY = """
@pytest.mark.parametrize("n", range(1, 7))
def test_many(n):
    jax.jit(lib.double)(jnp.ones(n))

def test_other(model):
    def f(x):
        model.h = x
        return x
    jax.vmap(f)(jnp.ones(2))

class Model:
    pass

@pytest.fixture
def model():
    return Model()

def test_clean():
    jax.jit(lambda x: x + 1)(1.0)

def test_local():
    mine = []
    jax.jit(lambda x: (mine.append(x), x)[1])(1.0)
"""


def test_off_unless_asked(run):
    run(MANY).assert_outcomes(passed=9)


def test_a_leak_fails_its_test_and_root_causes_are_told_once(run):
    result = run(MANY, "--leakcheck")
    result.assert_outcomes(failed=7, passed=2)
    out = result.stdout.str()
    # Under CI pytest repeats whole messages in its short summary.
    assert out.partition("short test summary info")[0].count("Who keeps it alive") == 2
    assert "Traceback" not in out and "jaxleak_magic/" not in out and "hidden" not in out
    result.stdout.fnmatch_lines(
        [
            "*_ test_many[[]1[]] _*",
            "`y` leaked out of `jit(double)`.",
            "*_ test_many[[]2[]] _*",
            "`y` leaked out of `jit(double)`, kept alive by `kept[[]1[]]`.",
            "  The whole report is at *::test_many[[]1[]].",
            "*= leaked tracers: 7 tests, 2 root causes =*",
            "6 tests: `y` leaked out of `jit(double)`, kept alive by *",
            "    stored in lib.py, line 4",
            "    *::test_many[[]1[]], *::test_many[[]2[]], *::test_many[[]3[]] and 3 more",
            "1 test: `x` leaked out of `vmap(f)`, kept alive by `model.h`",
        ]
    )


def test_several_workers(run):
    result = run(MANY, "--leakcheck", "-n", "2")
    result.assert_outcomes(failed=7, passed=2)
    result.stdout.fnmatch_lines(["*= leaked tracers: 7 tests, 2 root causes =*", "6 tests: `y` leaked *"])


def test_the_marker_asks_for_one_test(run):
    result = run("""
@pytest.mark.leakcheck
def test_marked():
    jax.jit(lib.double)(1.0)

def test_not_marked():
    jax.jit(lib.double)(1.0)
""")
    result.assert_outcomes(failed=1, passed=1)


def test_the_fixture_checks_a_block(run):
    tests = """
def test_leaks(leakcheck):
    with leakcheck():
        jax.jit(lib.double)(1.0)

def test_outside_the_block(leakcheck):
    with leakcheck() as report:
        pass
    jax.jit(lib.double)(1.0)
    assert report.outcome == "clean"

def test_raises(leakcheck):
    with pytest.raises(ValueError), leakcheck():
        raise ValueError

@pytest.mark.leaks(reason="known")
def test_known(leakcheck):
    with leakcheck(keep_caches=True):
        jax.jit(lib.double)(jnp.ones(7))
"""
    run(tests).assert_outcomes(failed=1, passed=2, xfailed=1)
    run(tests, "--leakcheck").assert_outcomes(failed=1, passed=2, xfailed=1)


KNOWN = """
@pytest.mark.leaks(reason="bug 12")
def test_known():
    jax.jit(lib.double)(1.0)

@pytest.mark.leaks(reason="bug 12")
def test_consequence():
    jax.jit(lib.double)(1.0)
    lib.kept[-1] + 1

@pytest.mark.leaks(reason="bug 12")
def test_other_error():
    jax.jit(lib.double)(1.0)
    assert 1 == 2

@pytest.mark.leaks("mended")
def test_gone():
    pass

@pytest.mark.leaks(reason="mended", strict=True)
def test_gone_strict():
    pass
"""


def test_known_leaks(run):
    result = run(KNOWN, "--leakcheck", "-rxX")
    result.assert_outcomes(xfailed=2, xpassed=1, failed=2)
    result.stdout.fnmatch_lines(["XFAIL *::test_known - bug 12", "XPASS *::test_gone - mended"])
    result.stdout.fnmatch_lines(["*XPASS(strict)] no leak: mended"])
    result.stdout.fnmatch_lines(["*assert 1 == 2", "*Captured leakcheck call*", "`y` leaked out of*"])


def test_known_leaks_where_nothing_is_checked(run):
    run(KNOWN).assert_outcomes(passed=3, failed=2)


def test_strict_by_the_ini_option(run, pytester):
    pytester.makeini("[pytest]\nxfail_strict = true")
    run("@pytest.mark.leaks(reason='r')\ndef test_gone(): pass", "--leakcheck").assert_outcomes(failed=1)


def test_runxfail_makes_a_known_leak_a_failure(run):
    result = run("@pytest.mark.leaks(reason='r')\ndef test(): jax.jit(lib.double)(1.0)", "--leakcheck", "--runxfail")
    result.assert_outcomes(failed=1)


def test_an_error_stays_what_it_is_and_the_report_stands_below(run):
    result = run(
        """
def test_used():
    jax.jit(lib.double)(1.0)
    lib.kept[-1] + 1

def test_skipped():
    pytest.skip("no")

def test_xfails():
    pytest.xfail("no")
""",
        "--leakcheck",
    )
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["*UnexpectedTracerError*", "*Captured leakcheck call*", "`y` leaked out of `jit(double)`."]
    )


def test_unittest_classes(run):
    result = run(
        """
class Test(unittest.TestCase):
    def test_self(self):
        def f(x):
            self.h = x
            return x
        jax.vmap(f)(jnp.ones(2))

    def test_fails(self):
        self.assertEqual(1, 2)

    @pytest.mark.leaks(reason="known")
    def test_known(self):
        jax.jit(lib.double)(1.0)
        lib.kept[-1] + 1
""",
        "--leakcheck",
    )
    result.assert_outcomes(failed=2, xfailed=1)
    result.stdout.fnmatch_lines(["*kept alive by `self.h`*", "*leaked tracers: 1 test, 1 root cause*"])


def test_how_much_is_traced_anew(run):
    tests = """
step = jax.jit(lib.double)

def test_first():
    step(1.0)

def test_second():
    step(1.0)
"""
    run(tests, "--leakcheck").assert_outcomes(failed=2)
    run(tests, "--leakcheck", "--leakcheck-how", "keep-caches").assert_outcomes(failed=1, passed=1)
    run(tests, "--leakcheck", "--leakcheck-how", "fast").assert_outcomes(failed=1, passed=1)


def test_strict_markers_and_warnings_as_errors(run):
    result = run("@pytest.mark.leaks\n@pytest.mark.leakcheck\ndef test(): pass", "--strict-markers", "-W", "error")
    assert result.ret == 0


def test_an_error_of_ours_does_not_fail_the_test(run, pytester):
    pytester.makeconftest("""
import jaxleak_magic.checked_run as room

def finish(self, error=None):
    self.stop()
    raise RuntimeError("broken")

room.CheckedRun.finish = finish
""")
    result = run("def test(): pass", "--leakcheck", "-s")
    result.assert_outcomes(passed=1)
    result.stderr.fnmatch_lines(["*was not checked: an error inside jaxleak-magic, RuntimeError: broken*"])


def test_pytest_starts_light():
    heavy = ("jax", "numpy", "libcst", "IPython")
    code = f"import sys, jaxleak_magic.pytest_plugin; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.split() == []


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"jaxleak": "jaxleak_magic.pytest_plugin"}
