"""The referrer graph: shared holders, what differs in shape, escaping, and drawing where Graphviz is or is not."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import graphviz
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from hostile_texts import hostile_texts
from sample_reports import SAMPLES, clean, library_cache, one_leak, two_leaks, with_text_everywhere

from jaxleak_magic.show import graph as graph_module
from jaxleak_magic.show.graph import build_graph, graph_svg, render_svg

SVG = "{http://www.w3.org/2000/svg}"


def _nodes(source: str) -> dict[str, str]:
    return dict(re.findall(r'^\t(n\d+) \[label=(".*?(?<!\\)"|\S+) ', source, re.M))


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_is_a_digraph_from_the_root_to_the_value() -> None:
    graph = build_graph(one_leak())
    assert isinstance(graph, graphviz.Digraph)
    titles = {node: label.strip('"').split("\\n")[0] for node, label in _nodes(graph.source).items()}
    edges = re.findall(r"(n\d+) -> (n\d+)", graph.source)
    assert [(titles[a], titles[b]) for a, b in edges] == [
        ("learners", "Learner"),
        ("Learner", "schedule()"),
        ("schedule()", "rate"),
    ]


def test_a_shared_holder_is_one_node_and_globals_of_one_namespace_are_several() -> None:
    labels = [label.strip('"').split("\\n")[0] for label in _nodes(build_graph(two_leaks()).source).values()]
    assert sorted(labels) == ["Net", "dict", "h", "history", "list", "net", "norms", "norms['w']"]


def test_kinds_differ_in_shape_not_only_in_colour() -> None:
    leak = one_leak().leaks[0]
    links = list(leak.chains[0])
    links[1] = dataclasses.replace(links[1], owner="library")
    mixed = dataclasses.replace(one_leak(), leaks=(dataclasses.replace(leak, chains=(tuple(links),)),))
    source = build_graph(mixed).source + build_graph(library_cache()).source
    shapes = {
        (re.search(r"shape=(\w+)", line)[1], re.search(r'style="?([\w,]+)', line)[1], "peripheries" in line)  # type: ignore[index]
        for line in source.split("\n")
        if re.match(r"\tn\d+ \[", line)
    }
    assert len(shapes) == 5


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot")
@given(
    st.text(
        st.characters(min_codepoint=32, max_codepoint=0x2FF) | st.sampled_from('<>&"\\{}|;\n\x1b\u202e'), max_size=30
    )
)
@settings(max_examples=40, deadline=None)
def test_any_label_comes_out_of_dot_as_it_went_in(text: str) -> None:
    leak = dataclasses.replace(one_leak().leaks[0], variable=text or "x", chains=(one_leak().leaks[0].chains[0][:1],))
    link = dataclasses.replace(leak.chains[0][0], holder=text or "h", name=text or "n")
    report = dataclasses.replace(one_leak(), leaks=(dataclasses.replace(leak, chains=((link,),)),))
    svg = render_svg(build_graph(report).source)
    assert svg is not None
    shown = graph_module.name(text or "x")
    if len(shown) <= 40:
        assert [t.replace("\xa0", " ").strip() for t in _texts(svg)].count(shown.strip()) >= 1
    graph_svg(report)


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot")
@given(hostile_texts)
@settings(max_examples=20, deadline=None)
def test_no_text_adds_a_node_or_a_link_to_the_graph(text: str) -> None:
    svg = render_svg(build_graph(with_text_everywhere(one_leak(), text)).source)
    assert svg is not None
    tree = ElementTree.fromstring(svg)
    assert sum(element.get("class") == "node" for element in tree.iter()) == 4
    for element in tree.iter():
        assert not {key for key in element.attrib if key.endswith("href") or key.startswith("on")}


def test_hostile_names_are_text_in_the_picture() -> None:
    svg = graph_svg(SAMPLES["hostile"]())
    assert svg is not None
    tree = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
        "svg",
        "g",
        "polygon",
        "path",
        "ellipse",
        "text",
        "polyline",
        "rect",
    }
    assert any(t.startswith("</script><script>") for t in _texts(svg))
    build_graph(SAMPLES["hostile"]()).source.encode()


def test_pygraphviz_draws_in_a_child_where_there_is_no_dot(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygraphviz")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    svg = graph_svg(two_leaks())
    assert svg is not None
    assert "norms" in _texts(svg)
    assert capfd.readouterr() == ("", "")


def test_without_an_engine_there_is_no_picture_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "_commands", lambda: [])
    assert graph_svg(two_leaks()) is None
    bundle = build_graph(two_leaks())._repr_mimebundle_()
    assert set(bundle) == {"text/plain"}
    assert "digraph" in bundle["text/plain"]


@pytest.mark.parametrize(
    "command",
    [
        ["/no/such/dot", "-Tsvg"],
        [sys.executable, "-c", "import os; os.abort()"],
        [sys.executable, "-c", "print('no svg')"],
    ],
)
def test_a_drawing_that_fails_is_no_picture(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(graph_module, "_commands", lambda: [command])
    assert render_svg("digraph {}") is None


def test_a_drawing_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "_commands", lambda: [[sys.executable, "-c", "import time; time.sleep(60)"]])
    assert render_svg("digraph {}", timeout=0.5) is None


def test_nothing_is_drawn_where_nothing_leaked() -> None:
    assert graph_svg(clean()) is None
    assert graph_svg(SAMPLES["refused_only"]()) is None
