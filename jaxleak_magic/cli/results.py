"""What a run computed, as plain numbers by name, so that two runs in processes of their own can be compared."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

Results = dict[str, tuple[float, ...]]
"""Numbers by the name that is bound to them, ``_`` for the value of the last expression."""

_GREATEST_SIZE = 20_000
"""Elements of one value above which it is not compared."""
_GREATEST_DEPTH = 6
_TOLERANCE = 1e-4
"""Relative to the greater of 1 and the numbers themselves: float32 sums in another order stay below."""


def plain_results(namespace: Mapping[str, Any], last: Any = None) -> Results:
    """The numbers in a namespace.

    Args:
        namespace: names and values of the user's; modules and names that begin with ``_`` are left out.
        last: value of the last expression.

    Returns:
        Numbers, arrays, and lists, tuples and dicts of them, flattened; a name with anything else in it is left out.
    """
    found: Results = {}
    items = [(name, value) for name, value in dict(namespace).items() if type(name) is str and name[:1] != "_"]
    for name, value in [*items, ("_", last)]:
        numbers = None if isinstance(value, types.ModuleType) else _numbers(value, 0)
        if numbers is not None:
            found[name] = tuple(numbers)
    return found


def first_difference(one: Results, other: Results) -> str | None:
    """The first name that both have with different numbers, or None."""
    for name in one:
        if name in other and not _equal(one[name], other[name]):
            return name
    return None


def _equal(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    if len(one) != len(other):
        return False
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= _TOLERANCE * max(1.0, abs(a), abs(b))
        for a, b in zip(one, other, strict=True)
    )


def _numbers(value: Any, depth: int) -> list[float] | None:
    """The numbers of a value in order; None where there is anything else in it."""
    import jax
    import numpy as np

    kind = type(value)
    if kind is dict:
        inner = [value[key] for key in sorted(value, key=_order)]
    elif kind is list or issubclass(kind, tuple):
        inner = list(value) if kind is list else list(tuple.__iter__(value))
    elif kind in (bool, int, float, complex) or issubclass(kind, np.generic | np.ndarray) or _is_array(value, jax):
        return _elements(value, jax, np)
    else:
        return None
    parts = [_numbers(each, depth + 1) for each in inner] if depth < _GREATEST_DEPTH else [None]
    return None if any(part is None for part in parts) else [x for part in parts for x in part or ()]


def _order(key: Any) -> tuple[str, str]:
    return type(key).__name__, key if type(key) is str else repr(key) if type(key) in (int, float, bool) else ""


def _is_array(value: Any, jax: Any) -> bool:
    return issubclass(type(value), jax.Array) and not issubclass(type(value), jax.core.Tracer)


def _elements(value: Any, jax: Any, np: Any) -> list[float] | None:
    try:
        if _is_array(value, jax) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value).ravel()
        if array.size > _GREATEST_SIZE or array.dtype == object:
            return None
        if np.iscomplexobj(array):
            array = np.concatenate([array.real, array.imag])
        numbers: list[float] = array.astype(np.float64).tolist()
    except (RuntimeError, TypeError, ValueError):  # a donated array, an array of strings
        return None
    return numbers
