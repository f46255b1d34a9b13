"""Choosing paths in an explored referrer graph: for every target the nearest few entries into it from the roots.

An entry is a variable of a root: the pair of the root and the object that it names. Every node keeps its nearest few
entries (lower rank first, then fewer references), spread from the roots down; a target's paths are read off by
following them back up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jaxleak_magic.heap.explored import Explored

Entry = tuple[int, int]
_HOLDERS_COMPARED = 256  # direct holders of a target that are tried for further paths


@dataclass(frozen=True)
class Chain:
    """A path as ids: the target, its holder, and so on to the root's object; ``rank`` is None if there is no root."""

    ids: tuple[int, ...]
    rank: int | None


class NearestEntries:
    """Every node's nearest entries into the graph, as (rank, references, entry, holder through which it is reached)."""

    def __init__(self, explored: Explored, keep: int, rank_of: Callable[[int, int], tuple[int, int]]) -> None:
        """Spread the entries.

        Args:
            explored: the graph.
            keep: how many entries each node keeps.
            rank_of: gives rank and order within that rank for an entry, from the root's and the child's id.
        """
        self._explored = explored
        self._labels: dict[int, list[tuple[int, int, Entry, int]]] = {}
        entries = [(root, child) for root in explored.roots for child in explored.children.get(root, ())]
        starts = sorted((rank_of(root, child), (root, child)) for root, child in entries)
        by_rank: dict[int, list[Entry]] = {}
        for (rank, _order), entry in starts:
            by_rank.setdefault(rank, []).append(entry)
        for rank in sorted(by_rank):
            self._spread(rank, by_rank[rank], keep)

    def _spread(self, rank: int, entries: list[Entry], keep: int) -> None:
        labels, children, roots = self._labels, self._explored.children, self._explored.roots
        level = [(child, (root, child), root) for root, child in entries]
        references = 0
        while level:
            references += 1
            below: list[tuple[int, Entry, int]] = []
            for node, entry, holder in level:
                known = labels.setdefault(node, [])
                if len(known) >= keep or any(label[2] == entry for label in known):
                    continue
                known.append((rank, references, entry, holder))
                if node not in roots:
                    below += [(child, entry, node) for child in children.get(node, ())]
            level = below

    def chains(self, target: int, holders: Iterable[int], limit: int) -> list[Chain]:
        """The best paths to a target: of different entries first, then through different direct holders."""
        roots, labels = self._explored.roots, self._labels
        found: list[tuple[int, int, int, int, Entry, int]] = []  # ends in what is not to be compared
        for order, holder in enumerate(holders):
            if order >= _HOLDERS_COMPARED:
                break
            if holder not in roots:
                found += [(r, n + 1, order, k, e, holder) for k, (r, n, e, _) in enumerate(labels.get(holder, ()))]
        found += [(r, n, -1, k, e, h) for k, (r, n, e, h) in enumerate(labels.get(target, ()))]
        heapq.heapify(found)
        chosen: list[Chain] = []
        spare: list[Chain] = []
        entries: set[Entry] = set()
        first_holders: set[int] = set()
        while found and len(chosen) < limit:
            rank, _, _, _, entry, holder = heapq.heappop(found)
            if entry in entries and holder in first_holders:
                continue
            chain = Chain((target, *self._up(holder, entry)), rank)
            if target in chain.ids[1:]:
                continue
            if entry not in entries:
                chosen.append(chain)
            elif len(spare) < limit:
                spare.append(chain)
            entries.add(entry)
            first_holders.add(holder)
        chosen += spare[: limit - len(chosen)]
        return chosen

    def _up(self, node: int, entry: Entry) -> list[int]:
        ids = [node]
        while node != entry[0]:
            node = next(holder for _, _, e, holder in self._labels[node] if e == entry)
            ids.append(node)
        return ids


def holders_of(explored: Explored, nodes: Iterable[int]) -> dict[int, list[int]]:
    """The direct holders of some nodes."""
    result: dict[int, list[int]] = {node: [] for node in nodes}
    wanted = result.keys()
    for holder, children in explored.children.items():
        for child in children & wanted if len(wanted) > len(children) else wanted & children:
            result[child].append(holder)
    return result


def dangling_chain(explored: Explored, target: int, holders: Mapping[int, list[int]]) -> Chain | None:
    """The shortest path from a target up to something that nothing visible holds.

    None if there is no such thing: the target is garbage in a cycle, or all its holders are behind barriers.
    """
    below: dict[int, int] = {target: 0}
    level = [target]
    while level:
        above: list[int] = []
        for node in level:
            if node in explored.dangling and node != target:
                ids = [node]
                while node != target:
                    node = below[node]
                    ids.append(node)
                return Chain(tuple(reversed(ids)), None)
            for holder in holders.get(node, ()):
                if holder not in below:
                    below[holder] = node
                    above.append(holder)
        level = above
    return None
