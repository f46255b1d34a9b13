"""The report as a widget for dashboards: the static HTML with buttons, in one model."""

from __future__ import annotations

import functools
import uuid
from typing import TYPE_CHECKING, Any

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show.live import live_fixes, live_nodes, packed_script

if TYPE_CHECKING:
    from ipywidgets import DOMWidget


def report_widget(report: Report) -> DOMWidget:
    """The report as a widget (an ``anywidget``: two comms, everything in it can be reached by keyboard).

    Args:
        report: what is to be shown.
    """
    from jaxleak_magic.show.graph import graph_svg
    from jaxleak_magic.show.html import render_html

    html = render_html(report, uuid.uuid4().hex, svg=graph_svg(report))
    return _widget_class()(html=html, fixes=live_fixes(report), nodes=live_nodes(report))


@functools.cache
def _widget_class() -> type[Any]:
    import anywidget
    import traitlets

    class ReportWidget(anywidget.AnyWidget):
        """The view of one report.

        Attributes:
            html: the report as `html.render_html` makes it: escaped, without a script.
            fixes: what `live.live_fixes` gives, for the buttons that copy.
            nodes: what `live.live_nodes` gives, for the graph.
        """

        _esm = packed_script("widget.js")
        html = traitlets.Unicode().tag(sync=True)
        fixes = traitlets.List().tag(sync=True)
        nodes = traitlets.List().tag(sync=True)

    return ReportWidget
