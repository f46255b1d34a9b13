"""Statements that an interrupt must not cut in two: hooks that go in, and hooks that go out again."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """Hold back Ctrl+C, or a kernel's "interrupt", until the block has ended; it comes right after it.

    Python raises KeyboardInterrupt in the main thread, between any two instructions (`signal` documentation). In other
    threads this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):  # also SIG_IGN, SIG_DFL and a handler that was not set from Python
        yield
        return
    came: list[object] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, None)
