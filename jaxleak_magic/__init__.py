"""Find leaked JAX tracers.

In a notebook ``%load_ext jaxleak_magic`` and ``%%leakcheck`` on a cell's first line, in Python ``with checking():`` and
``check(function, ...)``, with pytest ``--leakcheck``, and for whole files ``jaxleak check FILE``.
Importing this package is light: JAX, IPython and the rest are imported when they are needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jaxleak_magic.errors import LeakError as LeakError
    from jaxleak_magic.heap import why_alive as why_alive
    from jaxleak_magic.python_door import check as check
    from jaxleak_magic.python_door import checking as checking
    from jaxleak_magic.pytree_closure import PytreeClosure as PytreeClosure
    from jaxleak_magic.report import LeakReport as LeakReport

__all__ = [
    "LeakError",
    "LeakReport",
    "PytreeClosure",
    "check",
    "checking",
    "load_ipython_extension",
    "unload_ipython_extension",
    "why_alive",
]
__version__ = "0.1.0"

_LAZY = {
    "LeakError": "jaxleak_magic.errors",
    "LeakReport": "jaxleak_magic.report",
    "PytreeClosure": "jaxleak_magic.pytree_closure",
    "check": "jaxleak_magic.python_door",
    "checking": "jaxleak_magic.python_door",
    "why_alive": "jaxleak_magic.heap",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add ``%%leakcheck``, ``%leakcheck`` and ``%leakfix`` to a shell; a second call changes nothing."""
    from jaxleak_magic.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics and all hooks out of a shell again."""
    from jaxleak_magic.magics import unload

    unload(shell)
