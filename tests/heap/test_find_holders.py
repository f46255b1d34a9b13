"""The search as a whole: barriers, labels, ranking, budgets; it runs no foreign code and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import gc
import sys
import weakref
from typing import Any

import pytest

from jaxleak_magic.heap import (
    Budget,
    Label,
    Path,
    Root,
    addresses,
    find_holders,
    frame_roots,
    module_roots,
    namespace_roots,
)
from jaxleak_magic.heap.roots import frame_locals


class Thing:
    pass


class Tracer:
    def __init__(self, value: object = None) -> None:
        self.value = value


class SpecialTracer(Tracer):
    pass


def notebook(**variables: object) -> Root:
    return Root(variables, "", "namespace", 0)


def texts(paths: tuple[Path, ...]) -> list[str]:
    """Paths as ``global.step.step``."""
    return [".".join(str(step.name) for step in reversed(path.steps)) for path in paths]


# barriers


def test_a_barrier_is_not_walked_through_and_no_path_is_reported() -> None:
    thing = Thing()
    roots = [notebook(tracer=Tracer(thing), other=SpecialTracer([thing]))]
    assert texts(find_holders([thing], roots).paths[0]) == ["tracer.value", "other.value.[0]"]
    assert texts(find_holders([thing], roots, barriers=[Tracer]).paths[0]) == ["other.value.[0]"]
    found = find_holders([thing], roots, barriers={Tracer, SpecialTracer})
    assert found.paths == ((),)
    assert found.finished
    assert not found.invisible


def test_a_target_may_be_of_a_barrier_type() -> None:
    tracer = Tracer()
    carried = Tracer()
    tracer.value = carried
    found = find_holders([tracer, carried], [notebook(kept=[tracer])], barriers=[Tracer])
    assert texts(found.paths[0]) == ["kept.[0]"]
    assert found.paths[1] == ()


def test_a_shorter_way_through_a_barrier_does_not_hide_a_longer_one() -> None:
    thing = Thing()
    assert texts(find_holders([thing], [notebook(a=Tracer(thing), b=[[[thing]]])], barriers=[Tracer]).paths[0]) == [
        "b.[0].[0].[0]"
    ]


# several targets, several paths, ranking


def test_all_targets_at_once_and_shared_holders_have_one_number() -> None:
    things = [Thing() for _ in range(300)]
    shared = {"things": things[:200], "rest": things[200:]}
    targets = tuple(things)
    found = find_holders(targets, [notebook(data=shared)])
    assert [texts(paths) for paths in found.paths] == [
        [f"data.['things'].[{k}]" if k < 200 else f"data.['rest'].[{k - 200}]"] for k in range(300)
    ]
    assert len({paths[0].steps[1].node for paths in found.paths}) == 1
    assert len({paths[0].steps[0].node for paths in found.paths}) == 2


def test_several_paths_best_first() -> None:
    thing = Thing()
    found = find_holders([thing], [notebook(far=[[[thing]]], near=[thing], here=thing, fourth=[[thing]])], per_target=4)
    assert texts(found.paths[0]) == ["here", "near.[0]", "fourth.[0].[0]", "far.[0].[0].[0]"]
    found = find_holders([thing], [notebook(far=[[[thing]]], near=[thing], here=thing, fourth=[[thing]])])
    assert len(found.paths[0]) == 3


def test_a_second_holder_below_the_same_variable() -> None:
    thing = Thing()
    found = find_holders([thing], [notebook(model={"a": [thing], "b": (thing,)})])
    assert sorted(texts(found.paths[0])) == ["model.['a'].[0]", "model.['b'].[0]"]


def test_the_same_target_twice() -> None:
    thing = Thing()
    found = find_holders([thing, thing], [notebook(x=thing)])
    assert texts(found.paths[0]) == texts(found.paths[1]) == ["x"]


def test_the_users_roots_come_before_a_librarys() -> None:
    thing = Thing()
    user: dict[str, Any] = {"mine": [[[[[[[thing]]]]]]]}
    library: dict[str, Any] = {"cache": thing}
    roots = [Root(library, "lib", "module", 5), Root(user, "", "namespace", 0)]
    paths = find_holders([thing], roots).paths[0]
    assert [path.root_name for path in paths] == ["", "lib"]
    assert [path.root_rank for path in paths] == [0, 5]


def test_steps_through_a_librarys_objects_come_after_the_users() -> None:
    thing = Thing()
    theirs = type("Theirs", (), {"__module__": "theirs"})()
    theirs.x = thing
    roots = [notebook(a=theirs, b=[Tracer(thing)])]

    def owner(module: str | None, filename: str | None) -> str:
        return "user" if module == __name__ else "library"

    assert texts(find_holders([thing], roots, owner_of=owner).paths[0]) == ["b.[0].value", "a.x"]


def test_public_names_before_private_ones() -> None:
    thing = Thing()
    assert texts(find_holders([thing], [notebook(_hidden=thing, shown=thing)]).paths[0]) == ["shown"]


def test_nothing_above_a_root_is_searched() -> None:
    thing = Thing()
    inner: dict[str, Any] = {"x": thing}
    outer: dict[str, Any] = {"inner": inner}
    found = find_holders([thing], [Root(outer, "outer", "module", 5), Root(inner, "inner", "module", 5)])
    assert [path.root_name for path in found.paths[0]] == ["inner"]


def test_a_cycle_without_a_root_has_no_path() -> None:
    thing = Thing()
    thing.me = [thing]
    found = find_holders([thing], [notebook(x=1)])
    assert found.paths == ((),)
    assert found.finished


def test_a_path_may_end_at_something_unseen() -> None:
    thing = Thing()

    def hidden():
        kept = {"k": [thing]}
        return find_holders([thing], [notebook(x=1)]), kept

    found, _ = hidden()
    assert [path.complete for path in found.paths[0]] == [False]
    assert texts(found.paths[0]) == ["['k'].[0]"]
    assert found.paths[0][0].root_kind is None


def test_labellers_come_first() -> None:
    thing = Thing()
    tracer = Tracer(thing)
    seen: list[tuple[type, type]] = []

    def labeller(holder: object, child: object) -> Label | None:
        seen.append((type(holder), type(child)))
        return Label("pytree_aux", "aux", "treedef of Layer") if type(holder) is Tracer else None

    path = find_holders([thing], [notebook(x=tracer)], labellers=[labeller]).paths[0][0]
    assert (path.steps[0].kind, path.steps[0].name, path.steps[0].holder) == ("pytree_aux", "aux", "treedef of Layer")
    assert seen == [(Tracer, Thing)]


def test_steps_say_where_functions_and_classes_stand() -> None:
    thing = Thing()

    def schedule():
        return thing

    closure, instance = find_holders([thing], [notebook(x=[schedule], y=Tracer(thing))]).paths[0][::-1]
    code, step = schedule.__code__, closure.steps[0]
    assert (step.filename, step.line, step.qualname) == (code.co_filename, code.co_firstlineno, code.co_qualname)
    assert step.module == __name__
    assert step.raw == ("cell", "tuple", "function")
    step = instance.steps[0]
    assert (step.filename, step.qualname, step.module) == (__file__, "Tracer", __name__)
    assert step.line in (Tracer.__init__.__code__.co_firstlineno, Tracer.__init__.__code__.co_firstlineno - 1)


# what gc does not see


def test_a_reference_that_gc_does_not_see_is_noticed() -> None:
    np = pytest.importorskip("numpy")
    thing, seen = Thing(), Thing()
    record = np.zeros(1, dtype=[("field", object)])
    record["field"][0] = thing
    found = find_holders([thing, seen], [notebook(record=record)])
    assert found.invisible == {0}
    assert found.paths == ((), ())


def test_variables_of_running_functions_are_not_taken_for_unseen_references() -> None:
    def inner(thing, again):
        return find_holders([thing], [notebook(x=1)])

    def outer():
        thing = Thing()
        return inner(thing, thing)

    assert not outer().invisible


def test_skipped_objects_are_no_holders() -> None:
    thing = Thing()
    mine = [thing]
    assert find_holders([thing], [notebook(x=mine)], skip=[mine]).paths == ((),)
    assert find_holders([thing], [notebook(x=mine)], skip=[id(mine)]).paths == ((),)


# budgets


def test_the_time_budget_is_said_to_be_over() -> None:
    thing = Thing()
    found = find_holders([thing], [notebook(x=[[[[[[thing]]]]]])], budget=Budget(seconds=0, forward=0))
    assert not found.finished
    assert "0 s" in str(found.unfinished_reason)


def test_nothing_is_called_invisible_where_the_search_did_not_finish() -> None:
    np = pytest.importorskip("numpy")
    thing = Thing()
    record = np.zeros(1, dtype=[("field", object)])
    record["field"][0] = thing
    assert find_holders([thing], [notebook(record=record)]).invisible
    found = find_holders([thing], [notebook(record=record, x=[[thing]])], budget=Budget(seconds=0, forward=0))
    assert not found.finished
    assert not found.invisible
    assert found.paths == ((),)


def test_the_memory_budget_is_said_to_be_over() -> None:
    thing = Thing()
    found = find_holders([thing], [notebook(x=[[[[[[thing]]]]]])], budget=Budget(memory=1000, forward=0))
    assert not found.finished
    assert "memory" in str(found.unfinished_reason)
    assert find_holders([thing], [notebook(x=[thing])], budget=Budget(memory=1000)).finished


def test_the_budget_of_nodes_is_said_to_be_over() -> None:
    thing = Thing()
    found = find_holders([thing], [notebook(x=[[[thing]] for _ in range(50)])], budget=Budget(nodes=10, forward=0))
    assert not found.finished


def test_frozen_objects_are_said_to_be_unsearched() -> None:
    thing = Thing()
    kept = [[thing]]
    gc.freeze()
    try:
        found = find_holders([thing], [notebook(kept=kept)], budget=Budget(forward=0))
    finally:
        gc.unfreeze()
    assert not found.finished
    assert "freeze" in str(found.unfinished_reason)


# many holders


@pytest.mark.parametrize("number", [100, 3000])
def test_many_holders_of_one_object(number: int) -> None:
    thing = Thing()
    shared = [thing]
    data = [Tracer(shared) for _ in range(number)]
    filler = [[k] for k in range(2000)]
    found = find_holders([thing], [notebook(data=[filler, data])])
    assert found.finished
    assert texts(found.paths[0])[0].startswith("data.[1].[")
    assert texts(found.paths[0])[0].endswith("].value.[0]")


def test_of_many_holders_the_one_that_leads_to_the_user_is_found() -> None:
    thing = Thing()
    shared = [thing]
    crowd = [Tracer(shared) for _ in range(3000)]
    library: dict[str, Any] = {"crowd": crowd[:1700] + crowd[1701:]}
    roots = [Root(library, "lib", "module", 5), notebook(mine=[[[[[crowd[1700]]]]]])]
    del crowd
    paths = find_holders([thing], roots, budget=Budget(forward=0)).paths[0]
    assert paths[0].root_name == ""
    assert texts(paths)[0] == "mine.[0].[0].[0].[0].[0].value.[0]"


def test_of_two_objects_with_a_crowd_between_them_both_are_found() -> None:
    first, second = Thing(), Thing()
    shared = [first]
    crowd = [Tracer(shared) for _ in range(3000)]
    lonely = Tracer([second])
    roots = [notebook(mine=[[[crowd[:1500], lonely, crowd[1500:]]]])]
    del crowd, lonely
    for budget in (Budget(), Budget(forward=0, newest=0), Budget(forward=0, newest=0, passes=0)):
        paths = find_holders([first, second], roots, budget=budget).paths
        assert texts(paths[0])[0].endswith("].value.[0]")
        assert texts(paths[1])[0] == "mine.[0].[0].[1].value.[0]"


def test_what_holds_a_crowd_hides_no_other_holder_of_it() -> None:
    """The search's own list of the crowd is told from lists that others have of it."""
    thing = Thing()
    shared = [thing]
    crowd = [Tracer(shared) for _ in range(3000)]
    library: dict[str, Any] = {"deep": [[[*crowd]]]}
    roots = [notebook(mine=[crowd]), Root(library, "lib", "module", 0)]
    del crowd
    for newest in (0, 10, 20_000):
        paths = find_holders([thing], roots, budget=Budget(newest=newest, extra=4, forward=0), per_target=4).paths[0]
        assert {path.root_name for path in paths} == {"", "lib"}


def test_a_root_in_a_crowd_comes_first() -> None:
    thing = Thing()
    shared = [thing]
    crowd = [Tracer(shared) for _ in range(3000)]
    namespace: dict[str, Any] = {"crowd": [crowd]}
    library = Root({"shared": shared}, "lib", "module", 5)
    user = Root({"shared": shared}, "", "namespace", 0)
    paths = find_holders([thing], [library, user, Root(namespace, "other", "module", 5)]).paths[0]
    assert texts(paths)[0] == "shared.[0]"
    assert paths[0].root_name == ""


@pytest.mark.parametrize("width", [10, 5000], ids=["narrow", "wide"])
@pytest.mark.parametrize("newest", [0, 10, 20_000])
def test_a_known_holder_does_not_hide_an_old_one(width: int, newest: int) -> None:
    """Reference counts tell that something else holds it, wherever that is."""
    thing = Thing()
    old = [None] * width
    old[5] = thing  # pyright: ignore
    registry = [[old]]
    filler = [[k] for k in range(3000)]
    roots = [notebook(x=[thing], filler=[filler]), Root({"registry": registry}, "lib", "module", 0)]
    del old
    found = find_holders([thing], roots, budget=Budget(newest=newest))
    assert texts(found.paths[0]) == ["x.[0]", "registry.[0].[0].[5]"]


def test_the_same_container_holds_it_twice() -> None:
    thing = Thing()
    twice = [thing, thing]
    other = ([[thing]],)
    roots = [notebook(x=twice), Root({"other": other}, "lib", "module", 0)]
    assert texts(find_holders([thing], roots).paths[0]) == ["x.[0]", "other.[0].[0].[0]"]


def test_things_near_the_namespace_need_no_walk_over_the_heap() -> None:
    found = find_holders(things := [Thing()], [notebook(x=things[0], y=[[things[0]]])])
    assert texts(found.paths[0]) == ["x", "y.[0].[0]"]
    assert found.passes == 0


def test_things_that_hold_each_other_need_no_walk_over_the_heap() -> None:
    trace = Thing()
    tracers = [Tracer(trace) for _ in range(50)]
    trace.equations = [[tracer] for tracer in tracers]
    targets = [*tracers, trace]
    roots = [notebook(kept=tracers[3])]
    tracers.clear()
    del trace
    found = find_holders(targets, roots, barriers=[Tracer], budget=Budget(newest=0))
    assert texts(found.paths[3])[0] == "kept"
    assert all(path == () for k, path in enumerate(found.paths) if k != 3)
    assert found.passes == 0
    assert not found.invisible


def test_what_only_skipped_objects_hold_is_not_called_invisible() -> None:
    mine = [Thing(), Thing()]
    mine[0].me = mine[0]
    found = find_holders(tuple(mine), [notebook(x=1)], skip=[mine], budget=Budget(newest=0))
    assert found.paths == ((), ())
    assert not found.invisible


def test_data_of_many_numbers_is_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first level is met, and what lies below is found backwards."""
    monkeypatch.setattr("jaxleak_magic.heap.known._REFERENCES_READ", 5_000)
    thing = Thing()
    numbers = [list(range(2000)) for _ in range(10)]
    found = find_holders([thing], [notebook(numbers=numbers, x=[[thing]])], budget=Budget(newest=0))
    assert texts(found.paths[0]) == ["x.[0].[0]"]
    assert found.passes > 0


def test_instances_are_not_searched_for_a_class_that_is_held_otherwise() -> None:
    class Registry:
        seen = (Thing(),)

    instances = [Registry() for _ in range(500)]
    found = find_holders([Registry.seen[0]], [notebook(instances=instances, R=Registry)], budget=Budget(forward=0))
    assert texts(found.paths[0]) == ["R.seen.[0]"]


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxleak_magic.heap.explore.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    things = [Thing() for _ in range(120)]
    roots = [notebook(x=[[[[[[[thing]]]]]] for thing in things])]
    found = find_holders(tuple(things), roots, skip=[things], budget=Budget(forward=0, seconds=600))
    assert found.finished
    assert all(path[0].hops == 8 for path in found.paths)


def test_ids_are_right_with_and_without_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    objects: list[object] = [[], None, 3, "x", Thing(), object()] * 1000
    assert addresses.ids_of(objects).tolist() == list(map(id, objects))
    monkeypatch.setattr(addresses, "_lists_are_addresses", lambda: False)
    assert addresses.ids_of(objects).tolist() == list(map(id, objects))
    assert addresses.ids_of([]).tolist() == []
    assert addresses.where(objects, {id(objects[4])}) == list(range(4, 6000, 6))
    assert addresses.common(objects, {id(objects[4]), 12345}) == {id(objects[4])}


def test_the_fast_way_to_ids_is_used_where_it_can_be() -> None:
    if sys.implementation.name == "cpython" and not hasattr(sys, "gettotalrefcount") and sys.version_info < (3, 14):
        assert addresses._lists_are_addresses()


# leaving nothing, reporting nothing of its own


@pytest.mark.parametrize(
    "budget",
    [Budget(), Budget(forward=0, passes=0), Budget(forward=0, newest=0), Budget(seconds=0), Budget(memory=1000)],
    ids=str,
)
def test_nothing_is_held_afterwards(budget: Budget) -> None:
    class Collected:
        pass

    def closure(kept: object) -> Any:
        return lambda: kept

    find_holders([Collected()], module_roots(), budget=budget)  # what is imported at first leaves garbage
    thing = Collected()
    holder = Tracer([thing])
    namespace: dict[str, Any] = {"x": holder, "fn": closure(thing)}
    references = [weakref.ref(thing), weakref.ref(holder), weakref.ref(namespace["fn"])]
    gc.collect()
    gc.disable()
    try:
        found = find_holders([thing], [*namespace_roots(namespace), *module_roots(), *frame_roots()], budget=budget)
        del thing, holder
        namespace.clear()
        assert [reference() for reference in references] == [None, None, None]
        assert gc.collect() == 0, "the search leaves garbage in cycles"
    finally:
        gc.enable()
    assert found.paths


def test_the_search_reports_nothing_of_its_own() -> None:
    """What is held by a function's variable only has no holder at all, however it is searched for."""
    budgets = [Budget(newest=newest) for newest in (0, 20_000)]
    budgets += [Budget(forward=0, newest=newest, passes=passes) for newest in (0, 20_000) for passes in (0, 1.5, 100)]
    for budget in budgets:
        things = [Thing() for _ in range(70)]
        found = find_holders(things, [notebook(x=1), *module_roots()], budget=budget)
        assert found.paths == ((),) * 70
        assert found.passes <= 6
        assert not found.invisible


def test_garbage_collection_is_left_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            find_holders([Thing()], [notebook(x=1)])
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_the_result_is_plain_data() -> None:
    thing = Thing()
    found = find_holders([thing], [notebook(x={"k": [lambda: thing]}), *module_roots()])

    def check(value: object) -> None:
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                check(getattr(value, field.name))
        elif isinstance(value, tuple | frozenset):
            for part in value:
                check(part)
        elif isinstance(value, dict):
            check(tuple(value.items()))
        else:
            assert value is None or type(value) in (str, int, bool)

    check(found)


def test_no_code_of_the_objects_is_run() -> None:
    ran: list[str] = []

    class Descriptor:
        def __get__(self, instance: object, owner: object) -> object:
            ran.append("__get__")
            return None

    def loud(name: str) -> Any:
        def method(*args: object, **kwargs: object) -> Any:
            ran.append(name)
            return NotImplemented if name in ("__eq__", "__ne__") else 1 if name == "__hash__" else ""

        return method

    names = "__eq__ __ne__ __hash__ __repr__ __str__ __getattr__ __getattribute__ __len__ __iter__ __getitem__ __bool__"
    body = {name: loud(name) for name in f"{names} __contains__ __dir__ __instancecheck__ __subclasscheck__".split()}
    meta = type("Meta", (type,), dict(body))
    Loud = type.__call__(meta, "Loud", (), {**body, "prop": property(loud("property")), "d": Descriptor()})
    LoudList = type("LoudList", (list,), dict(body))
    LoudDict = type("LoudDict", (dict,), dict(body))
    thing = object.__new__(Loud)
    loud_list, loud_dict, holder = LoudList(), LoudDict(), object.__new__(Loud)
    list.append(loud_list, thing)
    dict.__setitem__(loud_dict, "k", loud_list)
    object.__setattr__(holder, "attr", loud_dict)
    namespace: dict[Any, Any] = {"x": [holder], "y": {3: holder}}
    ran.clear()
    found = find_holders([thing], [Root(namespace, "", "namespace", 0), *module_roots(), *frame_roots()], barriers=())
    assert ran == []
    assert {"x.[0].attr.['k'].[0]", "thing"} <= set(texts(found.paths[0]))


# roots


def test_reading_variables_leaves_nothing_on_the_frame() -> None:
    class Collected:
        pass

    def function():
        thing = Collected()
        reference = weakref.ref(thing)
        frame_roots()
        del thing
        return reference()

    assert function() is None


def test_a_dict_that_locals_gave_is_not_emptied() -> None:
    def function():
        kept = Thing()
        mine = locals()
        assert frame_locals(sys._getframe())["kept"] is kept
        return mine

    assert "kept" in function()


def test_frames_to_leave_out() -> None:
    here = sys._getframe()
    names = {root.name for root in frame_roots()}
    assert "test_frames_to_leave_out()" in names
    assert "test_frames_to_leave_out()" not in {root.name for root in frame_roots(exclude=[here])}
    assert not any("jaxleak_magic" in str(root.filename) for root in frame_roots())


def test_modules_rank_by_their_owner() -> None:
    ranks = {root.name: root.rank for root in module_roots()}
    assert ranks["pytest"] == 5
    assert ranks["json" if "json" in ranks else "re"] == 7
    assert "__main__" not in ranks

    def owner(module: str | None, filename: str | None) -> str:
        return "jax" if module == "pytest" else "user"

    ranks = {root.name: root.rank for root in module_roots(owner)}
    assert (ranks["pytest"], ranks["re"]) == (6, 1)
