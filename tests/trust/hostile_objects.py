"""Objects that raise, lie, hang or have side effects when they are looked at; a fixture to try a tool with.

Each kind makes an object that can hold a value. As long as nothing is `armed` they all behave, so that they can be
built, hashed and stored. While armed every hook of theirs notes its name in `touched`, and then does its harm.

    for kind in KINDS.values():
        thing = kind(value)         # holds `value` in some way of its own
        with armed() as touched:
            look_at(thing)
        assert not touched
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_state: dict[str, Any] = {"armed": False, "touched": []}


@contextlib.contextmanager
def armed() -> Iterator[list[str]]:
    """While this lasts the objects do harm; gives the list of hooks that were called."""
    arm()
    try:
        yield _state["touched"]
    finally:
        disarm()


def arm() -> None:
    """Begin to do harm."""
    _state.update(armed=True, touched=[])


def disarm() -> list[str]:
    """Behave again, and give the names of the hooks that were called."""
    _state["armed"] = False
    return _state["touched"]


class Harm(BaseException):
    """What the hooks raise: no ``except Exception`` catches it."""


def _touch(name: str) -> None:
    if _state["armed"]:
        _state["touched"].append(name)
        raise Harm(name)


def _hook(name: str, behaves: Callable[..., Any]) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        _touch(name)
        return behaves(*args, **kwargs)

    return method


# What each special method does while it behaves.
_METHODS: dict[str, Callable[..., Any]] = {
    "__repr__": lambda self: "thing",
    "__str__": lambda self: "thing",
    "__format__": lambda self, spec: "thing",
    "__bytes__": lambda self: b"thing",
    "__eq__": lambda self, other: self is other,
    "__ne__": lambda self, other: self is not other,
    "__lt__": lambda self, other: False,
    "__hash__": lambda self: 7,
    "__bool__": lambda self: True,
    "__len__": lambda self: 1,
    "__length_hint__": lambda self: 1,
    "__iter__": lambda self: iter(()),
    "__next__": lambda self: 1,
    "__reversed__": lambda self: iter(()),
    "__contains__": lambda self, item: False,
    "__getitem__": lambda self, key: 1,
    "__call__": lambda self, *args, **kwargs: 1,
    "__int__": lambda self: 1,
    "__float__": lambda self: 1.0,
    "__index__": lambda self: 1,
    "__fspath__": lambda self: "thing",
    "__dir__": lambda self: [],
    "__sizeof__": lambda self: 16,
    "__reduce_ex__": lambda self, protocol: (object, ()),
    "__getstate__": lambda self: None,
    "__copy__": lambda self: self,
    "__deepcopy__": lambda self, memo: self,
    "__enter__": lambda self: self,
    "__instancecheck__": lambda self, instance: False,
    "__array__": lambda self, *args, **kwargs: None,
    "__jax_array__": lambda self: None,
    "__await__": lambda self: iter(()),
    "_repr_html_": lambda self: None,
    "_repr_mimebundle_": lambda self, **kwargs: {},
    "_ipython_display_": lambda self: None,
    "_ipython_canary_method_should_not_exist_": lambda self: None,
    "tree_flatten": lambda self: ((), None),
}

KINDS: dict[str, Callable[[Any], Any]] = {}
"""Every kind by its name: makes an object that holds the value it is given."""


def kind(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add a kind, named as its function."""
    KINDS[make.__name__.replace("_", " ").strip()] = make
    return make


def _plain(name: str, hooks: dict[str, Any]) -> Callable[[Any], Any]:
    cls = type("Thing", (), {"__hash__": object.__hash__, **hooks})

    def make(value: Any) -> Any:
        thing = cls()
        object.__getattribute__(thing, "__dict__")["held"] = value
        return thing

    make.__name__ = name
    return make


for _name, _behaves in _METHODS.items():
    KINDS[f"raises in {_name}"] = _plain(_name, {_name: _hook(_name, _behaves)})

KINDS["raises everywhere"] = _plain("everywhere", {name: _hook(name, behaves) for name, behaves in _METHODS.items()})


def _lying_property(name: str, answer: Any) -> property:
    def look(self: Any) -> Any:
        if _state["armed"]:
            _state["touched"].append(name)
        return answer

    return property(look)


def _lies(name: str, answers: dict[str, Any]) -> None:
    KINDS[name] = _plain(name, {key: _lying_property(key, answer) for key, answer in answers.items()})


_lies("says it is a dict", {"__class__": dict})
_lies("says it is a function", {"__class__": types.FunctionType})
_lies("says it is a module", {"__class__": types.ModuleType})
_lies("says it is a cell", {"__class__": types.CellType})
_lies("says it is an exception", {"__class__": RuntimeError, "__traceback__": None, "__cause__": None})
_lies("lies about its code", {"__code__": 7, "__closure__": (1,), "__defaults__": {1}, "__globals__": "no"})
_lies("lies about what it wraps", {"__wrapped__": 7, "__self__": 7, "__func__": 7, "func": 7, "args": 7, "keywords": 7})
_lies("lies about its names", {"__name__": 7, "__module__": 3.0, "__doc__": b"x"})


@kind
def says_it_is_a_tracer(value: Any) -> Any:
    import jax

    make = _plain("tracer", {"__class__": _lying_property("__class__", jax.core.Tracer), "_trace": property(_never)})
    return make(value)


def _never(self: Any) -> Any:
    _touch("property")
    raise AttributeError("not while it behaves")


@kind
def getattr_raises(value: Any) -> Any:
    return _plain("getattr", {"__getattr__": lambda self, name: _never(self)})(value)


@kind
def getattribute_raises(value: Any) -> Any:
    def getattribute(self: Any, name: str) -> Any:
        _touch(f"__getattribute__ {name}")
        return object.__getattribute__(self, name)

    return _plain("getattribute", {"__getattribute__": getattribute})(value)


@kind
def getattr_says_yes_to_all(value: Any) -> Any:
    def getattr_(self: Any, name: str) -> Any:
        if _state["armed"]:
            _state["touched"].append(f"__getattr__ {name}")
        return lambda *args, **kwargs: self

    return _plain("yes", {"__getattr__": getattr_})(value)


@kind
def dict_is_a_property(value: Any) -> Any:
    class Thing:
        __slots__ = ("held",)

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            _touch("__dict__")
            return {"held": self.held}

    thing = Thing()
    thing.held = value
    return thing


@kind
def dict_is_a_hostile_dict(value: Any) -> Any:
    thing = types.SimpleNamespace()
    plain = type("Thing", (), {})()
    plain.__dict__ = _HostileDict(held=value)
    thing.inner = plain
    return plain


class _HostileDict(dict[Any, Any]):
    __getitem__ = _hook("dict.__getitem__", dict.__getitem__)
    __iter__ = _hook("dict.__iter__", dict.__iter__)
    __len__ = _hook("dict.__len__", dict.__len__)
    __contains__ = _hook("dict.__contains__", dict.__contains__)
    __repr__ = _hook("dict.__repr__", dict.__repr__)
    __eq__ = _hook("dict.__eq__", dict.__eq__)
    items = _hook("dict.items", dict.items)
    keys = _hook("dict.keys", dict.keys)
    values = _hook("dict.values", dict.values)
    get = _hook("dict.get", dict.get)
    __hash__ = object.__hash__  # type: ignore[assignment]


@kind
def a_dict_that_raises(value: Any) -> Any:
    return _HostileDict(held=value)


@kind
def a_list_that_raises(value: Any) -> Any:
    class Listed(list[Any]):
        __getitem__ = _hook("list.__getitem__", list.__getitem__)
        __iter__ = _hook("list.__iter__", list.__iter__)
        __len__ = _hook("list.__len__", list.__len__)
        __contains__ = _hook("list.__contains__", list.__contains__)
        __repr__ = _hook("list.__repr__", list.__repr__)
        __eq__ = _hook("list.__eq__", list.__eq__)
        index = _hook("list.index", list.index)
        __hash__ = object.__hash__  # type: ignore[assignment]

    return Listed([value])


@kind
def a_tuple_that_raises(value: Any) -> Any:
    class Pair(collections.namedtuple("Pair", "held")):
        __slots__ = ()
        __getitem__ = _hook("tuple.__getitem__", tuple.__getitem__)
        __iter__ = _hook("tuple.__iter__", tuple.__iter__)
        __len__ = _hook("tuple.__len__", tuple.__len__)
        __repr__ = _hook("tuple.__repr__", tuple.__repr__)
        __eq__ = _hook("tuple.__eq__", tuple.__eq__)
        __hash__ = object.__hash__  # type: ignore[assignment]
        _fields = property(_never)

    return tuple.__new__(Pair, (value,))


@kind
def a_set_that_raises(value: Any) -> Any:
    class Odd(set[Any]):
        __iter__ = _hook("set.__iter__", set.__iter__)
        __len__ = _hook("set.__len__", set.__len__)
        __contains__ = _hook("set.__contains__", set.__contains__)
        __repr__ = _hook("set.__repr__", set.__repr__)
        __hash__ = object.__hash__  # type: ignore[assignment]

    return Odd([_plain("inside", {})(value)])


class _HostileStr(str):
    __slots__ = ()
    __eq__ = _hook("str.__eq__", str.__eq__)
    __hash__ = _hook("str.__hash__", str.__hash__)  # type: ignore[assignment]
    __repr__ = _hook("str.__repr__", str.__repr__)
    __str__ = _hook("str.__str__", str.__str__)
    __format__ = _hook("str.__format__", str.__format__)
    __len__ = _hook("str.__len__", str.__len__)
    __iter__ = _hook("str.__iter__", str.__iter__)
    encode = _hook("str.encode", str.encode)
    isidentifier = _hook("str.isidentifier", str.isidentifier)
    startswith = _hook("str.startswith", str.startswith)


@kind
def keyed_by_a_hostile_text(value: Any) -> Any:
    return {_HostileStr("key"): value}


@kind
def attribute_with_a_hostile_name(value: Any) -> Any:
    thing = type("Thing", (), {})()
    thing.__dict__[_HostileStr("held")] = value
    return thing


@kind
def keyed_by_a_hostile_int(value: Any) -> Any:
    class Number(int):
        __eq__ = _hook("int.__eq__", int.__eq__)
        __hash__ = _hook("int.__hash__", int.__hash__)  # type: ignore[assignment]
        __repr__ = _hook("int.__repr__", int.__repr__)
        __str__ = _hook("int.__str__", int.__str__)

    return {Number(3): value}


def _with_metaclass(hooks: dict[str, Any]) -> Callable[[Any], Any]:
    meta = type("Meta", (type,), {"__hash__": type.__hash__, **hooks})

    def make(value: Any) -> Any:
        thing = meta("Thing", (), {"__hash__": object.__hash__})()
        object.__getattribute__(thing, "__dict__")["held"] = value
        return thing

    return make


for _name, _behaves in {
    "__repr__": type.__repr__,
    "__eq__": type.__eq__,
    "__hash__": type.__hash__,
    "__call__": type.__call__,
    "__instancecheck__": type.__instancecheck__,
    "__subclasscheck__": type.__subclasscheck__,
    "__len__": lambda cls: 0,
    "__iter__": lambda cls: iter(()),
}.items():
    KINDS[f"metaclass raises in {_name}"] = _with_metaclass({_name: _hook(f"Meta.{_name}", _behaves)})

KINDS["metaclass lies about names"] = _with_metaclass(
    {name: _lying_property(f"Meta.{name}", 7) for name in ("__name__", "__module__", "__doc__")}
)


@kind
def metaclass_getattribute_raises(value: Any) -> Any:
    def getattribute(cls: Any, name: str) -> Any:
        _touch(f"Meta.__getattribute__ {name}")
        return type.__getattribute__(cls, name)

    return _with_metaclass({"__getattribute__": getattribute})(value)


@kind
def metaclass_mro_lies(value: Any) -> Any:
    class Other:
        pass

    def mro(cls: Any) -> Any:
        _touch("Meta.mro")
        return (cls, Other, object)

    return _with_metaclass({"mro": mro})(value)


@kind
def class_without_a_proper_module(value: Any) -> Any:
    make = _plain("module", {"__module__": types.SimpleNamespace(startswith=_never), "__qualname__": "a.<locals>.b"})
    return make(value)


@kind
def descriptor_with_side_effects(value: Any) -> Any:
    class Descriptor:
        def __get__(self, instance: Any, owner: Any) -> Any:
            _touch("descriptor")
            return 1

        def __set__(self, instance: Any, value: Any) -> None:
            _touch("descriptor set")

    return _plain("descriptor", {"field": Descriptor(), "held": Descriptor()})(value)


@kind
def cached_property_that_raises(value: Any) -> Any:
    class Thing:
        @functools.cached_property
        def field(self) -> Any:
            _touch("cached_property")
            return 1

    thing = Thing()
    thing.__dict__["held"] = value
    return thing


@kind
def slots_with_odd_names(value: Any) -> Any:
    class Thing:
        __slots__ = ("__weakref__", "a", "held", "ünïcode")

    thing = Thing()
    thing.held = value
    return thing


@kind
def proxy_of_another_object(value: Any) -> Any:
    target = types.SimpleNamespace(held=value)

    class Proxy:
        __slots__ = ("__weakref__", "_target")

        def __getattribute__(self, name: str) -> Any:
            _touch(f"proxy {name}")
            return getattr(object.__getattribute__(self, "_target"), name)

        __class__ = property(lambda self: _touch("proxy class") or types.SimpleNamespace)  # type: ignore[assignment]
        __hash__ = object.__hash__

    proxy = Proxy()
    object.__setattr__(proxy, "_target", target)
    return proxy


@kind
def weak_reference_with_a_raising_callback(value: Any) -> Any:
    thing = _plain("weak", {})(value)
    thing.ref = weakref.ref(thing, lambda ref: _touch("weakref callback"))
    return thing


@kind
def resurrects_itself(value: Any) -> Any:
    saved: list[Any] = []

    def delete(self: Any) -> None:
        if len(saved) < 3:
            saved.append(self)

    return _plain("resurrects", {"__del__": delete, "saved": saved})(value)


def _in_repr(name: str, harm: Callable[[Any], str]) -> None:
    """Add a kind whose ``repr`` does harm, but does not raise."""

    def answer(self: Any) -> str:
        if not _state["armed"]:
            return "thing"
        _state["touched"].append(name)
        return harm(self)

    KINDS[name] = _plain(name, {"__repr__": answer, "__str__": answer})


_in_repr("hangs in repr", lambda self: time.sleep(10) or "late")
_in_repr("recursive repr", repr)
_in_repr("huge repr", lambda self: "x" * 10**8)


@kind
def repr_is_no_text(value: Any) -> Any:
    return _plain("number", {"__repr__": lambda self: _touch("__repr__") or 7})(value)


@kind
def names_of_surrogates_and_controls(value: Any) -> Any:
    cls = type("Thing\x1b[31m\u202e<b>", (), {})
    thing = cls()
    thing.__dict__["\ud800\x1b]0;title\x07<b>"] = value
    return thing


@kind
def name_of_100000_characters(value: Any) -> Any:
    thing = type("T" * 100_000, (), {})()
    thing.__dict__["h" * 100_000] = value
    return thing


@kind
def cyclic_list(value: Any) -> Any:
    thing: list[Any] = [value]
    thing += [thing, [thing]]
    return thing


@kind
def cyclic_dict(value: Any) -> Any:
    thing: dict[str, Any] = {"held": value}
    thing["self"] = thing
    return thing


@kind
def list_of_a_million(value: Any) -> Any:
    return [None] * 999_999 + [value]


@kind
def dict_of_a_million(value: Any) -> Any:
    return {**dict.fromkeys(range(999_999)), "held": value}


@kind
def nested_10000_deep(value: Any) -> Any:
    for _ in range(10_000):
        value = [value]
    return value


@kind
def deleted_module(value: Any) -> Any:
    module = types.ModuleType("gone_module")
    sys.modules["gone_module"] = module
    exec("class Thing:\n    def method(self): pass", vars(module))
    thing = module.Thing()
    thing.held = value
    del sys.modules["gone_module"], module.__dict__["__name__"]
    return thing


@kind
def module_whose_getattr_raises(value: Any) -> Any:
    module = types.ModuleType("odd_module")
    module.__dict__.update(held=value, __getattr__=lambda name: _touch(f"module {name}"), __file__=7, __spec__="no")
    return module


@kind
def module_of_another_class(value: Any) -> Any:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            _touch(f"lazy module {name}")
            return super().__getattribute__(name)

    module = Lazy("lazy_module")
    types.ModuleType.__getattribute__(module, "__dict__")["held"] = value
    return module


@kind
def function_with_odd_names(value: Any) -> Any:
    def held_by() -> Any:
        return value

    held_by.__code__ = held_by.__code__.replace(co_name="<\x00>", co_filename="/no/such\ud800/file.py")
    held_by.__name__ = _HostileStr("f")
    held_by.__qualname__ = "x" * 1000
    held_by.__wrapped__ = _plain("everywhere", {"__getattribute__": lambda self, name: _never(self)})(None)  # type: ignore[attr-defined]
    held_by.__module__ = 7  # type: ignore[assignment]
    return held_by


@kind
def partial_of_a_hostile_callable(value: Any) -> Any:
    return functools.partial(KINDS["raises everywhere"](None), value, key=value)


@kind
def partial_of_a_hostile_subclass(value: Any) -> Any:
    class Odd(functools.partial):  # type: ignore[type-arg]
        func = property(_never)  # type: ignore[assignment]
        args = property(_never)  # type: ignore[assignment]
        __repr__ = _hook("partial.__repr__", functools.partial.__repr__)

    return Odd(print, value)


@kind
def bound_method_of_a_hostile_object(value: Any) -> Any:
    thing = KINDS["raises in __repr__"](value)
    return types.MethodType(lambda self: None, thing)


@kind
def dataclass_that_raises(value: Any) -> Any:
    @dataclasses.dataclass(eq=False)
    class Data:
        held: Any
        __repr__ = _hook("dataclass.__repr__", lambda self: "Data")

    return Data(value)


@kind
def dataclass_fields_lie(value: Any) -> Any:
    thing = _plain("fields", {})(value)
    type(thing).__dataclass_fields__ = _HostileDict(held=7)
    return thing


@kind
def enum_that_raises(value: Any) -> Any:
    class Colour(enum.Enum):
        RED = 1
        __repr__ = _hook("enum.__repr__", enum.Enum.__repr__)
        __str__ = _hook("enum.__str__", enum.Enum.__str__)
        __hash__ = _hook("enum.__hash__", enum.Enum.__hash__)

    Colour.RED.held = value  # type: ignore[attr-defined]
    return Colour.RED


@kind
def thread_local_that_raises(value: Any) -> Any:
    class Local(threading.local):
        __repr__ = _hook("local.__repr__", lambda self: "local")

    local = Local()
    local.held = value
    return local


@kind
def generator_with_hostile_locals(value: Any) -> Any:
    def generator(thing: Any, held: Any) -> Iterator[Any]:
        yield thing, held

    running = generator(KINDS["raises everywhere"](None), value)
    next(running)
    return running


@kind
def class_that_holds_it(value: Any) -> Any:
    meta = type("Meta", (type,), {"__repr__": _hook("Meta.__repr__", type.__repr__), "__hash__": type.__hash__})
    return meta("Holder", (), {"held": value})


class HostileError(Exception):
    """An exception none of whose parts can be asked for."""

    def __init__(self, held: Any) -> None:
        super().__init__(held)
        self.held = held

    def __str__(self) -> str:
        _touch("exception.__str__")
        return "hostile"

    def __repr__(self) -> str:
        _touch("exception.__repr__")
        return "hostile"

    def __getattribute__(self, name: str) -> Any:
        _touch(f"exception.__getattribute__ {name}")
        return super().__getattribute__(name)


@kind
def exception_that_raises(value: Any) -> Any:
    return HostileError(value)


@kind
def chain_of_exceptions_in_a_circle(value: Any) -> Any:
    one, two = RuntimeError("one", value), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    one.__context__, two.__context__ = two, one
    return one
