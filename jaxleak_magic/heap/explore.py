"""The search itself: forwards a little from the namespace, backwards from all targets at once.

Backwards, one level finds the holders of everything found on the level before, for all targets together: either by
one walk over the heap (`gc.get_referrers`), or by a scan of a `Snapshot`. Forwards, the first few levels below the
namespace are read beforehand; where the two meet, nothing is searched further. What has no more references than have
been read already is not searched for at all (`KnownHolders`). Wide containers are not read entry by entry, but what a
crowd of their entries holds is. No object's code runs.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, compress, islice, pairwise

from jaxleak_magic.heap.addresses import common
from jaxleak_magic.heap.explored import FAR, Explored
from jaxleak_magic.heap.known import KnownHolders, complete_levels, references_of
from jaxleak_magic.heap.newest import NewestHolders, count
from jaxleak_magic.heap.objects import is_class, is_module, module_dict
from jaxleak_magic.heap.paths import USER_FRAME, Budget, Root
from jaxleak_magic.heap.snapshot import Snapshot, SnapshotTooLarge
from jaxleak_magic.heap.wide import held_by_many, some_entries, wide_entries

_NOT_ENTERED = frozenset(map(id, (types.CodeType, types.ModuleType, types.FrameType)))
_INSTANCES_LOOKED_INTO = 10_000  # of a class on the way, for other references than the one to their class
_INSTANCES_OF_A_CLASS = 100  # enough to tell what keeps a class alive that nothing else keeps
_ROUNDS_OF_INSTANCES = 3
_SECOND_PATH_WIDTH = 16
_CROWD = 2000  # so many holders on one level are alike more often than not
_WIDE_CONTAINERS = 100  # that are looked into
_BELOW_COMPLETE_LEVELS = 3  # so far below them is what is found through wide containers: shorter paths may exist
_WALKS_TO_COUNT = 13  # counting the references of every object of the heap, in walks (measured, see snapshot.py)
_READ_BELOW_A_TARGET = 50  # objects, on average: what may tell that a target has no other holder


def explore(
    targets: Sequence[object],
    roots: Sequence[Root],
    barriers: Set[int],
    own: set[int],
    budget: Budget,
    entry_rank: Mapping[int, Mapping[int, int]],
    no_holders: Iterable[object] = (),
) -> Explored:
    """Search for the holders of the targets; the caller must `Explored.close` the result.

    Args:
        targets: objects to start from.
        roots: where to end; nothing above a root is searched.
        barriers: ids of types whose instances are never walked through.
        own: ids of objects that are no holders because they belong to the search; added to.
        budget: limits.
        entry_rank: for a root's object, by id, the ranks of children whose rank is not the root's, by id.
        no_holders: different objects among ``own`` that may refer to targets, so that what they hold can be told from
            what is held otherwise.
    """
    search = _Search(targets, roots, barriers, own, budget, entry_rank, no_holders)
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
        no_holders: Iterable[object],
    ) -> None:
        self.result = Explored(roots, entry_rank)
        self.known = KnownHolders()
        self.unread = [_Search._below_targets, _Search._below_wide] if budget.forward else []
        self.wide_unread = budget.forward > 0
        self.wide: list[object] = []  # containers met forwards that are too wide to be entered
        self.newest: NewestHolders | None = None
        self.reads_newest = budget.newest > 0 and find_spec("numpy") is not None
        self.besides = references_of(no_holders)
        self.roots, self.barriers, self.own, self.budget = roots, barriers, own, budget
        self.targets = dict.fromkeys(map(id, targets))
        self.extra = budget.extra
        self.frontier: list[object] = []
        self.arguments: tuple[object, ...] = ()
        self.put_off: list[tuple[list[object], set[int]]] = []  # crowds of holders, and the ids of what they hold
        self.in_crowds: Counter[int] = Counter()  # how often these lists refer to recorded holders, by id
        self.thorough = False  # whether crowds are taken as a whole
        self.walked = 0.0
        self.snapshot: Snapshot | None = None
        self.deadline = time.monotonic() + budget.seconds
        self.expanded: set[int] = set()  # nodes whose holders are searched, or known from searching forwards
        self.classes: set[int] = set()  # classes whose instances were left out
        self.best_rank = min(self.result.root_rank.values(), default=0)
        self.untracked = [root.obj for root in roots if not gc.is_tracked(root.obj)]  # gc.get_referrers misses these
        own.update(map(id, (self.frontier, self.untracked, self.wide, self.result.objects, self.result.blocked)))
        own.add(id(self.known.objects))
        self.result.objects.update((id(root.obj), root.obj) for root in roots)
        self.result.objects.update((id(target), target) for target in targets)

    def forwards(self) -> None:
        """Read complete levels below the roots of the best rank, as far as the budget goes."""
        limit = self.budget.forward
        starts = [root.obj for root in self.roots if root.rank == self.best_rank] if limit else []
        for edges, below in complete_levels(starts, limit, self._may_meet, self._may_go_on, self.wide):
            for holder, ids in edges:
                self.known.add(holder, ids)
                self.result.link(id(holder), ids)
            self.expanded.update(below)
            self.result.objects.update(below)

    def _below_targets(self) -> None:
        """Read what the targets refer to: of each other, they often are the holders."""
        limit = min(self.budget.forward, _READ_BELOW_A_TARGET * len(self.targets))
        self._read_below([self.result.objects[i] for i in self.targets], limit)

    def _read_below(self, starts: list[object], limit: int) -> None:
        for edges, _ in complete_levels(starts, limit, self._may_be_read, lambda _: True, []):
            for holder, ids in edges:
                self.known.add(holder, ids, keep=True)

    def _below_wide(self, last: int | None = None) -> None:
        """Go on forwards from wide containers, and wide ones among their entries, to what a crowd of entries holds.

        Containers and entries that have other holders too are left to the search backwards.

        Args:
            last: how many of the last entries of the containers are looked at for wide ones; about a budget if None.
        """
        known, searched = set(self.result.objects), self.expanded.difference(map(id, self.frontier))
        outermost = self.wide[:_WIDE_CONTAINERS]
        last = last or self.budget.newest // max(1, len(outermost))
        chains = [[container] for container in outermost]
        for outer in outermost:
            chains += [[outer, inner] for inner in self._held_only_by(outer, wide_entries(outer, last))]
        crowded: dict[int, object] = {}
        for above in chains[:_WIDE_CONTAINERS]:
            some = some_entries(above[-1])
            held = {id(o): o for o in held_by_many(some) if sys.getrefcount(o) > _CROWD and self._may_enter(o)}
            for i in held.keys() & searched:
                del held[i]
            for entry in self._held_only_by(above[-1], some) if held else ():
                children = _held(entry, set(held))
                if children:
                    crowded.update((i, held[i]) for i in children)
                    self._record_chain([*above, entry], children)
        if crowded:
            self.result.objects.update(crowded)
            self._record_known([self.result.objects[i] for i in known], set(crowded))
            self.expanded.update(crowded)
            self.extra = self.budget.extra + _BELOW_COMPLETE_LEVELS
            self._read_below(list(crowded.values()), self.budget.forward)
            self.frontier[:] = [node for node in self.frontier if id(node) not in crowded]

    def _held_only_by(self, holder: object, entries: list[object]) -> list[object]:
        """Those of some entries of a container that nothing else holds, each once."""
        times = Counter(map(id, entries))
        different = {id(entry): entry for entry in entries if self._may_enter(entry)}
        objects = list(different.values())
        besides = self.besides + times
        if self.newest is not None:
            besides += self.newest.references(objects)
        explained = self.known.explained(objects, besides, times)
        return list(compress(objects, explained))

    def _record_chain(self, holders: list[object], children: set[int]) -> None:
        """Record a chain of holders, outermost first, the last of which holds the children."""
        for holder, held in pairwise(holders):
            self.result.objects[id(held)] = held
            self.result.link(id(holder), {id(held)})
            self.expanded.add(id(held))
        self.result.link(id(holders[-1]), children)

    def _record_known(self, known: list[object], wanted: set[int]) -> None:
        """Record which of the nodes found so far hold some others."""
        if common(gc.get_referents(*known), wanted):
            for holder in known:
                children = _held(holder, wanted)
                if children:
                    self._record(holder, children, [])

    def _may_be_read(self, child: object) -> bool:
        return (
            gc.is_tracked(child)
            and id(type(child)) not in _NOT_ENTERED
            and id(child) not in self.own
            and id(child) not in self.result.root_rank
            and not is_class(child)
        )

    def _may_meet(self, child: object) -> bool:
        return id(child) in self.targets or self._may_enter(child)

    def _may_go_on(self, met: object) -> bool:
        return id(met) not in self.targets or self._may_enter(met)

    def _may_enter(self, child: object) -> bool:
        return (
            self._may_be_read(child)
            and id(type(child)) not in self.barriers
            and not (type(child) is dict and _is_module_namespace(child))
        )

    def backwards(self) -> None:
        """Search level by level until every target is reached from a root that will do, or all is searched."""
        result, budget = self.result, self.budget
        self.expanded.update(self.targets)
        self.frontier[:] = [result.objects[i] for i in self.targets]
        patience, rounds = budget.patience, 0
        while self.frontier and self._within_budget():
            fresh = self._level()
            if result.unfinished:
                break
            self.frontier[:] = [result.objects[i] for i in fresh]
            worst = max((result.rank.get(i, FAR) for i in self.targets), default=0)
            if worst <= self.best_rank:
                self.extra -= 1
                only_second_paths = self.extra < budget.extra
                too_many = self.snapshot is None and len(fresh) > _SECOND_PATH_WIDTH
                if self.extra < 0 or (only_second_paths and too_many):
                    break
            elif worst <= USER_FRAME:
                patience -= 1
                if patience < 0:
                    break
            if not self.frontier and self.put_off and worst > USER_FRAME:
                self._take_crowds()
            if not self.frontier and worst == FAR and rounds < _ROUNDS_OF_INSTANCES:
                rounds += 1
                self._take_instances()
        if not result.unfinished:
            result.dangling = self.expanded - self.result.held

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
        self._by_counting(fresh)
        if self.frontier and self.wide_unread:
            self.wide_unread = False
            self._below_wide(sys.maxsize)
            self._by_counting(fresh)
        if not self.frontier:
            return fresh
        self.walked += _walk_cost(len(self.frontier))
        if self.walked <= self.budget.passes and self.snapshot is None:
            self._by_walk(self.frontier, fresh)
        else:
            self._by_snapshot(fresh)
        return fresh

    def _by_counting(self, fresh: list[int]) -> None:
        """Take those out of the frontier whose references are all known, and record the holders.

        What is known grows as needed: from what was read forwards, from below the targets, and from the newest objects
        of the heap with the wide containers met forwards.
        """
        besides = self.besides + self.in_crowds
        explained = self.known.explained(self.frontier, besides, Counter())
        while self.unread and not all(explained):
            self.unread.pop(0)(self)
            explained = self.known.explained(self.frontier, besides, Counter())
        self._take_explained(explained, {}, fresh)
        if not self.frontier or not self._read_newest():
            return
        assert self.newest is not None
        holders = self.newest.of(self.frontier)
        holders = {i: h for i, h in holders.items() if i not in self.own and not self.known.has_read(h[0])}
        besides += self.newest.references(self.frontier)
        self._take_explained(self.known.explained(self.frontier, besides, count(holders)), holders, fresh)

    def _take_explained(
        self, explained: list[bool], holders: Mapping[int, tuple[object, list[int]]], fresh: list[int]
    ) -> None:
        """Record what is known to hold the explained nodes, and ``holders`` besides; keep the others."""
        ids = set(compress(map(id, self.frontier), explained))
        for i in ids:
            for holder in self.known.of(i):
                self._record(holder, {i}, fresh)
        for holder, children in holders.values():
            children = ids.intersection(children)
            if children:
                self._record(holder, children, fresh)
        self.frontier[:] = [node for node in self.frontier if id(node) not in ids]

    def _read_newest(self) -> bool:
        """Read the newest objects and the wide containers met forwards, unless all of the heap has been read."""
        if self.reads_newest:
            self.reads_newest = False
            with suppress(SnapshotTooLarge):
                self.newest = NewestHolders(self.budget.newest, self, self.wide, self.budget.memory, self.deadline)
                self.own.add(id(self.newest.snapshot.objects))
        return self.newest is not None

    def _forget_newest(self) -> None:
        if self.newest is not None:
            self.newest.close()
            self.newest = None

    def _by_walk(self, frontier: list[object], fresh: list[int], classes: Set[int] = frozenset()) -> None:
        """Record the holders of the frontier by one walk over the heap; of ``classes`` few instances are taken."""
        wanted = set(map(id, frontier))
        found = self._referrers(frontier)
        if classes:
            # What refers to a class only because it is an instance of it rarely explains why the class is alive, and
            # there may be millions.
            self.classes |= classes
            self.result.held |= classes
            instances = islice((h for h in found if id(type(h)) in classes), _INSTANCES_LOOKED_INTO)
            found = [h for h in found if id(type(h)) not in classes] + list(instances)
        self._record_all(found, wanted, fresh)

    def _record_all(self, found: list[object], wanted: set[int], fresh: list[int]) -> None:
        """Record the holders of the nodes with the ids ``wanted``: of a crowd only some, for the time being."""
        if len(found) > _CROWD and not self.thorough:
            found = self._some_of_each(found, wanted)
        for holder in found:
            children = _held(holder, wanted)
            if children:
                self._record(holder, children, fresh)

    def _some_of_each(self, crowd: list[object], wanted: set[int]) -> list[object]:
        """Roots, what is known already, and some other holders of each node from all over the crowd.

        The others are put off until these are known not to lead to a good root: recording one takes as long as a walk
        takes for a hundred objects.
        """
        self.put_off.append((crowd, wanted))
        self.own.add(id(crowd))
        some = [holder for holder in crowd if id(holder) in self.result.objects]
        lacking = dict.fromkeys(wanted, self.budget.width)
        stride = max(1, len(crowd) // self.budget.width)
        for holder in chain.from_iterable(crowd[k::stride] for k in range(stride)):
            if not lacking:
                break
            if id(holder) in self.own or id(type(holder)) in self.barriers:
                continue
            children = _held(holder, wanted).intersection(lacking)
            if children:
                some.append(holder)
            for child in children:
                lacking[child] -= 1
                if not lacking[child]:
                    del lacking[child]
        self.in_crowds.update(set(map(id, some)))  # the crowd's list refers to them too
        return some

    def _take_crowds(self) -> None:
        """Go on with everything that was put off."""
        self.thorough = True
        fresh: list[int] = []
        for holders, wanted in self.put_off:
            self._record_all(holders, wanted, fresh)
            holders.clear()
        self.put_off.clear()
        self.in_crowds.clear()
        self.frontier[:] = [self.result.objects[i] for i in fresh]

    def _referrers(self, frontier: list[object]) -> list[object]:
        self.result.walks += 1
        # The very tuple that is passed on, kept until the next walk: of a list, Python 3.13 makes one that is reported.
        self.own.discard(id(self.arguments))
        self.arguments = tuple(frontier)
        self.own.add(id(self.arguments))
        return gc.get_referrers(*self.arguments)

    def _by_snapshot(self, fresh: list[int]) -> None:
        """Record the holders of the frontier by a scan of the snapshot, which is read first if need be."""
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
        owners = snapshot.owners(at, found)
        if len(owners) > _CROWD and not self.thorough:
            self._record_all([holder for holder, _ in owners], set(map(id, self.frontier)), fresh)
            return
        for holder, children in owners:
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
            self._forget_newest()
            self.reads_newest = False
            try:
                self.snapshot = Snapshot(gc.get_objects(), self.budget.memory, self.deadline)
            except SnapshotTooLarge:
                self.result.unfinished = "The heap is too large to be searched within the budgets of time and memory."
                return None
            self.own.add(id(self.snapshot.objects))
            self.result.walks += 4
        return self.snapshot

    def _record(self, holder: object, children: Iterable[int], fresh: list[int]) -> None:
        """Take a holder into the graph, unless it is the search's own or a barrier; a new one is ``fresh``."""
        i, is_root = id(holder), id(holder) in self.result.root_rank
        if i in self.own:
            self._block(holder, children)
            return
        if id(type(holder)) in self.barriers or (type(holder) is dict and not is_root and _is_module_namespace(holder)):
            self.result.held.update(children)
            self._block(holder, children)
            return
        self.result.objects[i] = holder
        self.result.link(i, children)
        if not is_root and i not in self.expanded:
            self.expanded.add(i)
            fresh.append(i)

    def _block(self, holder: object, children: Iterable[int]) -> None:
        if any(child in self.targets for child in children):
            self.result.blocked[id(holder)] = holder

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
        self.wide.clear()
        self.known.close()
        if self.newest is not None:
            self.newest.close()
        for holders, _ in self.put_off:
            holders.clear()
        if self.snapshot is not None:
            self.snapshot.close()


def _held(holder: object, wanted: set[int]) -> set[int]:
    """Those of the wanted ids that a holder refers to; not its class."""
    children = common(gc.get_referents(holder), wanted)
    children.discard(id(type(holder)))
    return children


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
