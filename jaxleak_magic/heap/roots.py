"""The usual roots: the user's namespace, imported modules, running frames of all threads, context variables."""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import re
import sys
import threading
import types
from collections.abc import Collection
from typing import Any

from jaxleak_magic.heap.objects import is_module, module_dict
from jaxleak_magic.heap.paths import HISTORY, LIBRARY, NAMESPACE, RANK_OF_OWNER, USER_FRAME, OwnerOf, Root

_OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SITE_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")
_HISTORY_NAME = re.compile(r"_+|_i+|_+oh|_dh|_\d+|_i\d+|Out|In|_exit_code")


def namespace_roots(namespace: dict[str, Any] | None = None) -> list[Root]:
    """The user's namespace, and IPython's output history in it.

    Args:
        namespace: global variables of the notebook or script; ``__main__``'s if None.
    """
    if namespace is None:
        namespace = module_dict(sys.modules["__main__"])
    roots = [Root(namespace, "", "namespace", NAMESPACE)]
    history = dict.get(namespace, "_oh")
    if type(history) is dict:
        roots.append(Root(history, "Out", "history", HISTORY))
    return roots


def history_names(namespace: dict[str, Any]) -> frozenset[str]:
    """The names of a notebook's namespace that are IPython's history (``_``, ``_3``, ``Out``), not the user's."""
    if type(dict.get(namespace, "_oh")) is not dict:
        return frozenset()
    return frozenset(name for name in list(dict.keys(namespace)) if type(name) is str and _HISTORY_NAME.fullmatch(name))


def module_roots(owner_of: OwnerOf | None = None) -> list[Root]:
    """The namespaces of all imported modules but ``__main__``.

    Args:
        owner_of: says whose a module is, which decides the root's rank; by default what lies with the standard library
            is Python's, what lies in ``site-packages`` is a library's, and the rest is the user's.
    """
    owner_of = owner_of or usual_owner
    roots: list[Root] = []
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if not is_module(module) or name == "__main__":
            continue
        namespace = module_dict(module)
        if type(namespace) is not dict or id(namespace) in seen:
            continue
        seen.add(id(namespace))
        filename = dict.get(namespace, "__file__")
        owner = owner_of(name, filename if type(filename) is str else None)
        roots.append(Root(namespace, name, "module", RANK_OF_OWNER.get(owner, LIBRARY)))
    return roots


def frame_roots(
    exclude: Collection[types.FrameType] = (), owner_of: OwnerOf | None = None, include_own: bool = False
) -> list[Root]:
    """The local variables of all running functions, in all threads; ``gc`` has not seen them since Python 3.11.

    The roots hold the values: drop them after the search, and do not put them into a list that is a variable already,
    which would then contain itself. Module-level code is left out, its variables being the module's. This package's own
    functions are left out too.

    Args:
        exclude: frames to leave out.
        owner_of: says whose a function is, by its module and file, which decides the root's rank.
        include_own: take this package's functions too.
    """
    owner_of = owner_of or usual_owner
    threads = {thread.ident: thread.name for thread in list(threading.enumerate())}
    here = threading.get_ident()
    left_out = set(map(id, exclude))
    roots: list[Root] = []
    frames: list[tuple[int, types.FrameType | None]] = list(sys._current_frames().items())  # pyright: ignore
    while frames:
        ident, frame = frames.pop(0)
        while frame is not None:  # at the end no variable of this function holds its own frame, which would be a cycle
            code = frame.f_code
            own = code.co_filename.startswith(_OWN_FILES) and not include_own
            if code.co_flags & inspect.CO_NEWLOCALS and not own and id(frame) not in left_out:  # not module level
                values = frame_locals(frame)
                if values:
                    module = dict.get(frame.f_globals, "__name__")
                    owner = owner_of(module if type(module) is str else None, code.co_filename)
                    name = code.co_name if code.co_name.startswith("<") else f"{code.co_name}()"
                    thread = None if ident == here else threads.get(ident, f"thread {ident}")
                    rank = USER_FRAME if owner == "user" else RANK_OF_OWNER.get(owner, LIBRARY)
                    kind = "frame" if thread is None else "thread"
                    roots.append(
                        Root(values, name, kind, rank, code.co_filename, code.co_firstlineno, code.co_qualname, thread)
                    )
            frame = frame.f_back
    return roots


def frame_locals(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables, cell and free variables included; leaves nothing behind on the frame.

    Before Python 3.13 (PEP 667) reading ``f_locals`` makes a dict that the frame keeps, values and all, for as long as
    it runs. It is emptied again unless someone else holds it too (``locals()``) or a trace function runs, which would
    carry the emptiness over to the function's variables.
    """
    values = frame.f_locals
    copy = dict(values)
    # References: the frame, this function's variable, the argument of getrefcount.
    optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if type(values) is dict and optimized and sys.getrefcount(values) <= 3 and sys.gettrace() is None:
        values.clear()
    return copy


def context_roots() -> list[Root]:
    """The context variables of the running thread."""
    return [Root(contextvars.copy_context(), "context variables", "other", USER_FRAME)]


def default_roots(namespace: dict[str, Any] | None = None) -> list[Root]:
    """All of the roots of this module."""
    return [*namespace_roots(namespace), *frame_roots(), *module_roots(), *context_roots()]


@functools.cache
def _directories(*names: str) -> tuple[str, ...]:
    """Directories by their `sysconfig` names, each as it is spelled and with its links resolved."""
    import sysconfig

    paths = {sysconfig.get_path(name) for name in names}
    return tuple({p.rstrip(os.sep) + os.sep for p in paths} | {os.path.realpath(p) + os.sep for p in paths})


def usual_owner(module: str | None, filename: str | None) -> str:
    """``"python"``, ``"library"`` or ``"user"``, by where a file lies or by the name of a module without one."""
    if filename:
        if filename.startswith(_directories("purelib", "platlib")) or _SITE_PACKAGES.search(filename):
            return "library"
        if filename.startswith((*_directories("stdlib", "platstdlib"), "<frozen ")):
            return "python"
        return "user"
    top = (module or "").partition(".")[0]
    return "python" if top in sys.stdlib_module_names or not top else "library" if module != "__main__" else "user"
