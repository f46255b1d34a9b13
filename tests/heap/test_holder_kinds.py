"""Every kind of holder, and the steps by which it is named."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import dataclasses
import enum
import functools
import itertools
import queue
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from jaxleak_magic.heap import Root, context_roots, find_holders, frame_roots, module_roots

Expected = list[tuple[str, str | None, str]]
CASES: dict[str, tuple[Callable[[Any], Any], Expected]] = {}


class Thing:
    """What is held."""


class Learner:
    def __init__(self, h: object = None) -> None:
        self.h = h

    def step(self) -> None:
        pass


def case(name: str, *expected: tuple[str, str | None, str]) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """A function that makes from a thing what is put into the namespace as ``x``, and the steps up to that."""

    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        CASES[name] = make, list(expected)
        return make

    return register


@case("global")
def _(t):
    return t


@case("attribute", ("attribute", "h", "Learner"))
def _(t):
    return Learner(t)


@case("attribute of an instance with a real dict", ("attribute", "h", "Learner"))
def _(t):
    learner = Learner()
    vars(learner)["h"] = t
    return learner


@case("slot", ("attribute", "s", "Slotted"))
def _(t):
    class Slotted:
        __slots__ = ("s",)

    slotted = Slotted()
    slotted.s = t
    return slotted


@case("inherited slot", ("attribute", "s", "Below"))
def _(t):
    class Above:
        __slots__ = ("s",)

    class Below(Above):
        pass

    below = Below()
    below.s = t
    return below


@case("list", ("item", "[1]", "list"))
def _(t):
    return [0, t]


@case("tuple", ("item", "[2]", "tuple"))
def _(t):
    return (0, 1, t)


@case("deque", ("item", "[1]", "deque"))
def _(t):
    return collections.deque([0, t])


@case("list subclass", ("item", "[0]", "Stack"))
def _(t):
    class Stack(list):
        pass

    return Stack([t])


@case("dict value", ("key", "['k']", "dict"))
def _(t):
    return {"j": 0, "k": t}


@case("dict value under a tuple", ("key", "[('a', 3)]", "dict"))
def _(t):
    return {("a", 3): t}


@case("dict value under a function", ("key", "[step]", "dict"))
def _(t):
    return {Learner.step: t}


@case("dict key", ("key", "a key", "dict"))
def _(t):
    return {t: 1}


@case("defaultdict", ("key", "['k']", "defaultdict"))
def _(t):
    return collections.defaultdict(list, k=t)


@case("OrderedDict", ("key", "['k']", "OrderedDict"))
def _(t):
    return collections.OrderedDict(k=t)


@case("Counter key", ("key", "a key", "Counter"))
def _(t):
    return collections.Counter([t])


@case("set", ("item", None, "set"))
def _(t):
    return {t}


@case("frozenset", ("item", None, "frozenset"))
def _(t):
    return frozenset([t])


@case("nested containers", ("item", "[0]", "list"), ("key", "['k']", "dict"), ("item", "[1]", "tuple"))
def _(t):
    return (0, {"k": [t]})


@case("closure", ("closure_cell", "rate", "schedule()"))
def _(t):
    rate = t

    def schedule():
        return rate

    return schedule


@case("lambda's closure", ("closure_cell", "t", "lambda"))
def _(t):
    return lambda: t


@case("second free variable", ("closure_cell", "rate", "schedule()"))
def _(t):
    other, rate = 0, t

    def schedule():
        return other, rate

    return schedule


@case("closure in a closure", ("closure_cell", "rate", "inner()"), ("closure_cell", "inner", "outer()"))
def _(t):
    rate = t

    def inner():
        return rate

    def outer():
        return inner()

    return outer


@case("default argument", ("argument_default", "memo", "f()"))
def _(t):
    def f(a, b=1, memo=t):
        pass

    return f


@case("keyword-only default", ("argument_default", "memo", "f()"))
def _(t):
    def f(*, memo=t):
        pass

    return f


@case("function attribute", ("attribute", "last", "f()"))
def _(t):
    def f():
        pass

    f.last = t
    return f


@case("class attribute", ("class_attribute", "cache", "class Registry"))
def _(t):
    class Registry:
        cache = t

    return Registry


@case("list in a class", ("item", "[0]", "list"), ("class_attribute", "seen", "class Registry"))
def _(t):
    class Registry:
        seen: typing.ClassVar[list] = [t]

    return Registry


@case("class kept by an instance", ("class_attribute", "cache", "class Registry"), ("other", "__class__", "Registry"))
def _(t):
    class Registry:
        cache = t

    return Registry()


@case(
    "static method",
    ("closure_cell", "t", "f()"),
    ("attribute", "__func__", "staticmethod"),
    ("class_attribute", "f", "class C"),
)
def _(t):
    class C:
        @staticmethod
        def f():
            return t

    return C


@case("property", ("closure_cell", "t", "p()"), ("attribute", "fget", "property"), ("class_attribute", "p", "class C"))
def _(t):
    class C:
        @property
        def p(self):
            return t

    return C


@case("cached_property", ("attribute", "value", "Lazy"))
def _(t):
    box = [t]

    class Lazy:
        @functools.cached_property
        def value(self):
            return box.pop()

    lazy = Lazy()
    assert lazy.value is t
    return lazy


@case("bound method", ("bound_method", "step", "Thing.step()"))
def _(t):
    return types.MethodType(Learner.step, t)


@case("bound method of a holder", ("attribute", "h", "Learner"), ("bound_method", "step", "Learner.step()"))
def _(t):
    return Learner(t).step


@case("builtin method", ("item", "[0]", "list"), ("bound_method", "append", "builtin_function_or_method"))
def _(t):
    return [t].append


@case("partial's argument", ("partial", "[1]", "partial(step)"))
def _(t):
    return functools.partial(Learner.step, 0, t)


@case("partial's keyword", ("partial", "rate", "partial(step)"))
def _(t):
    return functools.partial(Learner.step, rate=t)


@case("partial's function", ("partial", "func", "partial(Callable)"))
def _(t):
    class Callable:
        def __init__(self, inner):
            self.inner = inner

        def __call__(self):
            pass

    t.__class__ = type("Callable", (Thing,), {"__call__": lambda self: None})
    return functools.partial(t)


@case("generator", ("generator", "kept", "walk()"))
def _(t):
    def walk():
        kept = t_box.pop()
        yield
        del kept

    t_box = [t]
    generator = walk()
    next(generator)
    return generator


@case("generator's cell", ("generator", "kept", "walk()"))
def _(t):
    t_box = [t]

    def walk():
        kept = t_box.pop()
        yield
        (lambda: kept)()

    generator = walk()
    next(generator)
    return generator


@case(
    "generator expression",
    ("item", "[0]", "list"),
    ("other", None, "list_iterator"),
    ("generator", ".0", "<genexpr>()"),
)
def _(t):
    things = [t]
    return (x for x in things)


@case("coroutine", ("generator", "kept", "walk()"))
def _(t):
    async def walk(kept):
        await asyncio.sleep(0)

    coroutine = walk(t)
    coroutine.send(None)
    return coroutine


@case("async generator", ("generator", "kept", "walk()"))
def _(t):
    async def walk(kept):
        yield kept

    generator = walk(t)
    with pytest.raises(StopIteration):
        generator.__anext__().send(None)
    return generator


@case("exception", ("frame_local", "x", "fails()"))
def _(t):
    def fails(x):
        raise ValueError

    try:
        fails(t)
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next
        return error


@case("exception's argument", ("attribute", "args[1]", "ValueError"))
def _(t):
    return ValueError(0, t)


@case("cause of an exception", ("frame_local", "x", "fails()"), ("attribute", "__context__", "KeyError"))
def _(t):
    def fails(x):
        raise ValueError

    try:
        try:
            fails(t)
        except ValueError as error:
            error.__traceback__ = error.__traceback__.tb_next
            raise KeyError from None
    except KeyError as outer:
        outer.__traceback__ = None
        return outer


@case("lru_cache's result", ("cache", "lookup", "lookup()"))
def _(t):
    @functools.lru_cache
    def lookup(box):
        return box.pop()

    lookup(Box([t]))
    return lookup


@case("unbounded cache's result", ("cache", "lookup", "lookup()"))
def _(t):
    @functools.cache
    def lookup(box):
        return box.pop()

    lookup(Box([t]))
    return lookup


@case("lru_cache's argument", ("cache", "lookup", "lookup()"))
def _(t):
    @functools.lru_cache
    def lookup(x, y):
        return 0

    lookup(t, 1)
    return lookup


@case("unbounded cache's argument", ("cache", "lookup", "lookup()"))
def _(t):
    @functools.cache
    def lookup(x):
        return 0

    lookup(t)
    return lookup


class Box(list):
    __hash__ = object.__hash__


@case("WeakKeyDictionary", ("weak", "[Learner]", "WeakKeyDictionary"))
def _(t):
    return weakref.WeakKeyDictionary({Learner: t})


@case("WeakKeyDictionary of an instance", ("weak", "[<Box>]", "WeakKeyDictionary"))
def _(t):
    key = Box()
    registry = weakref.WeakKeyDictionary({key: t})
    CASES.setdefault("", (lambda _: key, []))  # keep the key alive
    return registry


@case("WeakValueDictionary's key", ("weak", "a key", "WeakValueDictionary"))
def _(t):
    return weakref.WeakValueDictionary({t: Learner})


@case("callback of a weak reference", ("closure_cell", "t", "lambda"), ("weak", "callback", "ReferenceType"))
def _(t):
    return weakref.ref(Learner, lambda _: t)


@case("queue.Queue", ("item", "[1]", "Queue"))
def _(t):
    return _filled(queue.Queue(), 0, t)


@case("queue.LifoQueue", ("item", "[0]", "LifoQueue"))
def _(t):
    return _filled(queue.LifoQueue(), t)


@case("queue.PriorityQueue", ("item", "[1]", "tuple"), ("item", "[0]", "PriorityQueue"))
def _(t):
    return _filled(queue.PriorityQueue(), (1, t))


@case("queue.SimpleQueue", ("item", "[1]" if sys.version_info < (3, 13) else None, "SimpleQueue"))
def _(t):
    return _filled(queue.SimpleQueue(), 0, t)


def _filled(waiting, *items):
    for item in items:
        waiting.put(item)
    return waiting


@case("threading.local", ("attribute", "scale", "_local"))
def _(t):
    local = threading.local()
    local.scale = t
    return local


@case("threading.local of another thread", ("attribute", "scale", "_local"))
def _(t):
    local = threading.local()
    started, done = threading.Event(), threading.Event()

    def work(box):
        local.scale = box.pop()
        started.set()
        done.wait()

    threading.Thread(target=work, args=([t],), daemon=True).start()
    started.wait()
    FINISH.append(done.set)
    return local


FINISH: list[Callable[[], object]] = []


@case("context kept by the user", ("other", "scale", "context variable"))
def _(t):
    context = contextvars.Context()
    context.run(contextvars.ContextVar("scale").set, t)
    return context


@case("dataclass", ("attribute", "field", "Data"))
def _(t):
    @dataclasses.dataclass
    class Data:
        field: object

    return Data(t)


@case("frozen dataclass with slots", ("attribute", "field", "Data"))
def _(t):
    @dataclasses.dataclass(frozen=True, slots=True)
    class Data:
        field: object

    return Data(t)


class Pair(NamedTuple):
    left: object
    right: object


@case("NamedTuple", ("attribute", "right", "Pair"))
def _(t):
    return Pair(0, t)


@case("enum", ("attribute", "value", "Colour"))
def _(t):
    return enum.Enum("Colour", {"RED": t}).RED


@case("SimpleNamespace", ("attribute", "k", "SimpleNamespace"))
def _(t):
    return types.SimpleNamespace(k=t)


@case("module not imported", ("attribute", "k", "module scratch"))
def _(t):
    module = types.ModuleType("scratch")
    module.k = t
    return module


@case("cell", ("closure_cell", None, "cell"))
def _(t):
    return types.CellType(t)


@case("slice", ("attribute", "step", "slice"))
def _(t):
    return slice(0, 1, t)


@case("itertools.repeat", ("other", None, "repeat"))
def _(t):
    return itertools.repeat(t)


@case("dict view", ("key", "['k']", "dict"), ("other", None, "dict_values"))
def _(t):
    return {"k": t}.values()


@case("list iterator", ("item", "[0]", "list"), ("other", None, "list_iterator"))
def _(t):
    return iter([t])


@case("mappingproxy", ("key", "['k']", "dict"), ("other", None, "mappingproxy"))
def _(t):
    return types.MappingProxyType({"k": t})


@case("function's globals", ("global", "kept", "f()"))
def _(t):
    namespace = {"kept": t}
    exec("def f(): return kept", namespace)
    return namespace["f"]


@case("instance whose class lies about itself", ("attribute", "h", "Liar"))
def _(t):
    class Liar:
        @property
        def __class__(self):
            raise RuntimeError

        def __getattribute__(self, name):
            raise RuntimeError

        def __eq__(self, other):
            raise RuntimeError

        def __hash__(self):
            raise RuntimeError

        def __repr__(self):
            raise RuntimeError

    liar = Liar()
    object.__setattr__(liar, "h", t)
    return liar


@case("instance of a lying metaclass", ("attribute", "h", "Odd"))
def _(t):
    class Meta(type):
        def __getattribute__(cls, name):
            raise RuntimeError

        def __instancecheck__(cls, instance):
            raise RuntimeError

        def __eq__(cls, other):
            raise RuntimeError

        def __hash__(cls):
            raise RuntimeError

    odd = object.__new__(Meta("Odd", (), {}))
    object.__setattr__(odd, "h", t)
    return odd


def _numpy(t, shape, place):
    np = pytest.importorskip("numpy")
    array = np.empty(shape, object)
    array[place] = t
    return array


@case("NumPy object array", ("item", "[1, 0]", "ndarray"))
def _(t):
    return _numpy(t, (2, 2), (1, 0))


@case("NumPy object array in an untracked dict", ("item", "[0]", "ndarray"), ("key", "['k']", "dict"))
def _(t):
    return {"k": _numpy(t, (1,), 0)}


@case("NumPy object array in an attribute", ("item", "[0]", "ndarray"), ("attribute", "h", "Learner"))
def _(t):
    return Learner(_numpy(t, (1,), 0))


@case("NumPy object array in another", ("item", "[0]", "ndarray"), ("item", "[2]", "ndarray"))
def _(t):
    outer = _numpy(None, (3,), 0)
    outer[2] = _numpy(t, (1,), 0)
    return outer


def steps_of(path) -> Expected:
    return [(step.kind, step.name, step.holder) for step in path.steps]


@pytest.fixture(autouse=True)
def _finish() -> Iterator[None]:
    yield
    while FINISH:
        FINISH.pop()()
    CASES.pop("", None)


@pytest.mark.parametrize("name", [name for name in CASES if name])
def test_holder_is_named(name: str) -> None:
    make, expected = CASES[name]
    thing = Thing()
    namespace: dict[str, Any] = {"x": make(thing), "f": Learner}
    references = sys.getrefcount(thing)
    found = find_holders([thing], [Root(namespace, "", "namespace", 0), *module_roots()])
    assert sys.getrefcount(thing) == references, "the search still holds it"
    assert found.finished
    assert found.paths[0], "no path found"
    assert steps_of(found.paths[0][0]) == [*expected, ("global", "x", "notebook")]
    assert not found.invisible


def test_there_are_at_least_forty_kinds() -> None:
    assert len(CASES) >= 40


def test_module_global() -> None:
    thing = Thing()
    types_module = sys.modules["colorsys"] = types.ModuleType("colorsys")
    types_module.kept = thing
    try:
        path = find_holders([thing], module_roots()).paths[0][0]
    finally:
        del sys.modules["colorsys"]
    assert steps_of(path) == [("global", "kept", "module colorsys")]
    assert (path.root_kind, path.root_name) == ("module", "colorsys")


def test_finalizer() -> None:
    thing = Thing()
    learner = Learner()
    finalizer = weakref.finalize(learner, print, 0, thing)
    path = find_holders([thing], module_roots()).paths[0][0]
    finalizer.detach()
    held, root = steps_of(path)
    assert held == ("weak", "args[1]", "weakref.finalize(…, print)")
    # JAX 0.7.2 imports the class by name into a module of its own, which holds the registry just as well.
    assert root in [("global", "finalize", f"module {m}") for m in ("weakref", "jax._src.interpreters.partial_eval")]


def test_context_variable() -> None:
    thing = Thing()
    variable = contextvars.ContextVar("scale")
    token = variable.set(thing)
    try:
        path = find_holders([thing], context_roots()).paths[0][0]
    finally:
        variable.reset(token)
    assert steps_of(path) == [("other", "scale", "context variable")]


def test_context_variable_among_many() -> None:
    thing = Thing()
    context = contextvars.Context()
    for number in range(200):
        context.run(contextvars.ContextVar(f"v{number}").set, thing if number == 137 else number)
    path = find_holders([thing], [Root(context, "context variables", "other", 2)]).paths[0][0]
    assert steps_of(path) == [("other", "v137", "context variable")]


def test_local_variable_of_a_running_function() -> None:
    def solve(tol):
        return find_holders([tol], frame_roots()).paths[0]

    paths = solve(Thing())
    assert steps_of(paths[0]) == [("frame_local", "tol", "solve()")]
    code = solve.__code__
    step = paths[0].steps[0]
    assert (step.filename, step.line, step.qualname) == (code.co_filename, code.co_firstlineno, code.co_qualname)


def test_local_variable_of_another_thread() -> None:
    started, done = threading.Event(), threading.Event()
    reference: list[Any] = []

    def work():
        kept = [Thing()]
        reference.append(weakref.ref(kept[0]))
        started.set()
        done.wait()

    thread = threading.Thread(target=work, name="worker-7")
    thread.start()
    started.wait()
    path = find_holders([reference[0]()], frame_roots()).paths[0][0]
    done.set()
    thread.join()
    assert steps_of(path) == [("item", "[0]", "list"), ("frame_local", "kept", "work()")]
    assert path.steps[-1].detail["thread"] == "worker-7"
    assert path.root_kind == "thread"


def test_exception_says_what_keeps_the_frame() -> None:
    make, _ = CASES["exception"]
    thing = Thing()
    namespace = {"err": make(thing)}
    step = find_holders([thing], [Root(namespace, "", "namespace")]).paths[0][0].steps[0]
    assert step.detail["kept_by"] == "the traceback of a stored exception"
    assert step.detail["exception"] == "ValueError"
    assert step.raw == ("frame", "traceback", "ValueError")


def test_output_history_is_named_and_ranks_behind_variables() -> None:
    thing, other = Thing(), Thing()
    namespace = {"Out": {3: thing, 4: other}, "_4": other, "_": other, "kept": [thing]}
    namespace["_oh"] = namespace["Out"]
    roots = [Root(namespace, "", "namespace", 0), Root(namespace["Out"], "Out", "history", 3)]
    found = find_holders([thing, other], roots)
    assert [steps_of(path) for path in found.paths[0]] == [
        [("item", "[0]", "list"), ("global", "kept", "notebook")],
        [("item", "[3]", "Out")],
    ]
    assert [steps_of(path) for path in found.paths[1]] == [
        [("item", "[4]", "Out")],
        [("global", "_4", "notebook")],
    ]
