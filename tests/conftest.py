"""Shells, kernels and made-up runs for the tests."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.doors.fakes import FakeRun, empty_report

os.environ.setdefault("JAX_PLATFORMS", "cpu")
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> type[FakeRun]:
    """Puts a fresh `FakeRun` class in the place of CheckedRun in the notebook door."""

    class Run(FakeRun):
        made: ClassVar[list[FakeRun]] = []
        report = staticmethod(lambda run, error: empty_report())

    monkeypatch.setattr("jaxleak_magic.magics.checker.CheckedRun", Run)
    return Run


@pytest.fixture
def bare_shell() -> Iterator[Any]:
    """An InteractiveShell without history on disk, and without the extension."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor" if _old_ipython() else "nocolor"
    main, hook, path = sys.modules["__main__"], sys.displayhook, list(sys.path)
    shell = InteractiveShell.instance(config=config)
    yield shell
    shell.run_line_magic("reset", "-f")
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    InteractiveShell.clear_instance()
    sys.modules["__main__"], sys.displayhook, sys.path[:] = main, hook, path
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


@pytest.fixture
def shell(bare_shell: Any) -> Any:
    """An InteractiveShell with the extension loaded."""
    bare_shell.run_line_magic("load_ext", "jaxleak_magic")
    return bare_shell


def _old_ipython() -> bool:
    import IPython

    return IPython.version_info < (9,)
