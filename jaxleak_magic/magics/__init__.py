"""The notebook door: loading into and unloading from a shell."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from jaxleak_magic.magics.leakcheck_magics import LeakcheckMagics
from jaxleak_magic.magics.watching import WATCHED_SHELLS

_NAME = LeakcheckMagics.__name__
_MAGICS = (
    ("line", "leakcheck"),
    ("cell", "leakcheck"),
    ("line", "leakwatch"),
    ("line", "leakfix"),
    ("cell", "leakexplain"),
)


def load(shell: InteractiveShell) -> LeakcheckMagics:
    """Put magics and hooks into a shell and record the cells that ran before. A second call changes nothing."""
    loaded = loaded_magics(shell)
    if loaded is not None:
        return loaded
    magics = LeakcheckMagics(shell)
    magics.checker.recorder.record_history()
    magics.checker.install()
    shell.register_magics(magics)
    if shell in WATCHED_SHELLS:
        magics.checker.watch_cells(magics.shower.notify)
    return magics


def unload(shell: InteractiveShell) -> None:
    """Take them all out again."""
    loaded = loaded_magics(shell)
    if loaded is None:
        return
    loaded.checker.uninstall()
    loaded.shower.close()
    for kind, name in _MAGICS:
        shell.magics_manager.magics[kind].pop(name, None)
    shell.magics_manager.registry.pop(_NAME, None)


def loaded_magics(shell: InteractiveShell) -> LeakcheckMagics | None:
    """Our magics in a shell, or None; IPython's own registry keeps them, so there is no state of ours to go stale."""
    found = shell.magics_manager.registry.get(_NAME)
    return found if isinstance(found, LeakcheckMagics) else None
