"""The newest part of the heap, read before the rest: what leaked is new, and mostly so is what holds it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from itertools import chain

from jaxleak_magic.heap.snapshot import Snapshot

_CROWD = 2000


def newest_objects(number: int, before: object) -> list[object]:
    """About so many of the objects that ``gc`` has tracked last, as far as its lists tell, oldest first.

    The young generations are new, and at the end of the oldest are those that joined it last. A heap that has been
    collected once since it was made is in another order, and so may be that of CPython 3.14; the order decides how soon
    holders are found, not which.

    Args:
        number: how many to take of each generation.
        before: an object made when the search began; what was made later belongs to the search, and still changes.
    """
    objects = gc.get_objects(generation=2)
    del objects[:-number]
    for generation in (1, 0):
        young = gc.get_objects(generation=generation)
        end = next((k for k in range(len(young) - 1, -1, -1) if young[k] is before), len(young))
        objects += young[max(0, end - number) : end]
        young.clear()
    return objects


class NewestHolders:
    """Holders among the newest objects, and among some others.

    Attributes:
        snapshot: what was read.
    """

    def __init__(self, number: int, before: object, others: Iterable[object], memory: int, deadline: float) -> None:
        """Read the references.

        Args:
            number: about how many of the newest objects to read.
            before: an object made when the search began.
            others: what to read besides.
            memory: bytes that may be taken.
            deadline: `time.monotonic` time after which reading is given up.

        Raises:
            SnapshotTooLarge: either limit was met.
        """
        newest = newest_objects(number, before)
        self._ids = set(map(id, newest))
        objects: list[object] = list({id(other): other for other in others if id(other) not in self._ids}.values())
        self._ids.update(map(id, others))
        objects += newest
        newest.clear()
        self.snapshot = Snapshot(objects, memory, deadline)

    def close(self) -> None:
        """Let go of every object."""
        self.snapshot.close()

    def of(self, nodes: list[object]) -> dict[int, tuple[object, list[int]]]:
        """Holders of some objects by id, each with the ids of what it holds, as often as it does; none of a crowd."""
        at, found = self.snapshot.hits(list(map(id, nodes)))
        if len(at) > _CROWD:
            return {}
        return {id(holder): (holder, children) for holder, children in self.snapshot.owners(at, found)}

    def references(self, nodes: list[object]) -> Counter[int]:
        """How often this object itself refers to the nodes, by id."""
        return Counter(filter(self._ids.__contains__, map(id, nodes)))


def count(holders: dict[int, tuple[object, list[int]]]) -> Counter[int]:
    """How often holders hold each of their children, by id."""
    return Counter(chain.from_iterable(children for _, children in holders.values()))
