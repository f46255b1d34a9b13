"""The newest part of the heap, read before the rest: what leaked is new, and mostly so is what holds it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from itertools import chain

from jaxleak_magic.heap.snapshot import Snapshot

_CROWD = 2000


def newest_objects(number: int) -> list[object]:
    """About so many of the objects that ``gc`` has tracked last, as far as its lists tell.

    The young generations are new, and at the end of the oldest are those that joined it last. A heap that has been
    collected once since it was made is in another order, and so may be that of CPython 3.14; the order decides how soon
    holders are found, not which.
    """
    objects = gc.get_objects(generation=2)
    del objects[:-number]
    for generation in (1, 0):
        young = gc.get_objects(generation=generation)
        objects += young[:number]
        young.clear()
    return objects


class NewestHolders:
    """Holders among the newest objects, and among some others.

    Attributes:
        snapshot: what was read.
    """

    def __init__(self, number: int, others: Iterable[object], memory: int, deadline: float) -> None:
        """Read the references.

        Args:
            number: about how many of the newest objects to read.
            others: what to read besides.
            memory: bytes that may be taken.
            deadline: `time.monotonic` time after which reading is given up.

        Raises:
            SnapshotTooLarge: either limit was met.
        """
        objects = newest_objects(number)
        ids = set(map(id, objects))
        objects += {id(other): other for other in others if id(other) not in ids}.values()
        self._ids = ids.union(map(id, others))
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
