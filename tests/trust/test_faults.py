"""What goes wrong around a check: each time the process is as before, and the user is told what there is not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import jax
import pytest

from jaxleak_magic import checking
from tests.conftest import REPOSITORY
from tests.trust.process_state import process_state

kept = []


def store(x):
    kept.append(x)
    return 2 * x


@pytest.fixture(autouse=True)
def state_is_as_before():
    kept.clear()
    before = process_state()
    yield
    assert process_state() == before
    kept.clear()


def new_function():
    return jax.jit(lambda x: store(x))


def fresh_python(code: str, *args: str, **how) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", **how.pop("env", {})}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False, **how)


PLACES_OF_OURS = [
    "jaxleak_magic.diagnose.leaks.find_leaks",
    "jaxleak_magic.diagnose.kept_tracers.find_holders",
    "jaxleak_magic.show.text.render_text",
    "jaxleak_magic.show.html.render_html",
    "jaxleak_magic.rewrite.proposing.Case",
]


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OSError(28, "No space left on device"), SystemError])
@pytest.mark.parametrize("place", PLACES_OF_OURS)
def test_a_fault_of_ours_never_reaches_the_cell(shell, capsys, monkeypatch, place, error):
    def fails(*args, **kwargs):
        raise error

    shell.run_cell("import jax\nkept = []\ndef f(x):\n    kept.append(x)\n    return 2 * x", store_history=True)
    before = process_state(shell)
    monkeypatch.setattr(place, fails)
    result = shell.run_cell("%%leakcheck -o report\nvalue = jax.jit(f)(1.0)\nvalue + 1", store_history=True)
    monkeypatch.undo()
    assert result.success and result.result == 3.0 and shell.user_ns["value"] == 2.0
    said = "".join(capsys.readouterr())
    assert "jaxleak-magic" in said, said
    assert process_state(shell) == before


def test_recursion_limit_in_the_users_code():
    def deep(n, x):
        return deep(n + 1, x) + store(x)

    with pytest.raises(RecursionError), checking() as report:
        jax.jit(lambda x: deep(0, x))(1.0)
    assert report.error.type == "RecursionError"


def test_a_check_near_the_recursion_limit():
    """The search does not recurse as deep as the heap; what it needs is there, or the block is told."""

    def at_depth(n):
        if n:
            return at_depth(n - 1)
        with checking() as report:
            new_function()(1.0)
        return report

    assert at_depth(400).outcome == "leaks"


def test_exit_in_a_checked_block():
    with pytest.raises(SystemExit), checking() as report:
        new_function()(1.0)
        sys.exit(3)
    assert report.outcome == "leaks"


def test_two_threads_that_check_at_once():
    inside, go_on, said = threading.Event(), threading.Event(), []

    def second():
        inside.wait(30)
        try:
            with checking():
                said.append("ran")
        except RuntimeError as error:
            said.append(str(error))
        go_on.set()

    thread = threading.Thread(target=second)
    thread.start()
    with checking() as report:
        inside.set()
        new_function()(1.0)
        assert go_on.wait(30)
    thread.join()
    assert said == ["another leak check is running in this process: one cannot stand inside another"]
    assert report.outcome == "leaks"


def test_a_check_inside_a_check():
    with checking() as report:
        with pytest.raises(RuntimeError, match="one cannot stand inside another"), checking():
            pass
        new_function()(1.0)
    assert report.outcome == "leaks"


def test_a_check_inside_jit():
    """The trace around the block has not ended: its own tracers are no leaks, those of an inner one are."""

    def outer(x):
        with checking() as report:
            y = jax.vmap(store)(jax.numpy.stack([x, x]))
        reports.append(report)
        return y.sum()

    reports = []
    jax.jit(outer)(1.0)
    (report,) = reports
    assert [level.transform for leak in report.leaks for level in leak.trace_stack][-1] == "vmap", str(report)
    assert report.outcome == "leaks"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore")
def test_fork_inside_a_check():
    done = fresh_python(
        """
        import os, jax, jaxleak_magic
        kept = []
        with jaxleak_magic.checking() as report:
            jax.jit(lambda x: kept.append(x))(1.0)
            child = os.fork()
            if child == 0:
                os._exit(7)
            _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), report.outcome)
        with jaxleak_magic.checking() as again:
            pass
        print(again.outcome)
        """
    )
    assert done.stdout.split() == ["7", "leaks", "clean"], done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
@pytest.mark.parametrize("format_", ["text", "json", "html"])
def test_a_full_disk(tmp_path, format_):
    path = tmp_path / "cell.py"
    path.write_text("import jax\nkept = []\njax.jit(lambda x: kept.append(x))(1.0)\n")
    words = ["check", str(path), "--format", format_, "--output", "/dev/full"]
    done = fresh_python("import sys; from jaxleak_magic.cli import main; sys.exit(main(sys.argv[1:]))", *words)
    assert done.returncode == 3, done
    assert "Traceback" not in done.stderr and "/dev/full" in done.stderr and "space" in done.stderr


FAKE_DOT = {
    "fails": "#!/bin/sh\nexit 3\n",
    "says nothing": "#!/bin/sh\ncat > /dev/null\n",
    "is no SVG": "#!/bin/sh\ncat > /dev/null\necho '<script>alert(1)</script>'\n",
    "is killed": "#!/bin/sh\nkill -9 $$\n",
    "chatters": "#!/bin/sh\necho noise >&2\nexit 1\n",
}


@pytest.mark.parametrize("kind", FAKE_DOT)
def test_a_broken_graphviz(tmp_path, kind):
    dot = tmp_path / "dot"
    dot.write_text(FAKE_DOT[kind])
    dot.chmod(0o755)
    done = fresh_python(
        """
        import sys
        sys.modules["pygraphviz"] = None
        import jax, jaxleak_magic
        kept = []
        with jaxleak_magic.checking() as report:
            jax.jit(lambda x: kept.append(x))(1.0)
        html = report._repr_html_()
        print("leaked out of" in html, "alert(1)" in html, "kept" in html)
        """,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
    assert "noise" not in done.stderr


def test_a_graphviz_that_hangs(tmp_path):
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\nexec sleep 600\n")
    dot.chmod(0o755)
    begun = time.monotonic()
    done = fresh_python(
        """
        import sys
        sys.modules["pygraphviz"] = None
        import jax, jaxleak_magic
        kept = []
        with jaxleak_magic.checking() as report:
            jax.jit(lambda x: kept.append(x))(1.0)
        print("leaked out of" in report._repr_html_())
        """,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.stdout.split() == ["True"], done.stderr
    assert time.monotonic() - begun < 120


def test_names_of_the_users_over_builtins(capsys):
    """What the user has put over a builtin in the notebook is not what we call."""
    names = {
        "kept": kept,
        "jax": jax,
        "list": 1,
        "type": "t",
        "id": None,
        "len": 3,
        "repr": print,
        "str": 4,
        "print": 5,
    }
    code = "def f(x):\n    kept.append(x)\n    return x\nwith checking() as report:\n    jax.jit(f)(1.0)\n"
    namespace = {**names, "checking": checking, "__name__": "odd"}
    exec(compile(code, "<odd>", "exec"), namespace)
    assert namespace["report"].outcome == "leaks"
    assert capsys.readouterr().out == ""


REPLACE_A_BUILTIN = """
    import builtins, gc, sys
    name, raises = sys.argv[1], sys.argv[2] == "raises"
    import jax
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "jaxleak_magic")
    shell.run_cell("import builtins, jax\\nkept = []\\ndef f(x):\\n    kept.append(x)\\n    return 2 * x")
    old = getattr(builtins, name)

    def new(*args, **kwargs):
        if raises:
            raise RuntimeError("a builtin of the user's")
        return old(*args, **kwargs)

    shell.user_ns["new"] = new
    shell.run_cell(f"%%leakcheck -o report\\ny = jax.jit(f)(1.0)\\nbuiltins.{name} = new\\nz = 1")
    setattr(builtins, name, old)
    report = shell.user_ns.get("report")
    print("as before", jax.config.jax_check_tracer_leaks, gc.isenabled(), float(shell.user_ns["y"]), shell.user_ns["z"])
    print("report:", report and report.outcome)
    """
NO_REPORT = "there is no report for this run: an error inside jaxleak-magic, RuntimeError: a builtin of the user's"


OFTEN_CALLED = ["id", "len", "isinstance", "getattr", "hasattr", "sorted", "repr", "vars", "open"]
SURVIVED_BY_IPYTHON = ["id", "len", "sorted", "repr", "vars", "open"]
REPLACED = [
    *((name, "calls the old one") for name in OFTEN_CALLED),
    *((name, "raises") for name in SURVIVED_BY_IPYTHON),
]
DAILY = [("getattr", "calls the old one"), ("id", "raises")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*each, marks=[] if each in DAILY else [pytest.mark.nightly]) for each in REPLACED],
)
def test_a_builtin_that_the_cell_replaced(name, kind):
    """Python and IPython call it too. A report is made or said to be missing, and the cell's values stay."""
    done = fresh_python(REPLACE_A_BUILTIN, name, kind)
    assert "as before False True 2.0 1\n" in done.stdout, done.stderr
    if kind == "raises" and name != "open":
        assert "report: leaks\n" in done.stdout or NO_REPORT in done.stderr + done.stdout
    else:
        assert "report: leaks\n" in done.stdout
