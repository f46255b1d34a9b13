"""What is mere plumbing between a thing and its real holder: which references together make one readable step.

Each fold gets ``hops``: the child, its holder, the holder's holder and so on, as far as they may be folded. It returns
None where it does not apply.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, NamedTuple

from jaxleak_magic.heap import objects as ob
from jaxleak_magic.heap.paths import StepKind
from jaxleak_magic.heap.positions import Positions
from jaxleak_magic.heap.roots import frame_locals

LRU_CACHE: type = type(functools.lru_cache(lambda: None))
PARTIAL: Mapping[str, Any] = vars(functools.partial)
EXCEPTION: Mapping[str, Any] = vars(BaseException)
_WEAK_DICTS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_FINALIZER_INFO: type | None = vars(weakref.finalize).get("_Info")


class Fold(NamedTuple):
    """How the last of ``hops`` further up holds the child; ``holder`` replaces that object's usual short name."""

    kind: StepKind
    name: str | None
    hops: int = 1
    holder: str | None = None
    detail: Mapping[str, str] = types.MappingProxyType({})


def closure(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """Cell, closure tuple, function; or the cell of a generator or a frame."""
    if type(hops[1]) is not types.CellType or len(hops) < 3:
        return None
    above = hops[2]
    if type(above) is types.FrameType or ob.frame_of(above) is not None:
        found = frame((hops[0], *hops[2:]), positions) or suspended((hops[0], above), positions)
        return found and Fold(found.kind, found.name, found.hops + 1, found.holder, found.detail)
    if len(hops) > 3 and type(hops[3]) is types.FunctionType and ob.function_part(hops[3], "__closure__") is above:
        index = positions.index(above, hops[1])
        names = ob.function_part(hops[3], "__code__").co_freevars
        if index is not None and index < len(names):
            return Fold("closure_cell", names[index], 3)
    return None


def suspended(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """A local variable of a suspended generator, coroutine or async generator."""
    held_by = ob.frame_of(hops[1])
    if held_by is None:
        return None
    return Fold("generator", local_name(held_by, hops[0]))


def frame(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """A local variable of a function that has ended, with the tracebacks and the exception that keep its frame."""
    held_by = hops[1]
    if type(held_by) is not types.FrameType:
        return None
    name = local_name(held_by, hops[0])
    end = 2
    while end < len(hops) and ob.is_one_of(type(hops[end]), types.FrameType, types.TracebackType):
        end += 1
    code = held_by.f_code
    detail = {"function": ob.code_name(code), "file": code.co_filename, "line": str(code.co_firstlineno)}
    if end > 2:
        detail["kept_by"] = "a stored traceback" if type(hops[end - 1]) is types.TracebackType else "a stored frame"
    if end < len(hops) and end > 2 and issubclass(type(hops[end]), BaseException):
        detail["kept_by"] = "the traceback of a stored exception"
        detail["exception"] = ob.class_name(type(hops[end]))
        end += 1
    return Fold("frame_local", name, end - 1, ob.code_name(code), detail)


def arguments(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """The tuple of a function's defaults, of a partial's or of an exception's arguments."""
    if len(hops) < 3 or type(hops[1]) is not tuple:
        return None
    child, values, above = hops[:3]
    kind = type(above)
    if kind is types.FunctionType and ob.function_part(above, "__defaults__") is values:
        index = positions.index(values, child)
        if index is None:
            return None
        code = ob.function_part(above, "__code__")
        return Fold("argument_default", code.co_varnames[code.co_argcount - len(values) + index], 2)
    if issubclass(kind, functools.partial) and PARTIAL["args"].__get__(above) is values:
        return Fold("partial", f"[{positions.index(values, child)}]", 2)
    if issubclass(kind, BaseException) and EXCEPTION["args"].__get__(above) is values:
        return Fold("attribute", f"args[{positions.index(values, child)}]", 2)
    return None


def finalizer(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """``weakref.finalize``: the call's record, the registry, and the class that has the registry."""
    if type(hops[1]) is _FINALIZER_INFO:
        at = 1
    elif len(hops) > 2 and type(hops[2]) is _FINALIZER_INFO:
        at = 2
    else:
        return None
    call = dict(ob.members(hops[at]))
    name = next((n for n in ("func", "args", "kwargs") if call.get(n) is hops[at - 1]), None)
    if at == 2 and name == "args":
        name = f"args[{positions.index(hops[1], hops[0])}]"
    end = at + 1
    while end < len(hops) and (type(hops[end]) is dict or hops[end] is weakref.finalize):
        end += 1
    return Fold("weak", name, end - 1, f"weakref.finalize(…, {ob.short_text(call.get('func'))})")


def lru_cache(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """``functools.lru_cache``: results and arguments lie in the wrapper or its dict, several arguments in a tuple."""
    end = 1
    while end < len(hops) and end < 4 and type(hops[end]) is not LRU_CACHE:
        end += 1
    if end in (4, len(hops)):
        return None
    if any(not ob.is_one_of(type(hop), tuple, dict) and not _is_hashed_seq(hop) for hop in hops[1:end]):
        return None
    wrapper = hops[end]
    attributes = vars(LRU_CACHE)["__dict__"].__get__(wrapper)
    wrapped = attributes.get("__wrapped__")
    code = ob.code_of(wrapped)
    if hops[end - 1] is attributes or hops[end - 1] is wrapped:
        return Fold("attribute", positions.attribute(attributes, hops[0]), end) if end <= 2 else None
    detail = {"role": "argument" if any(type(hop) is not dict for hop in hops[1:end]) else "result"}
    if code is not None:
        detail |= {"function": ob.code_name(code), "file": code.co_filename, "line": str(code.co_firstlineno)}
    return Fold("cache", code.co_name if code else None, end, detail=detail)


def _is_hashed_seq(value: object) -> bool:
    return ob.type_name(type(value)) == "functools._HashedSeq"


def queue(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """``queue.Queue`` and its kin keep items in a deque or list ``queue``; ``SimpleQueue`` in a list of its own."""
    module = sys.modules.get("queue")
    if module is None:
        return None
    kind, names = type(hops[1]), vars(module)
    if kind is names.get("SimpleQueue"):  # since Python 3.13 it has no list
        return Fold("item", None)
    if not ob.is_one_of(kind, deque, list) or len(hops) < 3:
        return None
    end = 3 if type(hops[2]) is dict else 2
    owners = names.get("Queue", ()), names.get("SimpleQueue", ())  # unless the user has a module of that name
    if end == len(hops) or not issubclass(type(hops[end]), owners):
        return None
    values = ob.instance_dict(hops[end])
    if values is not None and values.get("queue") is not hops[1]:
        return None
    return Fold("item", f"[{positions.index(hops[1], hops[0])}]", end)


def namespace(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """The dict of a function, class, partial or instance."""
    if len(hops) < 3 or not ob.is_one_of(type(hops[1]), dict, OrderedDict):
        return None
    child, values, above = hops[:3]
    kind = type(above)
    if kind is types.FunctionType:
        for part, step in _FUNCTION_DICTS.items():
            if ob.function_part(above, part) is values:
                return Fold(step, positions.attribute(values, child), 2)
        return None
    if ob.is_class(above):
        if ob.class_dict(above) is values:
            return Fold("class_attribute", positions.attribute(values, child), 2)
        return None
    if issubclass(kind, functools.partial) and PARTIAL["keywords"].__get__(above) is values:
        return Fold("partial", positions.attribute(values, child), 2)
    if ob.instance_dict(above) is values:
        return Fold("attribute", public_name(above, positions.attribute(values, child)), 2)
    if ob.derives(kind, *_WEAK_DICTS):
        return Fold("weak", positions.key_text(values, child), 2)
    if len(hops) > 3 and ob.derives(type(hops[3]), *_WEAK_DICTS) and ob.instance_dict(hops[3]) is above:
        return Fold("weak", positions.key_text(values, child), 3)
    return None


_FUNCTION_DICTS: dict[str, StepKind] = {
    "__kwdefaults__": "argument_default",
    "__dict__": "attribute",
    "__globals__": "global",
}


def context(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """A context variable: its value hangs on the nodes of the tree that a ``contextvars.Context`` is."""
    end = 1
    while end < len(hops) and ob.class_name(type(hops[end])).startswith("hamt"):
        end += 1
    if end == 1:
        return None
    if end == len(hops):
        return Fold("other", None, end - 1, "context variable")
    return Fold("other", context_variable(hops[end], hops[0]), end, "context variable")


def context_variable(holder: object, value: object) -> str | None:
    """The name of the variable that has a value in a context."""
    if type(holder) is not Context:
        return None
    return next((variable.name for variable, v in holder.items() if v is value), None)


def thread_local(hops: Sequence[Any], positions: Positions) -> Fold | None:
    """``threading.local``: every thread's attributes are a dict that the object keeps in a dict of such dicts."""
    if len(hops) < 4 or type(hops[1]) is not dict or type(hops[2]) is not dict:
        return None
    if not issubclass(type(hops[3]), _local_type()):
        return None
    return Fold("attribute", positions.attribute(hops[1], hops[0]), 3)


def _local_type() -> type:
    import _thread

    return _thread._local


def public_name(holder: object, name: str | None) -> str | None:
    """An attribute's name as the user writes it: an enumeration member's value is ``value``."""
    enum = sys.modules.get("enum")
    if name == "_value_" and enum is not None and issubclass(type(type(holder)), enum.EnumMeta):
        return "value"
    return name


def local_name(held_by: types.FrameType, child: object) -> str | None:
    """The local variable of a frame that has a value."""
    if type(child) is types.FrameType:
        return "the calling frame"
    return next((name for name, value in frame_locals(held_by).items() if value is child), None)


FoldFunction = Callable[[Sequence[Any], Positions], Fold | None]

_FOLDS: Mapping[FoldFunction, tuple[str, ...]] = {
    closure: ("cell",),
    frame: ("frame",),
    suspended: ("generator", "coroutine", "async_generator"),
    arguments: ("tuple",),
    finalizer: ("",),
    lru_cache: ("functools.", "tuple", "dict"),
    queue: ("_queue.", "queue.", "collections.deque", "list"),
    thread_local: ("dict",),
    namespace: ("dict", "collections.OrderedDict"),
    context: ("hamt",),
}
"""All folds in the order in which they are tried, each with how the first holder's type name begins if it may apply."""


def folds_from(kind: type) -> list[FoldFunction]:
    """The folds that may apply where the first holder is of this type."""
    return [fold for fold, names in _FOLDS.items() if ob.type_name(kind).startswith(names)]
