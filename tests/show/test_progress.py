"""The status line of a long check: when it appears, what it says, and that it goes."""

from __future__ import annotations

import contextvars
import threading

import pytest

from jaxleak_magic.show import progress
from jaxleak_magic.show.progress import GONE, StatusLine, status_line


class Screen:
    """What was shown; tells when something new is."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, dict[str, str]]] = []
        self.new = threading.Event()

    def show(self, bundle: dict[str, str]) -> None:
        self.shown.append(("show", bundle))
        self.new.set()

    def update(self, bundle: dict[str, str]) -> None:
        self.shown.append(("update", bundle))
        self.new.set()

    def wait(self) -> None:
        assert self.new.wait(30)
        self.new.clear()


def test_a_short_check_shows_nothing() -> None:
    screen = Screen()
    line = StatusLine(screen.show, screen.update, lambda: 0)
    line.start()
    line.stop()
    assert screen.shown == []


def test_a_long_check_is_told_and_the_line_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    screen = Screen()
    line = StatusLine(screen.show, screen.update, lambda: 7)
    line.start()
    screen.wait()
    screen.wait()
    line.stop()
    kinds = [kind for kind, _ in screen.shown]
    assert kinds[0] == "show"
    assert set(kinds[1:]) == {"update"}
    assert "7 traces seen" in screen.shown[0][1]["text/plain"]
    assert screen.shown[-1] == ("update", GONE)
    count = len(screen.shown)
    line.stop()
    assert len(screen.shown) == count


def test_it_shows_in_the_context_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    cell = contextvars.ContextVar("cell", default="no cell")
    cell.set("cell 3")
    screen = Screen()
    seen: list[str] = []
    line = StatusLine(lambda bundle: (seen.append(cell.get()), screen.show(bundle))[1], screen.update, lambda: 0)
    line.start()
    screen.wait()
    line.stop()
    assert seen == ["cell 3"]


def test_an_error_in_it_reaches_nobody(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    screen = Screen()

    def traces() -> int:
        screen.new.set()
        raise RuntimeError("gone")

    line = StatusLine(screen.show, screen.update, traces)
    line.start()
    screen.wait()
    line.stop()
    assert screen.shown == []
    assert capfd.readouterr() == ("", "")


def test_words() -> None:
    assert status_line(12.4, 1)["text/plain"] == "Checking for leaks: 12 s, 1 trace seen"
    assert 'role="status"' in status_line(1.0, 3)["text/html"]
