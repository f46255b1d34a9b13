"""The references of the heap read once into a flat array, so that every further level of a search costs a scan of it.

Figures (843,000 objects, 1.8 million references, Python 3.11 and 3.13, in walks over the heap): reading 3-4.5, one scan
0.2. One walk per level is cheaper for a few levels and a few objects; this is for the rest. Needs NumPy.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from jaxleak_magic.heap.addresses import common, ids_of

if TYPE_CHECKING:
    import numpy as np

_CHUNK = 512
_KEY_BITS = 20
_COMPARED = 3  # so few ids are compared one by one, which beats the table
_BYTES = 20  # a reference takes 8 as an id, 4 as a key, and 8 more while the parts are put together


class SnapshotTooLarge(Exception):
    """The heap's references do not fit into the budget."""


class Snapshot:
    """The ids of everything that every gc-tracked object refers to, in the order of ``objects``, by 512 objects.

    Which object of a chunk owns a reference is found only for chunks that are hit, by counting the references of its
    objects again.
    """

    def __init__(self, objects: list[object], memory: int, deadline: float) -> None:
        """Read what the objects refer to.

        Args:
            objects: all or part of the heap, each once; the list is the snapshot's from now on.
            memory: bytes that the arrays may take.
            deadline: `time.monotonic` time after which reading is given up.

        Raises:
            SnapshotTooLarge: either limit was met.
        """
        self.objects = objects
        self._ends: dict[int, np.ndarray | None] = {}
        try:
            self._read(memory, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of every object of the heap."""
        self.objects.clear()
        self._ends.clear()

    def _read(self, memory: int, deadline: float) -> None:
        import numpy as np

        parts, starts, total = [np.empty(0, np.uintp)], [0], 0
        for first in range(0, len(self.objects), _CHUNK):
            ids = ids_of(gc.get_referents(*self.objects[first : first + _CHUNK]))
            parts.append(ids)
            total += len(ids)
            starts.append(total)
            if not first % (256 * _CHUNK) and (total * _BYTES > memory or time.monotonic() > deadline):
                raise SnapshotTooLarge
        self.chunks = len(starts) - 1
        self._edges = np.concatenate(parts)
        self._starts = np.array(starts)
        self._keys = self._key(self._edges)
        self._table = np.zeros(1 << _KEY_BITS, bool)

    def _key(self, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        return ((ids >> np.uintp(4)) & np.uintp((1 << _KEY_BITS) - 1)).astype(np.uint32)

    def hits(self, wanted: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Positions of all references to the objects with the ids ``wanted``, and those ids."""
        import numpy as np

        ids = np.array(wanted, np.uintp)
        ids.sort()
        if len(ids) <= _COMPARED:
            mask = self._edges == ids[0]
            for i in ids[1:]:
                mask |= self._edges == i
            at = np.flatnonzero(mask)
            return at, self._edges[at]
        keys = self._key(ids)
        self._table[keys] = True
        at = np.flatnonzero(self._table[self._keys])
        self._table[keys] = False
        found = self._edges[at]
        slot = np.searchsorted(ids, found)
        slot[slot == len(ids)] = 0
        exact = ids[slot] == found
        return at[exact], found[exact]

    def chunks_to_count(self, at: np.ndarray) -> int:
        """How many chunks with a hit have not had their references counted yet."""
        import numpy as np

        chunks = np.unique(np.searchsorted(self._starts, at, side="right") - 1)
        return sum(chunk not in self._ends for chunk in chunks.tolist())

    def owners(self, at: np.ndarray, found: np.ndarray) -> list[tuple[object, list[int]]]:
        """The objects that own the hits, each with the ids that it refers to (an id may come twice)."""
        import numpy as np

        chunks = np.searchsorted(self._starts, at, side="right") - 1
        firsts = np.flatnonzero(np.diff(chunks, prepend=-1)).tolist()
        result: list[tuple[object, list[int]]] = []
        for k, first in enumerate(firsts):
            last = firsts[k + 1] if k + 1 < len(firsts) else len(at)
            chunk = int(chunks[first])
            ends = self._ends_of(chunk)
            if ends is None:  # the chunk has changed since it was read
                result += self._reread(chunk, set(found[first:last].tolist()))
                continue
            places = np.searchsorted(ends, at[first:last] - self._starts[chunk], side="right").tolist()
            base, before = chunk * _CHUNK, -1
            for place, child in zip(places, found[first:last].tolist(), strict=True):
                if place == before:
                    result[-1][1].append(child)
                else:
                    result.append((self.objects[base + place], [child]))
                    before = place
        return result

    def _ends_of(self, chunk: int) -> np.ndarray | None:
        import numpy as np

        if chunk not in self._ends:
            members = self.objects[chunk * _CHUNK : (chunk + 1) * _CHUNK]
            counts = list(map(len, map(gc.get_referents, members)))
            size = int(self._starts[chunk + 1] - self._starts[chunk])
            self._ends[chunk] = np.cumsum(counts) if sum(counts) == size else None
        return self._ends[chunk]

    def _reread(self, chunk: int, wanted: set[int]) -> list[tuple[object, list[int]]]:
        result: list[tuple[object, list[int]]] = []
        for holder in self.objects[chunk * _CHUNK : (chunk + 1) * _CHUNK]:
            children = common(gc.get_referents(holder), wanted)
            if children:
                result.append((holder, list(children)))
        return result
