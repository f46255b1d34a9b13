"""The status line of a cell that is being checked for long: elapsed time and traces seen, gone when it is done."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

from jaxleak_magic.show import words

QUIET_S = 1.0
"""Seconds of a check before its status line appears: a short one needs none."""

EVERY_S = 0.5
"""Seconds between two updates."""

GONE = {"text/plain": "", "text/html": ""}
"""An output that takes no room (JupyterLab 4.6, Notebook 7.6) and that exporters know how to show, unlike ``{}``."""

Publish = Callable[[dict[str, str]], None]


class StatusLine:
    """Shows from a thread of its own that a check is running. It never raises into the cell.

    Args:
        show: displays a bundle where the running cell's outputs appear.
        update: puts another bundle in its place.
        traces: how many traces were seen up to now.
    """

    def __init__(self, show: Publish, update: Publish, traces: Callable[[], int]) -> None:
        self._show = show
        self._update = update
        self._traces = traces
        self._started = time.monotonic()
        self._ended = threading.Event()
        # The kernel finds the cell whose outputs these are in the context.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._tell,), name="jaxleak-status", daemon=True)

    def start(self) -> None:
        """Begin to wait; nothing is shown in the first second."""
        self._thread.start()

    def stop(self) -> None:
        """Take the line away. When it returns nothing more will be shown."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _tell(self) -> None:
        if self._ended.wait(QUIET_S):
            return
        try:
            self._show(self._line())
            while not self._ended.wait(EVERY_S):
                self._update(self._line())
            self._update(GONE)
        except Exception:  # The line is worth less than the cell: without it there is only no line.
            return

    def _line(self) -> dict[str, str]:
        return status_line(time.monotonic() - self._started, self._traces())


def status_line(seconds: float, traces: int) -> dict[str, str]:
    """The line as ``text/plain`` and ``text/html``.

    Args:
        seconds: how long the check has been running.
        traces: how many traces were seen up to now.
    """
    from jaxleak_magic.show.markup import el  # markupsafe: not imported while the extension is loaded

    text = f"Checking for leaks: {seconds:.0f} s, {words.plural(traces, 'trace')} seen"
    # Without a style sheet: it is gone before it is saved.
    style = "color:var(--jp-content-font-color2,GrayText);font-size:12.5px;font-variant-numeric:tabular-nums"
    return {"text/plain": text, "text/html": str(el("div", text, role="status", style=style, data_jaxleak_status=""))}
