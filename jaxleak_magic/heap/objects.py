"""Reading objects that may be hostile: only ``type(o)`` and the interpreter's own descriptors, no code of the object.

A class of the user's can override ``__dict__``, ``__class__``, ``__getattribute__``, ``__eq__`` or ``__repr__``, and a
metaclass ``__name__`` and ``__mro__``. Everything here goes around them.
"""

from __future__ import annotations

import _thread
import gc
import types
from collections.abc import Iterator
from typing import Any

_TYPE = vars(type)
_FUNCTION = vars(types.FunctionType)
_OF_MODULE = vars(types.ModuleType)["__dict__"]
_SCALARS = (int, float, complex, bool, bytes, type(None), type(...))


def is_one_of(kind: type, *types: type) -> bool:
    """Whether a type is one of some; ``in`` would ask its metaclass's ``__eq__`` or ``__hash__``."""
    for other in types:  # noqa: SIM110 - called for every step of every path, and any() takes three times as long
        if kind is other:
            return True
    return False


def derives(kind: type, *bases: type) -> bool:
    """Whether a type is derived from one of some classes, without running their metaclass's ``__subclasscheck__``."""
    for base in mro(kind):  # noqa: SIM110 - as in is_one_of
        if is_one_of(base, *bases):
            return True
    return False


def is_a(obj: object, *classes: type) -> bool:
    """``isinstance`` by the type alone: for an object of another type that asks its ``__class__``."""
    return issubclass(type(obj), classes)


def is_class(obj: object) -> bool:
    """Whether ``obj`` is a class, without asking its ``__class__``."""
    return issubclass(type(obj), type)


def is_module(obj: object) -> bool:
    """Whether ``obj`` is a module, without asking its ``__class__``."""
    return issubclass(type(obj), types.ModuleType)


def mro(cls: type) -> tuple[type, ...]:
    """The method resolution order of ``cls``, past any metaclass."""
    return _TYPE["__mro__"].__get__(cls)


def class_dict(cls: type) -> dict[str, Any]:
    """The dict behind ``cls.__dict__`` (the very object that ``gc`` shows)."""
    return gc.get_referents(_TYPE["__dict__"].__get__(cls))[0]


def class_name(cls: type) -> str:
    """``__name__`` of a class, past any metaclass."""
    return _TYPE["__name__"].__get__(cls)


def class_qualname(cls: type) -> str:
    """``__qualname__`` of a class, past any metaclass."""
    return _TYPE["__qualname__"].__get__(cls)


def class_module(cls: type) -> str | None:
    """``__module__`` of a class if it is a string, past any metaclass."""
    try:
        module = _TYPE["__module__"].__get__(cls)
    except AttributeError:
        return None
    return module if type(module) is str else None


def type_name(cls: type) -> str:
    """Readable type name: with its module unless that is ``builtins`` or ``__main__``, without ``f.<locals>``."""
    name, module = class_qualname(cls).rpartition("<locals>.")[2], class_module(cls)
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def module_dict(module: Any) -> dict[str, Any]:
    """A module's namespace, past the ``__dict__`` or ``__getattribute__`` of module subclasses (lazy loaders)."""
    return _OF_MODULE.__get__(module)


def function_part(function: Any, name: str) -> Any:
    """``__closure__``, ``__defaults__``, ``__code__``, ``__dict__``, ``__globals__``, ``__module__`` and the like."""
    return _FUNCTION[name].__get__(function)


def instance_dict(obj: object) -> dict[str, Any] | None:
    """The ``__dict__`` of an instance by the interpreter's own descriptor; None where it has none or hides it in C.

    On instances that keep their values inline this makes the dict real, so it is only called after all searching.
    """
    if type(obj) is types.ModuleType:
        return module_dict(obj)
    if issubclass(type(obj), _thread._local):  # asking makes this thread's dict, and runs the subclass's __init__
        return None
    for cls in mro(type(obj)):
        descriptor = _TYPE["__dict__"].__get__(cls).get("__dict__")
        if is_one_of(type(descriptor), types.GetSetDescriptorType, types.MemberDescriptorType):
            try:
                value = descriptor.__get__(obj)
            except (AttributeError, TypeError):
                return None
            return value if type(value) is dict else None
    return None


def members(obj: object) -> Iterator[tuple[str, object]]:
    """The slots of an instance, and the members that a C type declares, as (name, value)."""
    for cls in mro(type(obj))[:-1]:  # object itself has none
        for name, descriptor in list(_TYPE["__dict__"].__get__(cls).items()):
            if type(descriptor) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                try:
                    yield name, descriptor.__get__(obj)
                except (AttributeError, TypeError):
                    continue


def code_of(obj: object) -> types.CodeType | None:
    """The code object of a function, method, generator, coroutine, async generator or frame."""
    kind = type(obj)
    if kind is types.FunctionType:
        return function_part(obj, "__code__")
    if kind is types.MethodType:
        return code_of(obj.__func__)  # pyright: ignore[reportAttributeAccessIssue]
    if kind is types.FrameType:
        return obj.f_code  # pyright: ignore[reportAttributeAccessIssue]
    name = _CODE_OF_GENERATOR.get(id(kind))
    return vars(kind)[name].__get__(obj) if name else None


def frame_of(obj: object) -> types.FrameType | None:
    """The frame of a suspended generator, coroutine or async generator."""
    name = _FRAME_OF_GENERATOR.get(id(type(obj)))
    return vars(type(obj))[name].__get__(obj) if name else None


_CODE_OF_GENERATOR = {
    id(types.GeneratorType): "gi_code",
    id(types.CoroutineType): "cr_code",
    id(types.AsyncGeneratorType): "ag_code",
}
_FRAME_OF_GENERATOR = {
    id(types.GeneratorType): "gi_frame",
    id(types.CoroutineType): "cr_frame",
    id(types.AsyncGeneratorType): "ag_frame",
}


def code_name(code: types.CodeType) -> str:
    """``f()``, or ``lambda``."""
    return "lambda" if code.co_name == "<lambda>" else f"{code.co_name}()"


def class_place(cls: type) -> tuple[str | None, int | None]:
    """File and line of a class by the first function that was written in it; (None, None) if there is none.

    Python 3.13 notes the line of the ``class`` statement (``__firstlineno__``); before, it is that function's.
    """
    own = _TYPE["__dict__"].__get__(cls)
    prefix, module = class_qualname(cls) + ".", class_module(cls)
    for value in list(own.values()):
        function = _plain_function(value)
        if function is None or function_part(function, "__module__") != module:
            continue
        code = function_part(function, "__code__")
        if code.co_filename != "<string>" and code.co_qualname.startswith(prefix):
            line = own.get("__firstlineno__")
            return code.co_filename, line if type(line) is int else code.co_firstlineno
    return None, None


def _plain_function(value: object) -> types.FunctionType | None:
    if is_one_of(type(value), staticmethod, classmethod):
        value = vars(type(value))["__func__"].__get__(value)
    elif type(value) is property:
        value = vars(property)["fget"].__get__(value)
    for _ in range(8):  # decorators that used functools.wraps
        if type(value) is not types.FunctionType:
            return None
        inner = function_part(value, "__dict__").get("__wrapped__")
        if type(inner) is not types.FunctionType:
            return value
        value = inner
    return None


def short_text(value: object, limit: int = 40) -> str:
    """A key or index as text, made of builtin scalars, strings, tuples of them, and the names of classes and functions.

    Anything else is shown by its type only: its ``__repr__`` is not run.
    """
    text = _text(value, 3)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(value: object, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return repr(value if len(value) <= 80 else value[:80])  # pyright: ignore[reportArgumentType, reportIndexIssue]
    if kind is int and int.bit_length(value) > 256:  # pyright: ignore[reportArgumentType]
        return "<int>"  # printing a huge int takes quadratic time, or is refused
    if is_one_of(kind, *_SCALARS):
        return repr(value[:40] if kind is bytes else value)  # pyright: ignore[reportIndexIssue]
    if kind is tuple and depth:
        parts = [_text(part, depth - 1) for part in value[:8]]  # pyright: ignore[reportIndexIssue]
        return "(" + ", ".join(parts) + (",)" if len(parts) == 1 else ")")
    if kind is types.FunctionType:
        return function_part(value, "__code__").co_name
    if kind is types.BuiltinFunctionType:
        return value.__name__  # pyright: ignore[reportAttributeAccessIssue]
    if is_class(value):
        return class_name(value)  # pyright: ignore[reportArgumentType]
    return f"<{class_name(kind)}>"
