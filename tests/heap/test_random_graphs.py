"""The search against a brute-force one on random object graphs: same roots, same numbers of references."""

from __future__ import annotations

import gc
import random
import types
from collections import deque
from collections.abc import Iterator

import pytest

from jaxleak_magic.heap import Budget, Root, find_holders

BUDGETS = {
    "as shipped": Budget(),
    "backwards only": Budget(forward=0),
    "a short way forwards": Budget(forward=25),
    "walks only": Budget(forward=0, newest=0, passes=1000),
    "snapshot only": Budget(forward=0, newest=0, passes=0),
    "snapshot after two levels": Budget(forward=10, newest=0, passes=2),
    "a part of the heap is new": Budget(forward=25, newest=40),
    "nothing forwards, a part is new": Budget(forward=0, newest=15, passes=4),
}
GRAPHS_PER_BUDGET = 50


@pytest.fixture(autouse=True)
def _small_heap() -> Iterator[None]:
    """Everything that was there before is put out of sight, which makes the searches fast."""
    gc.freeze()
    yield
    gc.unfreeze()


class Node:
    pass


class SlotNode:
    __slots__ = ("a", "b")


class Barrier:
    pass


def make_graph(rng: random.Random) -> tuple[list[object], list[Root]]:
    """Containers of many types that refer to each other at random, cycles included, and a few root dicts."""
    nodes: list[object] = []
    for _ in range(rng.randint(10, 120)):
        kind = rng.choice(("list", "dict", "instance", "slots", "tuple", "cell", "deque", "set", "barrier", "weakly"))
        known = nodes[-40:]
        if kind == "list" or not known:
            nodes.append([])
        elif kind == "dict":
            nodes.append({})
        elif kind == "instance":
            nodes.append(Node())
            if rng.random() < 0.5:
                vars(nodes[-1])["first"] = rng.choice(known)  # a real instance dict
        elif kind == "slots":
            nodes.append(SlotNode())
        elif kind == "tuple":
            nodes.append(tuple(rng.choices(known, k=rng.randint(1, 3))))
        elif kind == "cell":
            nodes.append(types.CellType(rng.choice(known)))
        elif kind == "deque":
            nodes.append(deque(rng.choices(known, k=2)))
        elif kind == "set":
            nodes.append({x for x in rng.choices(known, k=3) if type(x) in (Node, SlotNode, Barrier)})
        elif kind == "barrier":
            nodes.append(Barrier())
        else:
            nodes.append([rng.choice(known)])
    for number in range(rng.randint(len(nodes) // 2, 2 * len(nodes))):
        holder, child = rng.choice(nodes), rng.choice(nodes)
        if type(holder) is list or type(holder) is deque:
            holder.append(child)
        elif type(holder) is dict:
            holder[f"k{number}"] = child
        elif type(holder) in (Node, Barrier):
            setattr(holder, f"n{number % 7}", child)
        elif type(holder) is SlotNode:
            setattr(holder, rng.choice("ab"), child)
    roots: list[Root] = []
    for number, rank in enumerate(rng.sample((0, 0, 5, 5, 6, 7), k=rng.randint(1, 5))):
        namespace = {f"v{k}": rng.choice(nodes) for k in range(rng.randint(1, 4))}
        roots.append(Root(namespace, f"root{number}", "namespace" if rank == 0 else "module", rank))
    return nodes, roots


def brute_force(target: object, roots: list[Root]) -> tuple[int, int, set[str]] | None:
    """The best rank, the fewest references from a root of that rank, and the roots that have that few."""
    best: tuple[int, int, set[str]] | None = None
    stops = {id(root.obj) for root in roots}
    for root in roots:
        distance, seen, level = 0, {id(root.obj)}, [root.obj]
        while level and id(target) not in seen:
            distance += 1
            below = []
            for holder in level:
                for child in gc.get_referents(holder):
                    if id(child) not in seen and id(child) not in stops and not isinstance(child, type):
                        seen.add(id(child))
                        if type(child) is not Barrier:
                            below.append(child)
            level = below
        if id(target) in seen:
            if best is None or (root.rank, distance) < best[:2]:
                best = root.rank, distance, set()
            if (root.rank, distance) == best[:2]:
                best[2].add(root.name)
    return best


@pytest.mark.parametrize("name", BUDGETS)
def test_roots_and_lengths_agree_with_brute_force(name: str) -> None:
    compared = 0
    for seed in range(GRAPHS_PER_BUDGET):
        rng = random.Random(f"{name} {seed}")
        nodes, roots = make_graph(rng)
        targets = rng.sample(nodes, k=rng.choice((1, 2, min(8, len(nodes)))))
        expected = [brute_force(target, roots) for target in targets]
        found = find_holders(targets, roots, barriers=[Barrier], budget=BUDGETS[name], skip=[nodes])
        assert "freeze" in str(found.unfinished_reason)
        for want, paths in zip(expected, found.paths, strict=True):
            compared += 1
            if want is None:
                assert not any(path.complete for path in paths), (seed, paths)
                continue
            rank, hops, names = want
            assert (paths[0].root_rank, min(p.hops for p in paths if p.root_rank == rank)) == (rank, hops), (
                seed,
                paths,
            )
            assert any(p.root_name in names and p.hops == hops for p in paths if p.root_rank == rank)
            assert all(path.complete for path in paths)
    assert compared > GRAPHS_PER_BUDGET


@pytest.mark.parametrize("name", BUDGETS)
def test_no_holder_is_hidden_by_another(name: str) -> None:
    """A root that alone would be found is found beside others of its rank, be the search as short as it may."""
    for seed in range(15):
        rng = random.Random(f"beside {name} {seed}")
        thing = Node()
        namespaces: list[dict[str, object]] = [{f"v{k}": [thing]} for k in range(3)]
        padding = [[k] for k in range(rng.randint(0, 60))]
        namespaces[rng.randrange(3)]["v"] = thing
        roots = [Root(namespace, f"root{k}", "module", 5) for k, namespace in enumerate(namespaces)]
        found = find_holders([thing], roots, budget=BUDGETS[name], skip=[namespaces, padding], per_target=5)
        assert {path.root_name for path in found.paths[0]} == {"root0", "root1", "root2"}


def test_every_path_is_real() -> None:
    """Each path's length is at least the shortest one, and its steps account for all references."""
    for seed in range(30):
        rng = random.Random(f"real {seed}")
        nodes, roots = make_graph(rng)
        target = rng.choice(nodes)
        found = find_holders([target], roots, barriers=[Barrier], skip=[nodes])
        for path in found.paths[0]:
            assert sum(len(step.raw) for step in path.steps) == path.hops
            if path.complete:
                assert path.steps[-1].kind == "global"
                assert path.steps[-1].name.startswith("v")
