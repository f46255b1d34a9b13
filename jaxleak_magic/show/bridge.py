"""The live bridge: a model that is never displayed and gives the static report its buttons in Lab and Notebook 7."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.show.live import live_fixes, live_nodes, packed_script

Applied = Callable[[frozenset[int]], None]


def attach_bridge(report: Report, uid: str, on_applied: Applied | None = None) -> Any:
    """Open a bridge for a report that is shown with this ``uid``.

    A door calls it after it has displayed the report, and only where the front end gives cell ids (``cellId`` in the
    parent header's metadata) and is not VS Code: elsewhere nobody would answer.

    Args:
        report: the report on screen.
        uid: the one that was given to `bundle.ReportOutput`.
        on_applied: called with the numbers of the fixes that are applied now, when one was applied or taken back: so
            that the saved output says so.

    Returns:
        the bridge, an ``anywidget.AnyWidget``; ``close()`` it when the cell is run again. None where the report has
        neither a fix nor a graph.
    """
    fixes, nodes = live_fixes(report), live_nodes(report)
    if not fixes and not nodes:
        return None
    bridge = _bridge_class()(uid=uid, fixes=fixes, nodes=nodes)
    bridge.own_id = bridge.model_id

    def answered(_: Any, message: Any, __: Any) -> None:
        if isinstance(message, dict) and message.get("ok") and on_applied is not None:
            on_applied(frozenset(bridge.applied))

    bridge.on_msg(answered)
    return bridge


@functools.cache
def _bridge_class() -> type[Any]:
    import anywidget
    import traitlets

    class ReportBridge(anywidget.AnyWidget):
        """State that the script in the front end works with; it has no view.

        Attributes:
            uid: of the outputs that it brings to life.
            own_id: its own model's id, by which the script finds the notebook's widget manager.
            fixes: what `live.live_fixes` gives.
            nodes: what `live.live_nodes` gives.
            applied: numbers of the fixes that are applied now.
        """

        _esm = packed_script("bridge.js")
        uid = traitlets.Unicode().tag(sync=True)
        own_id = traitlets.Unicode().tag(sync=True)
        fixes = traitlets.List().tag(sync=True)
        nodes = traitlets.List().tag(sync=True)
        applied = traitlets.List(traitlets.Int()).tag(sync=True)

    return ReportBridge
