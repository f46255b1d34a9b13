"""The search itself: forwards a little from the namespace, backwards from all targets at once.

Backwards, one level finds the holders of everything found on the level before, for all targets together: either by
one walk over the heap (`gc.get_referrers`), or by a scan of a `Snapshot`. Forwards, the first few levels below the
namespace are read beforehand; where the two meet, nothing is searched further. No object's code runs.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from importlib.util import find_spec
from itertools import islice

from jaxleak_magic.heap.addresses import common
from jaxleak_magic.heap.objects import is_class, is_module, module_dict
from jaxleak_magic.heap.paths import USER_FRAME, Budget, Root
from jaxleak_magic.heap.snapshot import Snapshot, SnapshotTooLarge

_NOT_ENTERED = frozenset(map(id, (types.CodeType, types.ModuleType, types.FrameType)))
_INSTANCES_LOOKED_INTO = 10_000  # of a class on the way, for other references than the one to their class
_INSTANCES_OF_A_CLASS = 100  # enough to tell what keeps a class alive that nothing else keeps
_ROUNDS_OF_INSTANCES = 3
_SECOND_PATH_WIDTH = 16
_CROWD = 2000  # so many holders on one level are alike more often than not
_WALKS_TO_COUNT = 13  # counting the references of every object of the heap, in walks (measured, see snapshot.py)
_FAR = 1 << 30


class Explored:
    """The part of the referrer graph that was found, and why searching stopped.

    Attributes:
        objects: every node by its id; holding them keeps the ids unique.
        children: holder's id -> ids of what it holds, towards the targets.
        roots: id of a root's object -> position in the sequence of roots.
        rank: node's id -> best rank of a root that reaches it.
        blocked: what holds a target and is not walked through, by its id.
        dangling: nodes that nothing visible holds.
        unfinished: the reason, as a sentence, if a budget ended the search.
        walks: how many walks over the heap were made; a snapshot counts as 4.
    """

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self.children: dict[int, set[int]] = {}
        self.roots: dict[int, int] = {}
        self.rank: dict[int, int] = {}
        self.blocked: dict[int, object] = {}
        self.dangling: set[int] = set()
        self.unfinished: str | None = None
        self.walks = 0

    def close(self) -> None:
        """Let go of every object."""
        self.objects.clear()
        self.blocked.clear()


def explore(
    targets: Sequence[object],
    roots: Sequence[Root],
    barriers: Set[int],
    own: set[int],
    budget: Budget,
    entry_rank: Mapping[int, Mapping[int, int]],
) -> Explored:
    """Search for the holders of the targets; the caller must `Explored.close` the result.

    Args:
        targets: objects to start from.
        roots: where to end; nothing above a root is searched.
        barriers: ids of types whose instances are never walked through.
        own: ids of objects that are no holders because they belong to the search; added to.
        budget: limits.
        entry_rank: for a root's object, by id, the ranks of children whose rank is not the root's, by id.
    """
    search = _Search(targets, roots, barriers, own, budget, entry_rank)
    try:
        search.forwards()
        search.backwards()
    except BaseException:
        search.result.close()
        raise
    finally:
        search.close()
    return search.result


class _Search:
    def __init__(
        self,
        targets: Sequence[object],
        roots: Sequence[Root],
        barriers: Set[int],
        own: set[int],
        budget: Budget,
        entry_rank: Mapping[int, Mapping[int, int]],
    ) -> None:
        self.result = Explored()
        self.roots, self.barriers, self.own, self.budget, self.entry_rank = roots, barriers, own, budget, entry_rank
        self.targets = dict.fromkeys(map(id, targets))
        self.frontier: list[object] = []
        self.arguments: tuple[object, ...] = ()
        self.put_off: list[int] = []  # most of a crowd of holders, of which a few are followed first
        self.crowds = 0
        self.walked = 0.0
        self.snapshot: Snapshot | None = None
        self.deadline = time.monotonic() + budget.seconds
        self.expanded: set[int] = set()  # nodes whose holders are searched, or known from searching forwards
        self.held: set[int] = set()  # nodes with a holder, be it one that is not walked through
        self.classes: set[int] = set()  # classes whose instances were left out
        for position, root in enumerate(roots):
            best = self.result.roots.setdefault(id(root.obj), position)
            if root.rank < roots[best].rank:
                self.result.roots[id(root.obj)] = position
        self.root_rank = {i: roots[position].rank for i, position in self.result.roots.items()}
        self.best_rank = min(self.root_rank.values(), default=0)
        self.untracked = [root.obj for root in roots if not gc.is_tracked(root.obj)]  # gc.get_referrers misses these
        own.update(map(id, (self.frontier, self.untracked, self.result.objects, self.result.blocked)))
        self.result.objects.update((id(root.obj), root.obj) for root in roots)
        self.result.objects.update((id(target), target) for target in targets)

    def forwards(self) -> None:
        """Read complete levels below the roots of the best rank, as far as the budget goes."""
        limit = self.budget.forward
        level = [root.obj for root in self.roots if root.rank == self.best_rank] if limit else []
        starts, seen = set(map(id, level)), set[int]()
        while level:
            edges: list[tuple[int, list[int]]] = []
            below: dict[int, object] = {}
            for holder in level:
                referents = gc.get_referents(holder)
                if len(referents) > limit and id(holder) not in starts:
                    continue
                kind = type(holder)
                kept = [c for c in referents if c is not kind and (id(c) in self.targets or self._may_enter(c))]
                ids = list(map(id, kept))
                edges.append((id(holder), ids))
                below.update(zip(ids, kept, strict=True))
                if len(below) > 2 * limit:
                    return
            for i in seen.intersection(below):
                del below[i]
            seen.update(below)
            if len(seen) > limit:
                return
            for holder_id, ids in edges:
                self._link(holder_id, ids)
            self.expanded.update(below)
            self.result.objects.update(below)
            level = [c for c in below.values() if self._may_enter(c)]

    def _may_enter(self, child: object) -> bool:
        kind, i = type(child), id(child)
        return (
            gc.is_tracked(child)
            and id(kind) not in _NOT_ENTERED
            and id(kind) not in self.barriers
            and i not in self.own
            and i not in self.root_rank
            and not is_class(child)
            and not (kind is dict and _is_module_namespace(child))
        )

    def backwards(self) -> None:
        """Search level by level until every target is reached from a root that will do, or all is searched."""
        result, budget = self.result, self.budget
        self.expanded.update(self.targets)
        self.frontier[:] = [result.objects[i] for i in self.targets]
        patience, extra, rounds = budget.patience, budget.extra, 0
        while self.frontier and self._within_budget():
            fresh = self._level()
            if result.unfinished:
                break
            self.frontier[:] = [result.objects[i] for i in self._without_crowd(fresh)]
            worst = max((result.rank.get(i, _FAR) for i in self.targets), default=0)
            if worst <= self.best_rank:
                extra -= 1
                if extra < 0 or (self.snapshot is None and len(fresh) > _SECOND_PATH_WIDTH):
                    break
            elif worst <= USER_FRAME:
                patience -= 1
                if patience < 0:
                    break
            if not self.frontier and self.put_off and worst > USER_FRAME:
                self.frontier[:] = [result.objects[i] for i in self.put_off]
                self.put_off.clear()
            if not self.frontier and worst == _FAR and rounds < _ROUNDS_OF_INSTANCES:
                rounds += 1
                self._take_instances()
        result.dangling = self.expanded - self.held

    def _without_crowd(self, fresh: list[int]) -> list[int]:
        """A few of very many holders; the others are put off until these are known not to lead to a good root."""
        if len(fresh) <= _CROWD or self.crowds:
            return fresh
        self.crowds = 1
        few = fresh[:: -(-len(fresh) // self.budget.width)]
        self.put_off = list(set(fresh).difference(few))
        return few

    def _within_budget(self) -> bool:
        if time.monotonic() > self.deadline:
            self.result.unfinished = f"The search for holders was ended after {self.budget.seconds:g} s."
        elif len(self.result.objects) > self.budget.nodes:
            self.result.unfinished = f"The search for holders was ended after {self.budget.nodes} objects."
        return self.result.unfinished is None

    def _level(self) -> list[int]:
        """Record the holders of the frontier; return the ids of those to search next."""
        fresh: list[int] = []
        if self.untracked:
            wanted = set(map(id, self.frontier))
            for root in self.untracked:
                children = common(gc.get_referents(root), wanted)
                if children:
                    self._record(root, children, fresh)
        classes = [c for c in self.frontier if is_class(c)]
        if classes:
            self.own.add(id(classes))
            self.frontier[:] = [c for c in self.frontier if not is_class(c)]
            self._by_walk(classes, fresh, frozenset(map(id, classes)))
            self.own.discard(id(classes))
        if not self.frontier:
            return fresh
        self.walked += _walk_cost(len(self.frontier))
        if self.walked <= self.budget.passes and self.snapshot is None:
            self._by_walk(self.frontier, fresh)
        else:
            self._by_snapshot(fresh)
        return fresh

    def _by_walk(self, frontier: list[object], fresh: list[int], classes: Set[int] = frozenset()) -> None:
        wanted = set(map(id, frontier))
        found = self._referrers(frontier)
        if classes:
            # What refers to a class only because it is an instance of it rarely explains why the class is alive, and
            # there may be millions.
            self.classes |= classes
            self.held |= classes
            instances = islice((h for h in found if id(type(h)) in classes), _INSTANCES_LOOKED_INTO)
            found = [h for h in found if id(type(h)) not in classes] + list(instances)
        for holder in found:
            children = common(gc.get_referents(holder), wanted)
            children.discard(id(type(holder)))
            if children:
                self._record(holder, children, fresh)

    def _referrers(self, frontier: list[object]) -> list[object]:
        self.result.walks += 1
        # The very tuple that is passed on, kept until the next walk: of a list, Python 3.13 makes one that is reported.
        self.own.discard(id(self.arguments))
        self.arguments = tuple(frontier)
        self.own.add(id(self.arguments))
        return gc.get_referrers(*self.arguments)

    def _by_snapshot(self, fresh: list[int]) -> None:
        if find_spec("numpy") is None:
            self._by_many_walks(fresh)
            return
        snapshot = self._whole_heap()
        if snapshot is None:
            return
        at, found = snapshot.hits(list(map(id, self.frontier)))
        to_count = snapshot.chunks_to_count(at) / max(snapshot.chunks, 100)
        if to_count * _WALKS_TO_COUNT > _walk_cost(len(self.frontier)):  # many holders of few objects
            self._by_walk(self.frontier, fresh)
            return
        for holder, children in snapshot.owners(at, found):
            self._record(holder, children, fresh)

    def _by_many_walks(self, fresh: list[int]) -> None:
        """The slow way, where there is no NumPy."""
        for first in range(0, len(self.frontier), self.budget.width):
            if not self._within_budget():
                return
            part = self.frontier[first : first + self.budget.width]
            self.own.add(id(part))
            self._by_walk(part, fresh)
            self.own.discard(id(part))

    def _whole_heap(self) -> Snapshot | None:
        if self.snapshot is None:
            try:
                self.snapshot = Snapshot(self.budget.memory, self.deadline)
            except SnapshotTooLarge:
                self.result.unfinished = "The heap is too large to be searched within the budgets of time and memory."
                return None
            self.own.add(id(self.snapshot.objects))
            self.result.walks += 4
        return self.snapshot

    def _record(self, holder: object, children: Iterable[int], fresh: list[int]) -> None:
        i, is_root = id(holder), id(holder) in self.root_rank
        if i in self.own:
            self._block(holder, children)
            return
        if id(type(holder)) in self.barriers or (type(holder) is dict and not is_root and _is_module_namespace(holder)):
            self.held.update(children)
            self._block(holder, children)
            return
        self.result.objects[i] = holder
        self._link(i, children)
        if not is_root and i not in self.expanded:
            self.expanded.add(i)
            fresh.append(i)

    def _block(self, holder: object, children: Iterable[int]) -> None:
        if any(child in self.targets for child in children):
            self.result.blocked[id(holder)] = holder

    def _link(self, holder: int, children: Iterable[int]) -> None:
        self.held.update(children)
        self.result.children.setdefault(holder, set()).update(children)
        rank = self.root_rank.get(holder)
        if rank is not None:
            special = self.entry_rank.get(holder, {})
            for child in children:
                self._reach(child, special.get(child, rank))
        elif holder in self.result.rank:
            for child in children:
                self._reach(child, self.result.rank[holder])

    def _reach(self, node: int, rank: int) -> None:
        """Note that a root of this rank reaches the node and everything below it."""
        ranks, children, stack = self.result.rank, self.result.children, [node]
        while stack:
            node = stack.pop()
            if ranks.get(node, _FAR) > rank:
                ranks[node] = rank
                if node not in self.root_rank:
                    stack.extend(children.get(node, ()))

    def _take_instances(self) -> None:
        """Go on with a few instances of the classes met, where nothing else was found to keep those alive."""
        if not self.classes:
            return
        ids = frozenset(self.classes)
        self.classes.clear()
        self.frontier[:] = [self.result.objects[i] for i in ids]
        found = self._referrers(self.frontier)
        some = list(islice((h for h in found if id(type(h)) in ids), _INSTANCES_OF_A_CLASS))
        fresh: list[int] = []
        for holder in some:
            self._record(holder, {id(type(holder))}, fresh)
        self.frontier[:] = [self.result.objects[i] for i in fresh]

    def close(self) -> None:
        """Let go of every object that is not part of the result."""
        self.frontier.clear()
        self.untracked.clear()
        self.arguments = ()
        if self.snapshot is not None:
            self.snapshot.close()


def _walk_cost(objects: int) -> float:
    """What a walk for so many objects costs, in walks for one (measured: 1.1, 1.4, 2.5, 8.5 for 4, 16, 64, 256)."""
    return 1 + objects / 33


def _is_module_namespace(namespace: object) -> bool:
    """Whether a dict is the namespace of an imported module."""
    name = dict.get(namespace, "__name__")  # pyright: ignore[reportArgumentType, reportUnknownMemberType]
    if type(name) is not str:
        return False
    module = sys.modules.get(name)
    return module is not None and is_module(module) and module_dict(module) is namespace
