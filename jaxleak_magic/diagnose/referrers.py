"""From the heap's steps to links in the user's names: roots, labels of JAX's objects, owners."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.diagnose.model import Link, Owner
from jaxleak_magic.diagnose.trace_stack import Places
from jaxleak_magic.heap import Path, Root, Step
from jaxleak_magic.heap.objects import is_module, module_dict

_IPYTHON = ("IPython", "ipykernel", "traitlets", "jupyter_client", "comm")
_JAX = ("jax", "jaxlib", "jaxlib_extension")
_HISTORY_NAME = re.compile(r"_{1,3}|_\d+")
_SHOWN_AT_AN_END = 20
_LONGEST_ACCESS = 2_000
"""Characters of an expression that reaches a holder; Python itself cannot parse one that is nested much deeper."""

_RANK = {"user": 1, "library": 5, "ipython": 5, "jax": 6, "python": 7}


def owner_of_module(name: str | None, owners: CodeOwners) -> Owner:
    """Whose a module is, by its name and where it was loaded from."""
    if not name:
        return "python"
    top = name.partition(".")[0]
    if top == "__main__":
        return "user"
    if top in _JAX:
        return "jax"
    if top in _IPYTHON:
        return "ipython"
    if top == "builtins" or top in sys.stdlib_module_names:
        return "python"
    module = sys.modules.get(name) or sys.modules.get(top)
    file = _file_of(module)
    if file is None:
        return "user" if module is not None and type(module) is ModuleType else "library"
    owner = owners.of_file(file)
    return "library" if owner == "own" else owner


def _file_of(module: object) -> str | None:
    if type(module) is not ModuleType:
        return None
    file = module_dict(module).get("__file__")
    return file if type(file) is str else None


def namespace_and_module_roots(
    namespace: Mapping[str, Any], extra: Mapping[str, Any], owners: CodeOwners
) -> list[Root]:
    """The roots that a search may end in: the user's namespace, ``Out`` and others, and every module.

    Args:
        namespace: the user's namespace.
        extra: named holders such as ``Out``.
        owners: tells whose a module is.
    """
    roots = [Root(namespace, "", "namespace", 0)]
    roots += [Root(value, name, "history", 3) for name, value in extra.items()]
    seen = {id(namespace)}
    for name, module in list(sys.modules.items()):
        if not is_module(module):
            continue  # anything can be put into sys.modules
        content = module_dict(module)
        if id(content) in seen:
            continue
        seen.add(id(content))
        if name.partition(".")[0] == "jaxleak_magic":
            continue
        # Finalizers belong to whoever registered them, although the registry is Python's.
        rank = 1 if name == "weakref" else _RANK[owner_of_module(name, owners)]
        roots.append(Root(content, name, "module", rank))
    return roots


def plumbing_classes() -> list[type]:
    """Classes of objects through which no path explains anything: IPython's shell reaches the namespace it runs in."""
    module = sys.modules.get("IPython.core.interactiveshell")
    shell = getattr(module, "InteractiveShell", None)
    found, queue = list[type](), [shell] if isinstance(shell, type) else []
    while queue:
        cls = queue.pop()
        found.append(cls)
        queue += type.__subclasses__(cls)
    return found


CALLER, LAST_CALLER = 10, 90
"""Ranks of roots between these are functions of the user's that were running when the code failed, outermost first."""


def is_callers(path: Path) -> bool:
    """Whether a local variable of a function of the user's keeps the value, which was running when the code failed."""
    return path.root_kind == "frame" and path.root_rank is not None and path.root_rank >= CALLER


def is_history(path: Path) -> bool:
    """Whether IPython's output history itself holds the target: ``Out[3]``, ``_``, ``_3``."""
    if len(path.steps) != 1:
        return False
    root = path.steps[0]
    return path.root_kind == "history" or (root.kind == "global" and bool(_HISTORY_NAME.fullmatch(root.name or "")))


def is_ipythons_frame(path: Path, owners: CodeOwners) -> bool:
    """Whether a path ends in a function of IPython's that is running the cell: it explains nothing."""
    if path.root_kind not in ("frame", "thread") or not path.steps:
        return False
    root = path.steps[-1]
    return owner_of_module(root.module, owners) == "ipython" or "IPython" in (root.filename or "")


def owner_of_step(step: Step, owners: CodeOwners) -> Owner:
    """Whose object the holder of a step is."""
    if step.filename is not None:
        owner = owners.of_file(step.filename)
        return "library" if owner == "own" else owner
    return owner_of_module(step.module, owners)


def owner_by_file_or_module(owners: CodeOwners) -> Callable[[str | None, str | None], str]:
    """``owner_of(module, filename)`` as the heap's ranking asks for it."""

    def owner_of(module: str | None, filename: str | None) -> str:
        return owners.of_file(filename) if filename else owner_of_module(module, owners)

    return owner_of


def links_of(path: Path, places: Places) -> tuple[Link, ...]:
    """A path's steps as links, from the tracer up to the root; of a very long path the middle is only counted."""
    left_out = len(path.steps) - 2 * _SHOWN_AT_AN_END
    if left_out <= 1:
        return tuple(_link(step, places) for step in path.steps)
    first, last = path.steps[:_SHOWN_AT_AN_END], path.steps[-_SHOWN_AT_AN_END:]
    gap = Link("other", f"{left_out} further steps", "", "python", holder="…")
    return (*(_link(step, places) for step in first), gap, *(_link(step, places) for step in last))


def _link(step: Step, places: Places) -> Link:
    owner = owner_of_step(step, places.owners)
    place = None
    if step.filename is not None and step.line is not None and owner == "user":
        name = (step.qualname or "").rpartition(".")[2]
        place = places.of_definition(step.filename, step.line, name, step.qualname)
    return Link(
        kind=step.kind,
        label=_label(step),
        type=step.type,
        owner=owner,
        line=place.line if place is not None else step.line,
        name=step.name,
        holder=step.holder,
        node=step.node,
        place=place,
    )


def _label(step: Step) -> str:
    name, holder = step.name or "", step.holder
    labels = {
        "closure_cell": f"{holder} closes over {name}",
        "attribute": f"attribute {name} of {holder}",
        "item": f"item {name} of {holder}",
        "key": f"entry {name} of {holder}" if name.startswith("[") else f"a key of {holder}",
        "argument_default": f"default of argument {name} of {holder}",
        "bound_method": f"bound method {name or holder}",
        "partial": f"argument {name} of {holder}" if name else f"bound in {holder}",
        "generator": f"local variable {name} of the suspended {holder}",
        "frame_local": f"local variable {name} of {holder}",
        "global": f"global variable {name}" if holder == "notebook" else f"{name} of {holder}",
        "class_attribute": f"class attribute {name} of {holder}",
        "weak": f"entry {name} of the weak {holder}",
        "pytree_aux": f"aux data of a pytree ({holder})",
        "cache": f"cache of {holder}",
    }
    return labels.get(step.kind) or (f"{name} of {holder}" if name else f"held by {holder}")


def access_expression(path: Path) -> str | None:
    """Expression that reaches the holder from the namespace (``learners.schedule``), or None where there is none."""
    parts: list[str] = []
    for step in reversed(path.steps):
        if step.kind == "global":
            parts = [step.name or ""]
        elif not parts and path.root_kind == "history" and step is path.steps[-1]:
            parts = [f"{path.root_name}{step.name or ''}"]
        elif not parts:
            return None
        elif step.kind == "attribute" and step.name:
            parts.append("." + step.name.removeprefix("."))
        elif step.kind in ("item", "key") and (step.name or "").startswith("["):
            parts.append(step.name or "")
        else:
            break
    access = "".join(parts)
    return access if 0 < len(access) <= _LONGEST_ACCESS else None


def function_name(step: Step) -> str:
    """``__name__`` of the function that a step is about."""
    return (step.qualname or step.holder).rpartition(".")[2]
