"""Things that a crowd of entries of a wide container holds: found forwards, and no shorter path is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxleak_magic.heap import Budget, SearchResult, find_holders, namespace_roots

CROWD = 3000


class Leaked:
    pass


class Particle:
    def __init__(self, config: object) -> None:
        self.config = config


class Slotted:
    __slots__ = ("config",)

    def __init__(self, config: object) -> None:
        self.config = config


def found(targets: list[Leaked], namespace: dict[str, Any]) -> SearchResult:
    return find_holders(targets, namespace_roots(namespace), skip=[namespace], budget=Budget(newest=2000))


def names(result: SearchResult, which: int = 0) -> list[str | None]:
    return [step.name for step in reversed(result.paths[0][which].steps)]


@pytest.mark.parametrize("entry", [Particle, Slotted, lambda held: [held], lambda held: {"config": held}])
@pytest.mark.parametrize("container", [list, tuple, lambda entries: dict(enumerate(entries)), set])
def test_a_crowd_in_a_variable(container: Callable[[Any], Any], entry: Callable[[Any], Any]) -> None:
    if container is set and entry not in (Particle, Slotted):
        pytest.skip("not hashable")
    targets = [Leaked()]  # the only name: a variable of its own would be another holder
    shared = {"rate": [targets[0]]}
    namespace = {"particles": container([entry(shared) for _ in range(CROWD)])}
    del shared
    result = found(targets, namespace)
    assert result.passes == 0
    steps = names(result)
    assert steps[0] == "particles"
    assert steps[-2:] == ["['rate']", "[0]"]
    assert len(result.paths[0]) == 1


@pytest.mark.parametrize("place", [-1, 100])
@pytest.mark.parametrize("copied", [False, True], ids=["older-than-entries", "newer-than-entries"])
def test_a_crowd_in_an_entry_of_wide_data(place: int, copied: bool) -> None:
    targets = [Leaked()]
    shared = [targets[0]]
    data: list[Any] = [[number] for number in range(5000)]
    particles = [Particle(shared) for _ in range(CROWD)]
    data[place] = list(particles) if copied else particles
    del shared, particles
    namespace = {"data": data}
    result = found(targets, namespace)
    assert result.passes == 0
    steps = names(result)
    assert (steps[0], steps[1], steps[3:]) == ("data", f"[{place % len(data)}]", ["config", "[0]"])


def test_among_entries_that_hold_something_else() -> None:
    targets = [Leaked()]
    shared = [targets[0]]
    namespace = {"data": [Particle(shared if number % 5 == 0 else number) for number in range(5 * CROWD)]}
    del shared
    result = found(targets, namespace)
    assert result.passes == 0
    assert int(str(names(result)[1])[1:-1]) % 5 == 0


def test_a_target_that_the_crowd_holds_itself() -> None:
    targets = [Leaked()]
    namespace = {"particles": [Particle(targets[0]) for _ in range(CROWD)]}
    result = found(targets, namespace)
    assert (names(result)[0], names(result)[2]) == ("particles", "config")


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("held", ["target", "below", "shared", "entry", "container"])
def test_another_holder_is_found_if_it_is_nearer(held: str, depth: int) -> None:
    """Also where the levels that are read forwards end early, because the namespace is full of other things."""
    targets = [Leaked()]
    below = [targets[0]]
    shared = {"below": below}
    entries = [Slotted(shared) for _ in range(CROWD)]
    things = {"target": targets[0], "below": below, "shared": shared, "entry": entries[7], "container": entries}
    thing: Any = things[held]
    for _ in range(depth):
        thing = [thing]
    namespace = {
        "data": [[number] for number in range(1500)] + [entries],
        "pad": [[[number] for number in range(50)] for _ in range(300)],
        "other": thing,
    }
    steps_of_other = depth + 1 + ["target", "below", "shared", "entry", "container"].index(held)
    del below, shared, entries, things, thing
    result = found(targets, namespace)
    best = result.paths[0][0]
    if held == "entry" and steps_of_other < 6:  # one entry of three thousand: seen if it is met forwards
        assert best.hops in (steps_of_other, 6)
    else:
        assert best.hops == min(steps_of_other, 6)


def test_entries_that_another_list_holds_too() -> None:
    targets = [Leaked()]
    shared = [targets[0]]
    entries = [Particle(shared) for _ in range(CROWD)]
    namespace = {"here": entries, "there": list(reversed(entries))}
    del shared, entries
    assert names(found(targets, namespace))[0] in ("here", "there")


def test_nothing_is_held_afterwards() -> None:
    import gc
    import weakref

    targets = [Leaked()]
    shared = [targets[0]]
    namespace = {"particles": [Particle(shared) for _ in range(CROWD)]}
    del shared
    found(targets, namespace)
    gone = weakref.ref(targets[0])
    gc.disable()
    try:
        targets.clear()
        namespace.clear()
        assert gone() is None
    finally:
        gc.enable()
