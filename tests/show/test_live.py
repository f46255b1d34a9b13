"""What the widget and the bridge are told, and what they do in the kernel. Their scripts run in test_bridge_in_lab."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample_reports import SAMPLES, clean, earlier_cell, one_leak, two_leaks

from jaxleak_magic.diagnose.model import CellRef, Report, SourceText
from jaxleak_magic.report import LeakReport
from jaxleak_magic.show import live
from jaxleak_magic.show.bridge import attach_bridge
from jaxleak_magic.show.bundle import ReportOutput, mimebundle
from jaxleak_magic.show.graph import graph_svg
from jaxleak_magic.show.live import live_fixes, live_nodes, packed_script, script


@pytest.fixture(autouse=True)
def _close_widgets() -> Iterator[None]:
    yield
    from ipywidgets import Widget

    Widget.close_all()


def _with_source(report: Report, source: SourceText) -> Report:
    return dataclasses.replace(report, source=source, sources=(source,))


def test_old_and_new_are_whole_cells_with_their_magic() -> None:
    report = one_leak()
    (fix,) = live_fixes(report)
    assert report.source
    assert fix["applicable"]
    (edit,) = fix["edits"]
    assert edit["cell_id"] == "c3"
    assert edit["old"] == "%%leakcheck\n" + report.source.text
    assert edit["new"] == "%%leakcheck\n" + report.leaks[0].fixes[0].edits[0].source


def test_a_fix_over_two_cells_knows_the_text_of_both() -> None:
    (fix,) = live_fixes(earlier_cell())
    assert fix["applicable"]
    assert [(edit["cell_id"], edit["title"]) for edit in fix["edits"]] == [("c2", "In [2]"), ("c3", "In [3]")]
    assert all(edit["old"] for edit in fix["edits"])


def test_a_fix_whose_cells_are_not_all_known_is_only_copied() -> None:
    report = earlier_cell()
    unknown = dataclasses.replace(report, sources=report.sources[:1])
    partly = dataclasses.replace(
        report, sources=tuple(dataclasses.replace(s, complete=s.cell != CellRef("c2", 2)) for s in report.sources)
    )
    in_file = dataclasses.replace(one_leak(), file="train.py")
    for each in (unknown, partly, in_file):
        assert [fix["applicable"] for fix in live_fixes(each)] == [False]
    assert one_leak().source
    without_id = SourceText(one_leak().source.text, CellRef(None, 3))  # type: ignore[union-attr]
    assert not live_fixes(_with_source(one_leak(), without_id))[0]["applicable"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_comm_can_carry_it(name: str) -> None:
    json.dumps(live_fixes(SAMPLES[name]())).encode().decode()
    widget = LeakReport(SAMPLES[name]()).widget()
    json.dumps({key: widget.get_state(key)[key] for key in ("html", "fixes")}, ensure_ascii=False).encode()


def test_the_widget_is_one_model_with_the_static_html() -> None:
    from ipywidgets import DOMWidget, VBox

    widget: Any = LeakReport(two_leaks()).widget()
    assert isinstance(widget, DOMWidget)
    assert "data-jaxleak-fix" in widget.html
    VBox([widget])


def test_the_bridge_updates_the_output_when_a_fix_was_applied() -> None:
    shown: list[frozenset[int]] = []
    bridge = attach_bridge(one_leak(), "abc", shown.append)
    assert bridge.own_id == bridge.model_id
    bridge._handle_custom_msg({"kind": "apply", "fix": 1, "ok": False, "reason": "edited"}, [])
    assert shown == []
    bridge.applied = [1]
    bridge._handle_custom_msg({"kind": "apply", "fix": 1, "ok": True, "reason": None}, [])
    bridge._handle_custom_msg("nonsense", [])
    assert shown == [{1}]
    output = ReportOutput(one_leak(), "abc", applied=shown[0])
    assert "Applied. Run the cell again" in output.bundle()["text/html"]
    assert 'data-jaxleak="abc"' in output.bundle()["text/html"]


def test_no_bridge_where_there_is_nothing_to_apply_or_to_ask() -> None:
    assert attach_bridge(clean(), "abc") is None
    assert attach_bridge(SAMPLES["refused_only"](), "abc") is None


def test_each_node_of_the_graph_has_its_facts() -> None:
    nodes = dict(live_nodes(two_leaks()))
    assert nodes["net"] == "global variable · defined on line 18"
    assert nodes["Net"] == "type Net · defined on line 8"
    assert nodes["h"] == "LinearizeTracer · float32[4] · made on line 13"
    svg = graph_svg(two_leaks())
    assert svg
    assert re.findall(r'class="n(\d+)"', svg) == [str(n) for n in range(1, len(live_nodes(two_leaks())) + 1)]


def test_a_report_says_what_became_of_the_last_check() -> None:
    def said(report: Report, before: int | None) -> list[str]:
        bundle = ReportOutput(report, "abc", before).bundle()
        return [kind for kind, text in bundle.items() if "Was " in text]

    assert said(clean(), 1) == ["text/plain", "text/html"]
    assert "Was 1 leak, now clean." in ReportOutput(clean(), "abc", 1).bundle()["text/plain"]
    assert "Was 1 leak, now no leak." in ReportOutput(SAMPLES["error_only"](), "abc", 1).bundle()["text/plain"]
    assert "Was 3 leaks, now 2 leaks." in ReportOutput(two_leaks(), "abc", 3).bundle()["text/html"]
    assert said(clean(), None) == said(clean(), 0) == said(two_leaks(), 2) == []


def test_a_bridge_and_its_report_stay_under_30_kB() -> None:
    bridge = attach_bridge(two_leaks(), "abc")
    bundle = mimebundle(two_leaks(), "abc")
    assert "data:image" in bundle["text/html"]
    sent = json.dumps([bridge.get_state(), bundle], ensure_ascii=False)
    assert len(sent.encode()) < 30_000


@pytest.mark.parametrize("file", ["widget.js", "bridge.js"])
def test_a_script_loses_only_its_comments(file: str) -> None:
    folder = Path(live.__file__).parent
    for name in ("buttons.js", "exploring.js", file):
        text = (folder / name).read_text(encoding="utf-8")
        assert "/*" not in text
        assert not [line for line in text.split("\n") if line.count("`") % 2]
    assert script(file).count("export default") == 1
    assert "//" not in script(file)


@pytest.mark.parametrize("file", ["widget.js", "bridge.js"])
def test_a_packed_script_holds_the_script(file: str) -> None:
    packed = re.search(r'atob\("([^"]*)"\)', packed_script(file))
    assert packed
    assert gzip.decompress(base64.b64decode(packed[1])).decode() == script(file)
    assert packed_script(file) == packed_script(file)
