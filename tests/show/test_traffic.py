"""What a real kernel sends for a report with two leaks: how much, in how many comms, and in which order."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.kernel import Kernel, Reply

pytestmark = [pytest.mark.kernel, pytest.mark.filterwarnings("ignore")]

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
TWO_LEAKS = "%%leakcheck\n" + (CORPUS / "121_two_leaks_one_report" / "cell.py").read_text()


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    kernel.run("%load_ext jaxleak_magic\nimport jax, anywidget")
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def reply(kernel: Kernel) -> Reply:
    return kernel.run(TWO_LEAKS, cell_id="b1f3")


def test_two_comms_and_thirty_kilobytes(reply: Reply) -> None:
    opened = reply.of_kind("comm_open")
    assert len(opened) <= 2
    # The output as it stands at the end, and all that the comms carry.
    shown = reply.of_kind("display_data", "update_display_data")[-1]["data"]
    sent = [shown, *opened, *reply.of_kind("comm_msg")]
    assert len(json.dumps(sent, ensure_ascii=False).encode()) < 30_000


def test_the_picture_comes_after_the_rest_into_the_same_output(reply: Reply) -> None:
    kinds = [kind for kind in reply.kinds if kind in ("display_data", "comm_open", "update_display_data")]
    assert kinds[-1] == "update_display_data"
    assert kinds.index("comm_open") < len(kinds) - 1
    first, last = reply.of_kind("display_data")[-1], reply.of_kind("update_display_data")[-1]
    assert first["transient"] == last["transient"]
    assert "data:image" not in first["data"]["text/html"]
    picture = re.search(r"data:image/svg\+xml;base64,([\w+/=]+)", last["data"]["text/html"])
    assert picture
    assert b"first_leak" in base64.b64decode(picture[1])


def test_where_nobody_looks_on_there_is_one_output_and_no_comm(kernel: Kernel) -> None:
    reply = kernel.run(TWO_LEAKS)
    assert [kind for kind in reply.kinds if kind != "execute_result"] == ["display_data"]
    assert "data:image" in reply.report["text/html"]


def test_the_status_line_of_a_long_check_goes(kernel: Kernel) -> None:
    reply = kernel.run("%%leakcheck\nimport time\ntime.sleep(2.5)", cell_id="b1f4")
    status, report = reply.of_kind("display_data")
    assert "Checking for leaks: 1 s, " in status["data"]["text/plain"]
    updates = [u["data"] for u in reply.of_kind("update_display_data") if u["transient"] == status["transient"]]
    assert updates[-1] == {"text/plain": "", "text/html": ""}
    assert "No leaked tracers" in report["data"]["text/plain"]
    assert "Checking" not in kernel.run("%%leakcheck\nimport time\ntime.sleep(2.5)").report["text/plain"]
