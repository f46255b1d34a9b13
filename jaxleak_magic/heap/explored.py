"""The part of the referrer graph that a search has found, by ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxleak_magic.heap.paths import Root

FAR = 1 << 30
"""Rank of what no root reaches."""


class Explored:
    """The graph, and why searching stopped.

    Attributes:
        objects: every node by its id; holding them keeps the ids unique.
        children: holder's id -> ids of what it holds, towards the targets.
        roots: id of a root's object -> position in the sequence of roots.
        root_rank: id of a root's object -> its rank.
        rank: node's id -> best rank of a root that reaches it.
        held: nodes that have a holder, be it one that is not walked through.
        blocked: what holds a target and is not walked through, by its id.
        dangling: nodes that nothing visible holds.
        unfinished: the reason, as a sentence, if a budget ended the search.
        walks: how many walks over the heap were made; a snapshot counts as 4.
    """

    def __init__(self, roots: Sequence[Root], entry_rank: Mapping[int, Mapping[int, int]]) -> None:
        """Begin with the roots alone.

        Args:
            roots: where paths begin; of several with the same object the one of the best rank counts.
            entry_rank: for a root's object, by id, the ranks of children whose rank is not the root's, by id.
        """
        self.objects: dict[int, object] = {}
        self.children: dict[int, set[int]] = {}
        self.roots: dict[int, int] = {}
        self.rank: dict[int, int] = {}
        self.held: set[int] = set()
        self.blocked: dict[int, object] = {}
        self.dangling: set[int] = set()
        self.unfinished: str | None = None
        self.walks = 0
        self._entry_rank = entry_rank
        for position, root in enumerate(roots):
            best = self.roots.setdefault(id(root.obj), position)
            if root.rank < roots[best].rank:
                self.roots[id(root.obj)] = position
        self.root_rank = {i: roots[position].rank for i, position in self.roots.items()}

    def close(self) -> None:
        """Let go of every object."""
        self.objects.clear()
        self.blocked.clear()

    def link(self, holder: int, children: Iterable[int]) -> None:
        """Note references, and that what reaches the holder reaches its children."""
        self.held.update(children)
        self.children.setdefault(holder, set()).update(children)
        rank = self.root_rank.get(holder)
        if rank is not None:
            special = self._entry_rank.get(holder, {})
            for child in children:
                self._reach(child, special.get(child, rank))
        elif holder in self.rank:
            for child in children:
                self._reach(child, self.rank[holder])

    def _reach(self, node: int, rank: int) -> None:
        """Note that a root of this rank reaches the node and everything below it."""
        stack = [node]
        while stack:
            node = stack.pop()
            if self.rank.get(node, FAR) > rank:
                self.rank[node] = rank
                if node not in self.root_rank:
                    stack.extend(self.children.get(node, ()))
