"""What the names of the user's namespace mean, as plain data: rewriting must know that `vmap` is `jax.vmap`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.diagnose.model import NameFact
from jaxleak_magic.diagnose.referrers import owner_of_module
from jaxleak_magic.heap.objects import class_module, derives, is_module, module_dict, type_name

_PUBLIC = ("jax", "jax.lax", "jax.tree_util", "jax.numpy", "jax.experimental.ode", "functools")
"""Modules whose public names users import one by one; an object is known there by identity."""


def library_names(namespace: Mapping[str, Any], owners: CodeOwners) -> tuple[NameFact, ...]:
    """Names bound to modules, functions and classes of libraries, with their full names.

    Args:
        namespace: the user's namespace; its values are only compared by identity and type.
        owners: tells whose a module is.
    """
    public = _public_names()
    found: list[NameFact] = []
    for name, value in list(namespace.items()):
        if type(name) is not str or name.startswith("__"):
            continue
        full_name = _full_name(value, public, owners)
        if full_name is not None:
            found.append(NameFact(name, full_name))
    return tuple(found)


def library_objects(namespace: Mapping[str, Any], owners: CodeOwners) -> tuple[NameFact, ...]:
    """Names bound to instances of classes that are not the user's, with the full names of the classes.

    Args:
        namespace: the user's namespace; its values are only asked for their type.
        owners: tells whose a module is.
    """
    found: list[NameFact] = []
    for name, value in list(namespace.items()):
        kind = type(value)
        if type(name) is not str or name.startswith("_") or derives(kind, type, ModuleType, FunctionType):
            continue
        module = class_module(kind)
        if module is not None and owner_of_module(module, owners) != "user":
            found.append(NameFact(name, type_name(kind)))
    return tuple(found)


def _full_name(value: object, public: Mapping[int, str], owners: CodeOwners) -> str | None:
    if is_module(value):
        full_name = module_dict(value).get("__name__")
        return full_name if type(full_name) is str else None
    if id(value) in public:
        return public[id(value)]
    if type(value) is FunctionType or type(value) is type:
        module, qualname = value.__module__, value.__qualname__
    else:
        return None
    if type(module) is not str or owner_of_module(module, owners) == "user":
        return None
    return f"{module}.{qualname}"


def _public_names() -> dict[int, str]:
    found: dict[int, str] = {}
    for module_name in _PUBLIC:
        module = sys.modules.get(module_name)
        if module is None:
            continue
        for name, value in list(module_dict(module).items()):
            if not name.startswith("_") and callable(value):
                found.setdefault(id(value), f"{module_name}.{name}")
    return found
