"""`find_holders`: the whole search, from targets and roots to readable paths."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

from jaxleak_magic.heap.describe import Describer
from jaxleak_magic.heap.explore import Explored, explore
from jaxleak_magic.heap.paths import HISTORY, Budget, Labeller, OwnerOf, Path, Root, SearchResult, Step
from jaxleak_magic.heap.roots import history_names, usual_owner
from jaxleak_magic.heap.select import Chain, NearestEntries, dangling_chain, holders_of

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

    The search reports no object of its own, holds nothing when it returns, and runs no code of the objects that it looks
    at. Objects that ``gc.freeze`` has put away are not seen. Automatic garbage collection is off meanwhile.

    Args:
        targets: objects to explain.
        roots: named objects to end at. Where several are the same object, the one of the lowest rank counts.
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
    own.update(map(id, roots))
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _find(targets, roots, labellers, frozenset(barriers), own, per_target, budget, owner_of or usual_owner)
    finally:
        if collecting:
            gc.enable()


def _find(
    targets: Sequence[object],
    roots: Sequence[Root],
    labellers: Sequence[Labeller],
    barriers: Set[type],
    own: set[int],
    per_target: int,
    budget: Budget,
    owner_of: OwnerOf,
) -> SearchResult:
    ranks = _entry_ranks(roots)
    explored = explore(targets, roots, barriers, own, budget, ranks)
    try:
        chains = _choose(explored, [id(t) for t in targets], roots, ranks, per_target)
        paths = _describe(explored, chains, roots, labellers, owner_of)
        reason = explored.unfinished
        if reason is None and gc.get_freeze_count():
            reason = "Objects put away by gc.freeze() were not searched."
        return SearchResult(paths, reason is None, reason, passes=explored.walks)
    finally:
        explored.close()


def _entry_ranks(roots: Sequence[Root]) -> dict[int, dict[int, int]]:
    """Ranks of what a namespace holds under names of IPython's history only."""
    result: dict[int, dict[int, int]] = {}
    for root in roots:
        if root.kind == "namespace" and type(root.obj) is dict:
            names = history_names(root.obj)
            if names:
                plain = {id(value) for name, value in list(dict.items(root.obj)) if name not in names}
                kept = {id(value) for name, value in list(dict.items(root.obj)) if name in names}
                result[id(root.obj)] = dict.fromkeys(kept - plain, HISTORY)
    return result


def _choose(
    explored: Explored,
    targets: Sequence[int],
    roots: Sequence[Root],
    ranks: Mapping[int, Mapping[int, int]],
    per_target: int,
) -> list[list[Chain]]:
    def rank_of(root: int, child: int) -> tuple[int, int]:
        position = explored.roots[root]
        return ranks.get(root, {}).get(child, roots[position].rank), position

    nearest = NearestEntries(explored, per_target, rank_of)
    holders = holders_of(explored, targets)
    chosen = [nearest.chains(target, holders[target], per_target) for target in targets]
    if not all(chosen):
        everyone = holders_of(explored, explored.objects)
        for target, chains in zip(targets, chosen, strict=True):
            if not chains:
                chain = dangling_chain(explored, target, everyone)
                if chain is not None:
                    chains.append(chain)
    return chosen


def _describe(
    explored: Explored,
    chosen: list[list[Chain]],
    roots: Sequence[Root],
    labellers: Sequence[Labeller],
    owner_of: OwnerOf,
) -> tuple[tuple[Path, ...], ...]:
    needed: dict[int, set[int]] = {}
    for chains in chosen:
        for chain in chains:
            for child, holder in zip(chain.ids, chain.ids[1:], strict=False):
                needed.setdefault(holder, set()).add(child)
    describer = Describer(labellers, needed)
    try:
        return tuple(
            _best_first([_path(chain, explored, roots, describer) for chain in chains], owner_of) for chains in chosen
        )
    finally:
        describer.close()


def _path(chain: Chain, explored: Explored, roots: Sequence[Root], describer: Describer) -> Path | None:
    objects = [explored.objects[i] for i in chain.ids]
    root = None if chain.rank is None else roots[explored.roots[chain.ids[-1]]]
    steps = describer.steps(objects, root)
    if steps is None:
        return None
    hops = len(objects) - 1
    if root is None:
        return Path(steps, None, None, None, False, hops)
    return Path(steps, root.kind, root.name, chain.rank, True, hops)


def _best_first(paths: list[Path | None], owner_of: OwnerOf) -> tuple[Path, ...]:
    """Sorted by root, then whose the steps are, then length, then names; without what reads the same."""
    owners: Callable[[Step], int] = lambda step: _OWNERS.get(owner_of(step.module, step.filename), 1)  # noqa: E731

    def order(path: Path) -> tuple[Any, ...]:
        rank = 99 if path.root_rank is None else path.root_rank
        worst = max((owners(step) for step in path.steps[:-1] if not _is_builtin(step)), default=0)
        return rank, worst, len(path.steps), sum(step.name is None for step in path.steps)

    unique: dict[tuple[Any, ...], Path] = {}
    for path in sorted((path for path in paths if path is not None), key=order):
        unique.setdefault(tuple((s.kind, s.name, s.node) for s in path.steps), path)
    return tuple(unique.values())


def _is_builtin(step: Step) -> bool:
    return step.module in ("builtins", "collections") or step.module is None
