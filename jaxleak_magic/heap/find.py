"""`find_holders`: the whole search, from targets and roots to readable paths."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from jaxleak_magic.heap.describe import Describer, home_module
from jaxleak_magic.heap.explore import explore
from jaxleak_magic.heap.explored import Explored
from jaxleak_magic.heap.paths import HISTORY, Budget, Labeller, OwnerOf, Path, Root, SearchResult, Step
from jaxleak_magic.heap.roots import history_names, usual_owner
from jaxleak_magic.heap.select import Chain, NearestEntries, dangling_chain, holders_of
from jaxleak_magic.heap.unseen import arrays_with, missing_references

_OWNERS = {"user": 0, "ipython": 1, "library": 1, "python": 1, "jax": 2}


def find_holders(
    targets: Sequence[object],
    roots: Sequence[Root],
    *,
    labellers: Sequence[Labeller] = (),
    barriers: Collection[type] = (),
    skip: Collection[object] = (),
    per_target: int = 3,
    budget: Budget | None = None,
    owner_of: OwnerOf | None = None,
) -> SearchResult:
    """The shortest paths from the roots to each target, of all targets at once.

    The search reports no object of its own, holds nothing when it returns, and runs no code of the objects that it
    looks at. Objects that ``gc.freeze`` has put away are not seen. Automatic garbage collection is off meanwhile.

    Args:
        targets: objects to explain.
        roots: named objects to end at. Where several are the same object, the one of the lowest rank counts. Modules
            that are not among them are not walked through.
        labellers: name references to objects of libraries; asked before anything else is tried.
        barriers: types whose instances are never walked through (exact types: list subclasses too). A path through one
            does not exist. Targets may be of such a type.
        skip: objects of the caller that are no holders, or their ids; the collection itself is skipped too.
        per_target: how many paths of each target to give at most.
        budget: limits of time and memory.
        owner_of: says whose code a step belongs to, for ranking; by default by where its file lies.

    Returns:
        Plain data. A path whose last step is held by nothing visible has ``complete=False``.
    """
    budget = budget or Budget()
    own = {id(targets), id(roots), id(skip), id(labellers), id(barriers)}
    own.update(o if type(o) is int else id(o) for o in skip)
    own.update(map(id, roots))  # the Root instances, not what they stand for
    collecting = gc.isenabled()
    try:
        gc.disable()
        search = _Finder(
            roots, labellers, frozenset(map(id, barriers)), own, skip, per_target, budget, owner_of or usual_owner
        )
        try:
            return search.find(targets)
        finally:
            search.close()
    finally:  # by itself: an interrupt may come in close() too
        if collecting:
            gc.enable()


@dataclass
class _Walked:
    """A path as live objects, from the target up; ``root`` and ``rank`` are None where it ends at nothing known."""

    objects: list[object]
    root: Root | None
    rank: int | None


class _Finder:
    def __init__(
        self,
        roots: Sequence[Root],
        labellers: Sequence[Labeller],
        barriers: Set[int],
        own: set[int],
        skip: Collection[object],
        per_target: int,
        budget: Budget,
        owner_of: OwnerOf,
    ) -> None:
        self.roots, self.labellers, self.barriers, self.own = roots, labellers, barriers, own
        self.skip, self.per_target, self.budget, self.owner_of = skip, per_target, budget, owner_of
        self.entry_ranks = _entry_ranks(roots)
        self.explored: list[Explored] = []

    def close(self) -> None:
        for explored in self.explored:
            explored.close()

    def find(self, targets: Sequence[object]) -> SearchResult:
        found = self._search(targets)
        orphans = [k for k, paths in enumerate(found) if not any(path.root for path in paths)]
        invisible = self._invisible(targets, orphans, found)
        if invisible:
            for k, paths in self._through_arrays(targets, sorted(invisible)).items():
                found[k] = [*paths, *found[k]][: self.per_target]
        paths = self._described(found)
        reason = next((e.unfinished for e in self.explored if e.unfinished), None)
        if reason is None and gc.get_freeze_count():
            reason = "Objects put away by gc.freeze() were not searched."
        unexplained = frozenset(k for k in invisible if not any(path.complete for path in paths[k]))
        return SearchResult(paths, reason is None, reason, unexplained, sum(e.walks for e in self.explored))

    def _search(self, targets: Sequence[object]) -> list[list[_Walked]]:
        self.own.add(id(targets))
        no_holders = {id(o): o for o in (targets, self.skip, *self.skip) if type(o) is not int}
        self.own.add(id(no_holders))
        explored = explore(
            targets, self.roots, self.barriers, self.own, self.budget, self.entry_ranks, no_holders.values()
        )
        self.explored.append(explored)
        chains = self._chosen(explored, list(map(id, targets)))
        return [[self._walked(explored, chain) for chain in some] for some in chains]

    def _chosen(self, explored: Explored, targets: Sequence[int]) -> list[list[Chain]]:
        nearest = NearestEntries(explored, self.per_target, self._rank_of(explored))
        holders = holders_of(explored, targets)
        chosen = [nearest.chains(target, holders[target], self.per_target) for target in targets]
        if not all(chosen):
            everyone = holders_of(explored, explored.objects)
            for target, chains in zip(targets, chosen, strict=True):
                chain = None if chains else dangling_chain(explored, target, everyone)
                if chain is not None:
                    chains.append(chain)
        return chosen

    def _rank_of(self, explored: Explored) -> Callable[[int, int], tuple[int, int]]:
        ranks = {root.name: root.rank for root in self.roots if root.kind == "module"}

        def rank_of(root_id: int, child_id: int) -> tuple[int, int]:
            position = explored.roots[root_id]
            root = self.roots[position]
            rank = self.entry_ranks.get(root_id, {}).get(child_id, root.rank)
            if root.kind == "module":
                home = home_module(explored.objects[child_id])
                if (
                    home != root.name and home in ranks
                ):  # imported from where it is defined: that module's, and named so
                    return max(rank, ranks[home]), position + len(self.roots)
            return rank, position

        return rank_of

    def _walked(self, explored: Explored, chain: Chain) -> _Walked:
        root = None if chain.rank is None else self.roots[explored.roots[chain.ids[-1]]]
        return _Walked([explored.objects[i] for i in chain.ids], root, chain.rank)

    def _invisible(
        self, targets: Sequence[object], orphans: Sequence[int], found: list[list[_Walked]]
    ) -> frozenset[int]:
        """Which of the targets without a path have references that nothing found accounts for.

        None are said to where a budget ended the search: it may have missed what accounts for them.
        """
        if not orphans or self.explored[0].unfinished:
            return frozenset()
        explored = self.explored[0]
        objects = [targets[k] for k in orphans]
        direct = {holder for some in holders_of(explored, map(id, objects)).values() for holder in some}
        skipped = (o for o in (self.skip, *self.skip) if type(o) is not int)
        holders = {id(h): h for h in (targets, objects, *skipped, explored.objects, explored.blocked)}
        holders.update(explored.blocked)
        holders.update((i, explored.objects[i]) for i in direct)
        holders.update((id(path.objects), path.objects) for k in orphans for path in found[k])
        missing = missing_references(objects, holders)
        return frozenset(k for k, n in zip(orphans, missing, strict=True) if n > 0)

    def _through_arrays(self, targets: Sequence[object], invisible: Sequence[int]) -> dict[int, list[_Walked]]:
        """Paths that run through NumPy object arrays."""
        chains = arrays_with([targets[k] for k in invisible], [root.obj for root in self.roots], self.own)
        tops = {id(chain[-1]): chain[-1] for some in chains.values() for chain in some}
        if not tops:
            return {}
        self.own.update((id(tops), *(id(chain) for some in chains.values() for chain in some)))
        above = dict(zip(tops, self._search(tuple(tops.values())), strict=True))
        result: dict[int, list[_Walked]] = {}
        for k in invisible:
            for chain in chains.get(id(targets[k]), []):
                for path in above[id(chain[-1])]:
                    objects = [targets[k], *chain[:-1], *path.objects]
                    result.setdefault(k, []).append(_Walked(objects, path.root, path.rank))
            result.get(k, []).sort(key=lambda path: (path.rank is None, path.rank or 0, len(path.objects)))
        return result

    def _described(self, found: list[list[_Walked]]) -> tuple[tuple[Path, ...], ...]:
        needed: dict[int, set[int]] = {}
        for paths in found:
            for path in paths:
                for child, holder in zip(path.objects, path.objects[1:], strict=False):
                    needed.setdefault(id(holder), set()).add(id(child))
        describer = Describer(self.labellers, needed)
        try:
            return tuple(self._best_first([_path(path, describer) for path in paths]) for paths in found)
        finally:
            describer.close()

    def _best_first(self, paths: Sequence[Path | None]) -> tuple[Path, ...]:
        """Sorted by root, then whose the steps are, then length, then names; without what reads the same."""

        def order(path: Path) -> tuple[int, ...]:
            rank = 99 if path.root_rank is None else path.root_rank
            worst = max((self._owner(step) for step in path.steps[:-1]), default=0)
            unnamed = sum(step.name is None for step in path.steps)
            return rank, worst, len(path.steps), unnamed, path.root_kind != "history"

        if len(paths) == 1 and paths[0] is not None:
            return (paths[0],)
        unique: dict[tuple[Any, ...], Path] = {}
        for path in sorted((path for path in paths if path is not None), key=order):
            unique.setdefault(tuple((s.kind, s.name, s.node) for s in path.steps), path)
        return tuple(unique.values())

    def _owner(self, step: Step) -> int:
        if step.module in (None, "builtins", "collections"):
            return 0
        return _OWNERS.get(self.owner_of(step.module, step.filename), 1)


def _path(walked: _Walked, describer: Describer) -> Path | None:
    steps = describer.steps(walked.objects, walked.root)
    if steps is None:
        return None
    hops, root = len(walked.objects) - 1, walked.root
    if root is None:
        return Path(steps, None, None, None, False, hops)
    return Path(steps, root.kind, root.name, walked.rank, True, hops)


def _entry_ranks(roots: Sequence[Root]) -> Mapping[int, Mapping[int, int]]:
    """Ranks of what a namespace holds under names of IPython's history only."""
    result: dict[int, dict[int, int]] = {}
    for root in roots:
        names = history_names(root.obj) if root.kind == "namespace" and type(root.obj) is dict else frozenset[str]()
        if names:
            items = [(name, value) for name, value in list(dict.items(root.obj)) if type(name) is str]  # pyright: ignore
            plain = {id(value) for name, value in items if name not in names}
            kept = {id(value) for name, value in items if name in names}
            result[id(root.obj)] = dict.fromkeys(kept - plain, HISTORY)
    return result
