"""Containers too wide to be searched forwards: wide ones among their entries, and what most of their entries hold."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxleak_magic.heap.objects import is_one_of

WIDE = 1000
"""References: a container with more is data, which is not followed entry by entry."""
_SOME = 64
_MANY = 8  # more than one in so many


def surely_wide(thing: Any) -> bool:
    """Whether it is a plain container with so many entries; of other wide things this cannot be told."""
    return is_one_of(type(thing), list, tuple, dict, set, frozenset) and len(thing) > WIDE


def some_entries(container: Any) -> list[object]:
    """A few entries from all over a container."""
    entries = _entries(container)
    return list(entries[:: max(1, len(entries) // _SOME)])


def wide_entries(container: Any, last: int) -> list[object]:
    """A few wide lists, tuples and dicts among the last so many entries of a container: what leaked is new."""
    entries = _entries(container)[-last:] if last else ()
    found: list[object] = []
    for entry in entries:
        kind = type(entry)
        if (kind is list or kind is dict or kind is tuple) and len(entry) > WIDE:
            found.append(entry)
            if len(found) == _SOME:
                break
    return found


def _entries(container: Any) -> Sequence[Any]:
    return container if is_one_of(type(container), list, tuple) else gc.get_referents(container)


def held_by_many(things: list[object]) -> list[object]:
    """What many of some things hold."""
    held: dict[int, object] = {}
    times: Counter[int] = Counter()
    for thing in things:
        children = {id(child): child for child in gc.get_referents(thing)}
        held.update(children)
        times.update(children.keys())
    return [held[i] for i, n in times.items() if n * _MANY > len(things)]
