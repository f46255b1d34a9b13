"""Raw references as readable steps, for whole paths.

Runs after all searching: reading an instance's ``__dict__`` can make it real, which adds a reference to the path.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Mapping, Sequence, Set
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

from jaxleak_magic.heap import objects as ob
from jaxleak_magic.heap.folds import EXCEPTION, LRU_CACHE, PARTIAL, Fold, FoldFunction, context, folds_from, public_name
from jaxleak_magic.heap.paths import Label, Labeller, Root, Step, StepKind
from jaxleak_magic.heap.positions import Positions
from jaxleak_magic.heap.unseen import array_reference

_FUNCTION_PARTS = (
    "__code__",
    "__globals__",
    "__builtins__",
    "__closure__",
    "__defaults__",
    "__kwdefaults__",
    "__dict__",
    "__module__",
    "__doc__",
)


class Describer:
    """Makes the steps of all paths of one search, and numbers the holders."""

    def __init__(self, labellers: Sequence[Labeller], children: Mapping[int, Set[int]]) -> None:
        """Take the labellers, which are asked first, and the children of each holder that will be asked for, by id."""
        self._labellers = labellers
        self._positions = Positions(children)
        self._numbers: dict[int, int] = {}
        self._folds: dict[int, Sequence[FoldFunction]] = {}  # by the type's id
        self._identities: dict[int, Identity] = {}
        self._kinds: dict[int, Identity] = {}  # by the type's id: of holders with no name of their own
        self._places: dict[int, Place] = {}

    def close(self) -> None:
        """Let go of everything read."""
        self._positions.close()

    def steps(self, path: Sequence[object], root: Root | None) -> tuple[Step, ...] | None:
        """The steps of a path from the target up to the root's object; None if the root holds it no longer."""
        steps: list[Step] = []
        at, last = 0, len(path) - 1
        while at < last:
            if root is not None and type(root.obj) is Context and ob.class_name(type(path[at + 1])).startswith("hamt"):
                found = context(path[at:], self._positions)
                assert found is not None
                steps.append(self._context_step(path, at, found, root))
                break
            if root is not None and at == last - 1:
                step = self._root_step(path[at], root)
                if step is None:
                    return None
                steps.append(step)
                break
            hops = path[at:] if root is None else path[at:-1]
            found = self._found(hops)
            steps.append(self._step(path, at, found))
            at += found.hops
        return tuple(steps)

    def _found(self, hops: Sequence[Any]) -> Fold:
        child, holder = hops[:2]
        for labeller in self._labellers:
            label = labeller(holder, child)
            if type(label) is Label:
                return Fold(label.kind, label.name, 1, label.holder, label.detail)
        kind = type(holder)
        folds = self._folds.get(id(kind))
        if folds is None:
            folds = self._folds[id(kind)] = folds_from(kind)
        for fold in folds:
            found = fold(hops, self._positions)
            if found is not None:
                return found
        return Fold(*self._reference(holder, child))

    def _step(self, path: Sequence[object], at: int, found: Fold) -> Step:
        holder = path[at + found.hops]
        who = self._identity(holder)
        short = who.short
        if found.name == "__wrapped__" and ob.code_of(path[at]) is not None:
            kind = "wrapper" if type(holder) is types.FunctionType else ob.class_name(type(holder))
            short = f"{kind} of {self._identity(path[at]).short}"
        return Step(
            found.kind,
            found.name,
            who.type,
            who.module,
            found.holder or short,
            who.filename or found.detail.get("file"),
            who.line,
            who.qualname,
            self._number(holder),
            _raw(path[at + 1 : at + found.hops + 1]),
            dict(found.detail),
        )

    def _root_step(self, child: object, root: Root) -> Step | None:
        if not issubclass(type(root.obj), dict):
            step = self._step((child, root.obj), 0, self._found((child, root.obj)))
            return replace(step, holder=root.name or step.holder)
        name = self._positions.variable(root, child)
        if name is None:
            return None
        node, raw = self._number(root.obj), _raw((root.obj,))
        if root.kind in ("frame", "thread"):
            detail = {"thread": root.thread} if root.thread else {}
            place = root.filename, root.line, root.qualname
            return Step("frame_local", name, "frame", None, root.name, *place, node, raw, detail)
        if root.kind in ("namespace", "module"):
            holder = f"module {root.name}" if root.name else "notebook"
            return Step("global", name, "module", root.name or "__main__", holder, node=node, raw=raw)
        kind: StepKind = "item" if root.kind == "history" else "key"
        return Step(kind, name, ob.type_name(type(root.obj)), None, root.name, node=node, raw=raw)

    def _context_step(self, path: Sequence[object], at: int, found: Fold, root: Root) -> Step:
        raw = _raw(path[at + 1 :])
        return Step(
            "other", found.name, "contextvars.Context", None, "context variable", node=self._number(root.obj), raw=raw
        )

    def _identity(self, holder: object) -> Identity:
        """Who a holder is, found once for each holder or for its type; the paths keep them alive meanwhile."""
        known = self._kinds.get(id(type(holder))) or self._identities.get(id(holder))
        if known is None:
            known = own_identity(holder, self._places)
            if known is None:
                known = self._kinds[id(type(holder))] = kind_identity(type(holder), self._places)
            self._identities[id(holder)] = known
        return known

    def _number(self, holder: object) -> int:
        return self._numbers.setdefault(id(holder), len(self._numbers))

    # a single reference

    def _reference(self, holder: Any, child: object) -> tuple[StepKind, str | None]:
        """Kind and name of the reference from a holder to its child with no plumbing between."""
        kind: Any = type(holder)
        if ob.is_class(holder):
            return "class_attribute", self._class_attribute(holder, child)
        found: tuple[StepKind, str | None] | None = None
        if issubclass(kind, dict):
            text = self._positions.key_text(holder, child)
            found = text and ("key", text)  # pyright: ignore[reportAssignmentType]
        elif issubclass(kind, (list, tuple, deque)):
            found = self._item(holder, child)
        elif issubclass(kind, (set, frozenset)):
            found = "item", None
        elif kind is types.FunctionType:
            name = next((n for n in _FUNCTION_PARTS if ob.function_part(holder, n) is child), None)
            found = "attribute", name
        elif kind is types.MethodType:
            found = "bound_method", holder.__name__ if type(holder.__func__) is types.FunctionType else None
        elif ob.is_one_of(kind, types.BuiltinMethodType, types.MethodWrapperType):
            found = "bound_method", holder.__name__
        elif kind is types.CellType:
            found = "closure_cell", None
        elif kind is LRU_CACHE:
            found = "cache", None
        elif issubclass(kind, weakref.ReferenceType):
            found = "weak", "callback"
        elif issubclass(kind, functools.partial) and PARTIAL["func"].__get__(holder) is child:
            found = "partial", "func"
        return found or self._attribute(holder, child)

    def _item(self, holder: Any, child: object) -> tuple[StepKind, str | None] | None:
        index = self._positions.index(holder, child)
        if index is None:
            return None
        fields = _named_fields(type(holder))
        return ("attribute", fields[index]) if index < len(fields) else ("item", f"[{index}]")

    def _class_attribute(self, holder: Any, child: Any) -> str | None:
        if ob.mro(holder) is child:
            return "__mro__"
        if any(base is child for base in ob.mro(holder)[1:]) or vars(type)["__bases__"].__get__(holder) is child:
            return "__bases__"
        return "__class__" if type(holder) is child else self._positions.attribute(ob.class_dict(holder), child)

    def _attribute(self, holder: Any, child: Any) -> tuple[StepKind, str | None]:
        for name, value in ob.members(holder):
            if value is child:
                return "attribute", name
        values = ob.instance_dict(holder)
        if values is child:
            return "attribute", "__dict__"
        name = self._positions.attribute(values, child) if values is not None else None
        if name is not None:
            return "attribute", public_name(holder, name)
        if issubclass(type(holder), BaseException):
            for name in ("__traceback__", "__context__", "__cause__", "args"):
                if EXCEPTION[name].__get__(holder) is child:
                    return "attribute", name
        name = array_reference(holder, child)
        if name is not None:
            return "attribute" if name == "base" else "item", name
        return "other", "__class__" if type(holder) is child else None


Place = tuple[str | None, int | None]
"""File and line, as far as known."""


@dataclass(frozen=True)
class Identity:
    """A holder's short name, its type's name, its module, and where it or its class was defined."""

    short: str
    type: str
    module: str | None
    filename: str | None = None
    line: int | None = None
    qualname: str | None = None


def own_identity(holder: Any, places: dict[int, Place]) -> Identity | None:
    """What a module, class, function or the like is called and where it was defined; None for other instances.

    Args:
        holder: any object.
        places: the places of classes found so far, by the class's id; added to, since to find one takes long.
    """
    kind = type(holder)
    if kind is types.ModuleType:
        name = dict.get(ob.module_dict(holder), "__name__")
        name = name if type(name) is str else "?"
        return Identity(f"module {name}", "module", name)
    if ob.is_class(holder):
        return _of_class(f"class {ob.class_name(holder)}", ob.type_name(kind), holder, places)
    if kind is LRU_CACHE:
        wrapped = vars(LRU_CACHE)["__dict__"].__get__(holder).get("__wrapped__")
        if type(wrapped) is not types.FunctionType:
            return Identity("lru_cache", ob.type_name(kind), "functools")
        return _of_code(wrapped, ob.type_name(kind))
    if ob.code_of(holder) is not None:
        return _of_code(holder, ob.type_name(kind))
    if issubclass(kind, functools.partial):
        short = f"partial({_called(PARTIAL['func'].__get__(holder))})"
        return Identity(short, ob.type_name(kind), ob.class_module(kind))
    return None


def kind_identity(kind: type, places: dict[int, Place]) -> Identity:
    """The same for instances of a type that have no name of their own; ``places`` as there."""
    return _of_class(ob.class_name(kind), ob.type_name(kind), kind, places)


def _of_class(short: str, type_name: str, cls: type, places: dict[int, Place]) -> Identity:
    if id(cls) not in places:
        places[id(cls)] = ob.class_place(cls)
    return Identity(short, type_name, ob.class_module(cls), *places[id(cls)], ob.class_qualname(cls))


def _of_code(holder: Any, type_name: str) -> Identity:
    code = ob.code_of(holder)
    assert code is not None
    short = ob.code_name(code)
    if type(holder) is types.MethodType:
        short = f"{ob.class_name(type(holder.__self__))}.{short}"
    return Identity(short, type_name, _module_of_code(holder), code.co_filename, code.co_firstlineno, code.co_qualname)


def home_module(thing: object) -> str | None:
    """The module in which a class or function was defined."""
    if ob.is_class(thing):
        return ob.class_module(thing)  # pyright: ignore[reportArgumentType]
    return _module_of_code(thing) if type(thing) is types.FunctionType else None


def _called(function: object) -> str:
    code = ob.code_of(function)
    if code is not None:
        return ob.code_name(code).removesuffix("()")
    if type(function) is types.BuiltinFunctionType:
        return function.__name__
    return ob.class_name(function) if ob.is_class(function) else ob.class_name(type(function))  # pyright: ignore


def _module_of_code(holder: Any) -> str | None:
    kind = type(holder)
    if kind is types.MethodType:
        holder, kind = holder.__func__, type(holder.__func__)
    if kind is types.FunctionType:
        module = ob.function_part(holder, "__module__")
    else:
        frame = holder if kind is types.FrameType else ob.frame_of(holder)
        module = dict.get(frame.f_globals, "__name__") if frame is not None else None
    return module if type(module) is str else None


def _named_fields(kind: type) -> tuple[str, ...]:
    """The field names of a class made by ``NamedTuple`` or ``namedtuple``."""
    if not issubclass(kind, tuple) or kind is tuple:
        return ()
    for cls in ob.mro(kind):
        fields = ob.class_dict(cls).get("_fields") if cls is not tuple else None
        if type(fields) is tuple and all(type(name) is str for name in fields):
            return fields
    return ()


def _raw(hops: Sequence[object]) -> tuple[str, ...]:
    if len(hops) == 1:
        return (ob.class_name(type(hops[0])),)
    names = [ob.class_name(type(hop)) for hop in hops]
    return tuple(
        f"dict of {names[k + 1]}" if name == "dict" and k + 1 < len(names) else name for k, name in enumerate(names)
    )
