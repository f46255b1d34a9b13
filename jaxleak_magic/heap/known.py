"""Holders that are read beforehand, and whether they account for all references to an object.

An object whose reference count equals the references found so far has no other holder, and need not be searched for
in the heap: that is the difference between two hundred objects to look for, and none.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from jaxleak_magic.heap.wide import WIDE, surely_wide

_REFERENCES_READ = 2_000_000


class KnownHolders:
    """References read so far: from which objects, to which, and how many.

    Attributes:
        objects: the holders added with ``keep``, by id.
    """

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self._read: set[int] = set()
        self._holders: dict[int, set[int]] = {}
        self._counts: Counter[int] = Counter()

    def close(self) -> None:
        """Let go of every object."""
        self.objects.clear()

    def add(self, holder: object, children: Sequence[int], keep: bool = False) -> None:
        """Note all references of a holder; a second time they are not counted again.

        Args:
            holder: what refers to them.
            children: ids of what it refers to, one twice if it does so twice.
            keep: whether `of` is to give this holder.
        """
        if id(holder) in self._read:
            return
        self._read.add(id(holder))
        self._counts.update(children)
        if keep:
            self.objects[id(holder)] = holder
            for child in children:
                self._holders.setdefault(child, set()).add(id(holder))

    def of(self, child: int) -> list[object]:
        """The kept holders of the object with this id."""
        return [self.objects[i] for i in self._holders.get(child, ())]

    def has_read(self, holder: object) -> bool:
        """Whether the references of this holder are counted."""
        return id(holder) in self._read

    def explained(self, objects: list[object], besides: Counter[int], more: Counter[int]) -> list[bool]:
        """For each object whether the holders read so far are all that it has.

        Args:
            objects: a list that refers to them once each; of the search itself one other dict may refer to them.
            besides: references from what is no holder, by id.
            more: references from holders that have not been added, by id.
        """
        if not _counts_are_exact():
            return [False] * len(objects)
        counts = list(map(sys.getrefcount, objects))
        of_a_list = next(map(sys.getrefcount, [object()]))
        ids = list(map(id, objects))
        ours = [of_a_list + 1 + besides[i] + (i in self.objects) for i in ids]
        known = [self._counts[i] + more[i] for i in ids]
        return [0 < k == n - o for n, o, k in zip(counts, ours, known, strict=True)]


@cache
def _counts_are_exact() -> bool:
    """Whether a reference count is the number of references; not so in free-threaded builds."""
    return sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


def references_of(holders: Iterable[object], most: int = 10_000) -> Counter[int]:
    """How often these objects together refer to others, by id; without holders of more than ``most``."""
    counts: Counter[int] = Counter()
    for holder in holders:
        referents = gc.get_referents(holder)
        if len(referents) <= most:
            counts.update(map(id, referents))
    return counts


def complete_levels(
    starts: Sequence[object],
    limit: int,
    keep: Callable[[object], bool],
    enter: Callable[[object], bool],
    left_out: list[object],
) -> Iterator[tuple[list[tuple[object, list[int]]], dict[int, object]]]:
    """What lies below some objects, level by level, as long as whole levels fit into the limit.

    Args:
        starts: objects to begin at; these are read however wide they are.
        limit: number of objects.
        keep: whether a child counts at all.
        enter: whether a child is read on the next level.
        left_out: takes what was not read because it is wide.

    Yields:
        The references of a level, as holders with the ids of their children, and the objects met for the first time.
    """
    level, seen, read = list(starts), set(map(id, starts)), 0
    wide = seen.copy()
    while level:
        edges: list[tuple[object, list[int]]] = []
        below: dict[int, object] = {}
        for holder in level:
            if surely_wide(holder) and id(holder) not in wide:
                left_out.append(holder)
                continue
            referents = gc.get_referents(holder)
            read += len(referents)
            if read > _REFERENCES_READ:
                return
            if len(referents) > WIDE and id(holder) not in wide:
                left_out.append(holder)
                continue
            kind = type(holder)
            kept = [child for child in referents if child is not kind and keep(child)]
            ids = list(map(id, kept))
            edges.append((holder, ids))
            below.update(zip(ids, kept, strict=True))
            if len(below) > 2 * limit:
                return
        for i in seen.intersection(below):
            del below[i]
        seen.update(below)
        if len(seen) > limit:
            return
        yield edges, below
        level = [child for child in below.values() if enter(child)]
