"""The magic in a real kernel: what the kernel sends and replies, with the real check."""

from __future__ import annotations

import nbclient
import nbformat
import pytest

from tests.doors.fakes import points_at
from tests.doors.kernel import Kernel
from tests.doors.leaking import LEAKS, MENDABLE

pytestmark = [pytest.mark.kernel, pytest.mark.filterwarnings("ignore")]

CHECKED = "%%leakcheck\n" + LEAKS


@pytest.fixture(scope="module")
def shared_kernel():
    kernel = Kernel()
    assert kernel.run("%load_ext jaxleak_magic").kinds == []
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared_kernel):
    """A kernel whose cells of this test begin at a known number."""
    shared_kernel.first = shared_kernel.run("None").content["execution_count"] + 1
    return shared_kernel


def test_report_comes_after_the_value_as_one_output(kernel):
    reply = kernel.run(CHECKED)
    assert reply.status == "ok"
    assert reply.kinds == ["execute_result", "display_data"]
    assert reply.value == "Array([0., 2., 4.], dtype=float32)"
    assert "`y` leaked" in reply.report["text/plain"]
    assert "leaked" in reply.report["text/html"]
    assert reply.of_kind("display_data")[0]["transient"]["display_id"]
    assert kernel.run(f"_{kernel.first}").value == reply.value


def test_text_only(kernel):
    reply = kernel.run(CHECKED.replace("leakcheck", "leakcheck --text"))
    assert "`y` leaked" in reply.text
    assert reply.of_kind("display_data") == []


def test_error_has_the_cells_number_and_line_and_one_traceback(kernel):
    reply = kernel.run("%%leakcheck\nx = 1\n1 / 0")
    assert reply.status == "error"
    assert reply.content["ename"] == "ZeroDivisionError"
    assert reply.content["execution_count"] == kernel.first
    assert points_at(reply.traceback, kernel.first, 3)
    assert "----> 3 1 / 0" in reply.traceback
    assert reply.kinds == ["error", "display_data"]


def test_error_of_a_function_that_a_checked_cell_defined(kernel):
    kernel.run("%%leakcheck -q\ndef fails():\n\n    raise KeyError('k')")
    reply = kernel.run("fails()")
    assert points_at(reply.traceback, kernel.first, 4, "fails()")


def test_syntax_error(kernel):
    reply = kernel.run("%%leakcheck\nx = 1\nx = = 2")
    assert reply.content["ename"] == "SyntaxError"
    assert "line 3" in reply.traceback or "3" in reply.traceback
    assert len(reply.of_kind("error")) == 1


def test_top_level_await_in_the_kernels_loop(kernel):
    reply = kernel.run("%%leakcheck -q\nimport asyncio\nawait asyncio.sleep(0.01, 'waited')")
    assert reply.value == "'waited'"


def test_leak_behind_an_await(kernel):
    reply = kernel.run("%%leakcheck\nimport asyncio\nawait asyncio.sleep(0.01)\n" + LEAKS)
    assert "`y` leaked" in reply.report["text/plain"]


def test_semicolon_magics_and_shell_lines(kernel):
    reply = kernel.run("%%leakcheck -q\n!echo from-the-shell\n%timeit -n1 -r1 3\n42;")
    assert "from-the-shell" in reply.text
    assert "per loop" in reply.text
    assert reply.value is None


@pytest.mark.parametrize("pattern", ["%%time\n%%leakcheck --text\n{}", "%%leakcheck --text\n%%time\n{}"])
def test_time(kernel, pattern):
    reply = kernel.run(pattern.format(LEAKS))
    assert "Wall time" in reply.text
    assert "`y` leaked" in reply.text
    assert "line 9  " in reply.text or " 9  " in reply.text
    assert reply.value == "Array([0., 2., 4.], dtype=float32)"


@pytest.mark.parametrize("pattern", ["%%capture caught\n%%leakcheck\n{}", "%%leakcheck\n%%capture caught\n{}"])
def test_capture(kernel, pattern):
    outside = kernel.run(pattern.format(LEAKS))
    inside = kernel.run("caught.show()")
    shown = outside if pattern.startswith("%%leakcheck") else inside
    plain = [content["data"]["text/plain"] for content in shown.of_kind("display_data")]
    assert sum("`y` leaked" in text for text in plain) == 1


def test_interrupt(kernel):
    reply = kernel.run(
        "%%leakcheck\nprint('begun', flush=True)\nimport time\nfor _ in range(600):\n    time.sleep(0.1)",
        interrupt_when="begun",
    )
    assert reply.status == "error"
    assert reply.content["ename"] == "KeyboardInterrupt"
    assert "interrupted" in reply.text
    assert reply.of_kind("display_data") == []
    assert kernel.run("import jax; jax.config.jax_check_tracer_leaks").value == "False"
    assert "`y` leaked" in kernel.run(CHECKED).report["text/plain"]


def test_interrupt_while_awaiting(kernel):
    reply = kernel.run(
        "%%leakcheck\nimport asyncio\nprint('begun', flush=True)\nfor _ in range(600):\n    await asyncio.sleep(0.1)",
        interrupt_when="begun",
    )
    assert reply.status == "error"
    assert kernel.run("import jax; jax.config.jax_check_tracer_leaks").value == "False"


def test_raise_makes_the_reply_an_error_after_the_report(kernel):
    reply = kernel.run(CHECKED.replace("leakcheck", "leakcheck --raise"))
    assert reply.kinds == ["execute_result", "display_data", "error"]
    assert reply.status == "error"
    assert reply.content["ename"] == "LeakError"
    assert "y" in reply.content["evalue"]


def test_the_users_own_checking_leaks_inside(kernel):
    reply = kernel.run(
        "%%leakcheck\nimport jax\nkept = []\nwith jax.checking_leaks():\n    jax.jit(kept.append)(1.0)\n'went on'"
    )
    assert reply.status == "ok"
    assert reply.value == "'went on'"
    assert "leaked" in reply.report["text/plain"]


COMPILED_EARLIER = """\
import jax

kept, traces = [], []


@jax.jit
def step(x):
    y = x + 1
    traces.append(1)
    kept.append(y)
    return y
"""


def test_function_of_an_earlier_cell_that_was_compiled_before_the_check(kernel):
    kernel.run(COMPILED_EARLIER)
    kernel.run("step(1.0)")
    for _ in range(2):
        reply = kernel.run("%%leakcheck\nstep(1.0)", cell_id="the-caller")
        text = reply.report["text/plain"]
        assert "`y` leaked" in text
        assert f"[{kernel.first}]" in text
    before = kernel.run("len(traces)").value
    kernel.run("step(1.0)")
    assert kernel.run("len(traces)").value == before


def test_cell_id_and_count_are_in_the_stored_report(kernel):
    kernel.run(CHECKED.replace("leakcheck", "leakcheck -q -o kept_report"), cell_id="abc-123")
    cell = kernel.run("kept_report.leaks[0].created.cell").value
    assert cell == f"CellRef(id='abc-123', execution_count={kernel.first})"


def test_fix_replaces_the_running_cell_by_the_payload(kernel):
    reply = kernel.run("%%leakcheck -q --fix 1\n" + MENDABLE, cell_id="abc")
    (payload,) = reply.content["payload"]
    assert payload["source"] == "set_next_input"
    assert payload["replace"] is True
    assert payload["text"].startswith("%%leakcheck -q\n")
    mended = kernel.run(payload["text"].replace("-q", "-q -o kept_report"), cell_id="abc")
    assert mended.status == "ok"
    assert kernel.run("kept_report.outcome").value == "'clean'"


def test_leakfix_inserts_below_and_replaces_nothing(kernel):
    kernel.run("%%leakcheck -q\n" + MENDABLE, cell_id="abc")
    reply = kernel.run("%leakfix 1", cell_id="other")
    (payload,) = reply.content["payload"]
    assert payload["replace"] is False
    assert payload["text"].startswith("%%leakcheck")
    assert "+" in reply.text


# --- nbclient ---


def run_all(*sources):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3")
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        return notebook, error
    return notebook, None


def test_run_all_stops_at_the_users_error():
    notebook, error = run_all("%load_ext jaxleak_magic", "%%leakcheck\n1 / 0", "never = 1")
    assert error is not None
    assert error.ename == "ZeroDivisionError"
    assert notebook.cells[2].execution_count is None


def test_run_all_stops_at_a_leak_only_with_raise():
    raising = CHECKED.replace("leakcheck", "leakcheck --raise")
    notebook, error = run_all("%load_ext jaxleak_magic", CHECKED, raising, "never = 1")
    assert error is not None
    assert error.ename == "LeakError"
    assert [output.output_type for output in notebook.cells[1].outputs] == ["execute_result", "display_data"]
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3, None]
    assert "widgets" not in notebook.metadata
