"""Which classes a transform takes apart and puts together again when it returns their objects."""

from __future__ import annotations

import sys
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.heap.objects import class_module, is_class, module_dict, type_name

_CONTAINERS = ("builtins", "collections")
"""Modules of the containers in which every traced value is replaced: nothing static hides there."""


def classes_with_static_parts() -> frozenset[str] | None:
    """Type names of the classes whose objects a transform returns, but for plain containers; None where unknown.

    Registered pytrees, and flax's nnx modules, which its own transforms split in the same way.
    """
    registered = _jax.registered_pytrees()
    if registered is None:
        return None
    module = sys.modules.get("flax.nnx")
    base: Any = None if module is None else module_dict(module).get("Module")
    found = [cls for cls in registered if class_module(cls) not in _CONTAINERS]
    found += _jax.subclasses(base) if is_class(base) else []
    return frozenset(type_name(cls) for cls in found)
