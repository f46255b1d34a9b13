"""The referrer graph: who refers to the leaked values, as a `graphviz.Digraph`, drawn without risk to the kernel."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from jaxleak_magic.diagnose.model import Leak, Report
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import name
from jaxleak_magic.show.paths import Step, steps

if TYPE_CHECKING:
    import graphviz

DRAWING_LIMIT_S = 10.0
"""Seconds after which a drawing is given up."""

CHAINS_DRAWN = 4
"""Paths to one value that are drawn."""

_FONT = "Helvetica,Arial,sans-serif"
_INK, _MUTED, _RED = "#1f2328", "#59636e", "#b3261e"
_LOOKS: dict[str, dict[str, str]] = {
    "user": {"shape": "box", "style": "rounded,filled", "fillcolor": "#f5f7f9", "color": "#7d868f"},
    "lib": {"shape": "box", "style": "dashed,filled", "fillcolor": "#eef3fb", "color": "#4a6da7"},
    "cache": {"shape": "cylinder", "style": "filled", "fillcolor": "#f3eefb", "color": "#7a5ea8"},
    "value": {
        "shape": "ellipse",
        "style": "filled",
        "fillcolor": "#fdeeed",
        "color": _RED,
        "fontcolor": _RED,
        "penwidth": "1.6",
    },
}

# In a child process, for Graphviz may crash, and it writes to file descriptor 2.
_PYGRAPHVIZ = (
    "import sys, pygraphviz\n"
    "text = sys.stdin.buffer.read().decode()\n"
    "sys.stdout.buffer.write(pygraphviz.AGraph(string=text).draw(format='svg', prog='dot'))\n"
)


def build_graph(report: Report, leaks: tuple[Leak, ...] | None = None) -> graphviz.Digraph:
    """The paths of the leaks (default: the real ones, else all) as one graph, from the roots to the values.

    The same object on several paths is one node. Shape and colour tell roots (double border), objects of the user's
    (rounded), libraries' objects (dashed) and caches (cylinder) apart; leaked values are ellipses.

    Returns:
        a `graphviz.Digraph` whose display in a notebook falls back to its source where Graphviz is not installed.
    """
    return _draw(report, leaks if leaks is not None else report.real_leaks or report.leaks).graph


def node_facts(report: Report) -> list[tuple[str, str]]:
    """Name and facts (type, whose it is, the line where it was defined) of each node of the report's graph.

    The first one tells of the node with the class ``n1`` in the SVG of `graph_svg`, and so on.
    """
    chosen = report.real_leaks or report.leaks
    return _draw(report, chosen).facts if any(leak.chains for leak in chosen) else []


def _draw(report: Report, leaks: tuple[Leak, ...]) -> _Drawing:
    graph = _graph_class()("jaxleak")
    graph.attr("graph", rankdir="LR", bgcolor="#ffffff", pad="0.12", nodesep="0.25", ranksep="0.35", fontname=_FONT)
    graph.attr("node", fontname=_FONT, fontsize="11", fontcolor=_INK, height="0.4", margin="0.14,0.06")
    graph.attr("edge", fontname=_FONT, fontsize="10", fontcolor=_MUTED, color=_MUTED, arrowsize="0.7")
    drawing = _Drawing(graph, report)
    drawing.leaks(leaks)
    return drawing


def graph_svg(report: Report) -> str | None:
    """The report's graph as a small SVG for `html.render_html`, or None: nothing to draw, or to draw with."""
    chosen = report.real_leaks or report.leaks
    if not any(leak.chains for leak in chosen):
        return None
    svg = render_svg(build_graph(report, chosen).source)
    return compact(svg) if svg else None


def render_svg(dot_source: str, timeout: float = DRAWING_LIMIT_S) -> str | None:
    """Draw DOT as SVG: by ``dot`` on the PATH, else by pygraphviz (the ``[graph]`` extra), always in a child process.

    Args:
        dot_source: text in the DOT language.
        timeout: seconds after which the drawing is given up.

    Returns:
        one ``<svg>`` element, or None where neither is installed or the drawing failed.
    """
    for command in _commands():
        try:
            done = subprocess.run(command, input=dot_source.encode(), capture_output=True, timeout=timeout, check=True)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        svg = _bare(done.stdout.decode("utf-8", "replace"))
        if svg:
            return svg
    return None


def _commands() -> list[list[str]]:
    commands: list[list[str]] = []
    dot = shutil.which("dot")
    if dot:
        commands.append([dot, "-Tsvg"])
    if sys.executable and importlib.util.find_spec("pygraphviz"):
        # -P: a file pygraphviz.py in the user's folder is not what is meant.
        commands.append([sys.executable, "-P", "-c", _PYGRAPHVIZ])
    return commands


def _bare(svg: str) -> str | None:
    """The element alone, without prolog, comments and the titles that are internal node names."""
    start = svg.find("<svg")
    if start < 0 or "</svg>" not in svg:
        return None
    return re.sub(r"<!--.*?-->|<title>.*?</title>", "", svg[start:], flags=re.DOTALL).strip()


def compact(svg: str) -> str:
    """An SVG of `render_svg` for an ``<img>``, where nobody sees tooltips and ids: about half as long.

    Lengths are rounded to whole points but for those of arrow heads, and what all texts share is said once. Of the
    groups only those of the nodes stay, each with its id of `build_graph` as its class, and the ground is left out.
    """
    svg = re.sub(r'<g id="a_[^"]*">\s*<a\b[^>]*>|</a>\s*</g>', "", svg)
    svg = re.sub(r'<g id="(n\d+)" class="node">(.*?)</g>', r'<node class="\1">\2</node>', svg, flags=re.DOTALL)
    svg = re.sub(r' (?:xml:space="preserve"|id="[^"]*"|class="(?:graph|edge)"|xmlns:xlink="[^"]*")', "", svg)
    svg = re.sub(r"</?g>\s*", "", svg).replace("</svg>", "</g></svg>")
    svg = re.sub(r"(?<=<)node(?= )|(?<=</)node(?=>)", "g", svg)
    svg = re.sub(r'<polygon fill="#ffffff" stroke="transparent"[^>]*/>\s*', "", svg)  # the ground
    svg = _BOX.sub(_rectangle, svg)
    svg = re.sub(r'(?<= (?:d|x|y)=")[^"]*|(?<= (?:cx|cy|rx|ry)=")[^"]*', lambda m: _rounded(m[0], 0), svg)
    svg = re.sub(r'(?<= points=")([^" ]*)([^"]*?)(?: \1)?(?=")', lambda m: _rounded(m[1] + m[2], 1), svg)
    svg = svg.replace(' text-anchor="middle"', "").replace(' font-size="11.00"', "").replace(f' fill="{_INK}"', "")
    shared = f' text-anchor="middle" font-family="{_FONT}" font-size="11"'
    svg = svg.replace(f' font-family="{_FONT}"', "").replace("<svg", "<svg" + shared, 1)
    return re.sub(r"\s*\n\s*", "", re.sub(r"\s+(?=viewBox)", " ", svg)).strip()


# Graphviz draws a box with round corners as a path: to its left, down, right and up, each corner as a curve.
_BOX = re.compile(r'<path ([^>]*?)d="M(-?[\d.]+),(-?[\d.]+)C((?:-?[\d.]+,-?[\d.]+ ?){23,24})"/>')


def _rectangle(match: re.Match[str]) -> str:
    points = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", match[4])]
    (left, right), (top, bottom) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    numbers = {"x": left, "y": top, "width": right - left, "height": bottom - top, "rx": 10}
    written = " ".join(f'{key}="{round(n)}"' for key, n in numbers.items())
    return f"<rect {match[1]}{written}/>"


def _rounded(numbers: str, digits: int) -> str:
    return re.sub(r"-?\d+\.\d+", lambda m: f"{round(float(m[0]), digits):g}", numbers)


class _Drawing:
    def __init__(self, graph: Any, report: Report) -> None:
        self.graph = graph
        self.report = report
        self.nodes: dict[tuple[int, str], str] = {}
        self.edges: set[tuple[str, str, str]] = set()
        self.facts: list[tuple[str, str]] = []

    def leaks(self, leaks: tuple[Leak, ...]) -> None:
        for leak in leaks:
            if not leak.chains:
                continue
            title = name(leak.variable or "the value")
            facts = [name(leak.tracer.type), name(words.value(leak))]
            if leak.created:
                facts.append(f"made {words.on(words.where(leak.created, self.report))}")
            value = self.new(title, words.value(leak), "value", _tooltip(leak), facts)
            for chain in leak.chains[:CHAINS_DRAWN]:
                path = steps(chain, self.report)
                ids = [*map(self.holder, path), value]
                for step, start, end in zip(path, ids, ids[1:], strict=False):
                    self.edge(start, end, step.edge)

    def holder(self, step: Step) -> str:
        if step.key is not None and step.key in self.nodes:
            return self.nodes[step.key]
        look = next((look for look in ("cache", "lib") if look in step.look), "user")
        kind = "global variable" if step.key and step.key[1] else step.link.type if step.link.type != step.title else ""
        detail = ", ".join(text for text in (kind, step.note) if text)
        facts = words.holder_facts(step.link, self.report)
        node = self.new(step.title, detail, look, step.label, facts, root="root" in step.look)
        if step.key is not None:
            self.nodes[step.key] = node
        return node

    def new(self, title: str, detail: str, look: str, tooltip: str, facts: list[str], *, root: bool = False) -> str:
        self.facts.append((title, " · ".join(text for text in facts if text)))
        node = f"n{len(self.facts)}"
        more = {"peripheries": "2"} if root else {}
        self.graph.node(node, _label(title, detail), id=node, tooltip=_dot_text(tooltip), **_LOOKS[look], **more)
        return node

    def edge(self, start: str, end: str, label: str) -> None:
        if (start, end, label) not in self.edges:
            self.edges.add((start, end, label))
            self.graph.edge(start, end, **({"label": _dot_text(_brief(f" {label} "))} if label else {}))


def _tooltip(leak: Leak) -> str:
    return words.verdict(leak).replace("`", "")


def _label(title: str, detail: str) -> str:
    import graphviz

    # A label that starts with < and ends with > would be read as HTML; nohtml() says that it is text.
    lines = [_dot_text(_brief(name(text))) for text in (title, detail) if text]
    return graphviz.nohtml("\\n".join(lines))


def _brief(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _dot_text(text: str) -> str:
    """Text for a DOT attribute: no backslash escapes, no HTML-like label, no entity is read in it."""
    import graphviz

    return graphviz.escape(name(text).replace("&", "&amp;"))


def _graph_class() -> type[graphviz.Digraph]:
    import graphviz

    class Graph(graphviz.Digraph):
        """A `graphviz.Digraph` that shows itself also where ``dot`` is missing: then as its text."""

        def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **_: Any) -> dict[str, bytes | str]:
            svg = render_svg(self.source)
            bundle: dict[str, bytes | str] = {"text/plain": self.source}
            return {**bundle, "image/svg+xml": svg} if svg else bundle

    Graph.__qualname__ = "Graph"
    return Graph
