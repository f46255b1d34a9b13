"""A function with the arrays that it captured, as a pytree: its arrays are leaves, its code is static."""

from __future__ import annotations

import dis
import functools
import marshal
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import jax
import jax.core
import numpy as np


class PytreeClosure:
    """A callable whose captured arrays are leaves of a pytree.

    Calling it is calling the function. It can be returned from ``jit``, stored, scanned over, and given to a solver as
    an argument, and what the function captured goes in and out with it, so that nothing leaks.

        def make(rate):
            return PytreeClosure(lambda x: x - rate * x)

        step = jax.jit(make)(0.1)                   # a plain lambda would leak `rate`
        jax.grad(lambda step: step(2.0))(step)      # the gradient with respect to what was captured

    When this and when something else:

    - A new argument of the function is simplest, where you can call it with one.
    - ``jax.tree_util.Partial(f, rate=rate)`` does the same where you can write the captured values as arguments.
    - ``jax.closure_convert(f, *example_args)`` traces ``f`` once for arguments of one shape and gives a pure function
      and a list of captured values. It finds only values that are being differentiated (floating-point tracers), so it
      suits the inside of a custom derivative rule. It is no pytree: function and values are carried apart.
    - ``PytreeClosure(f)`` is for libraries that take any callable and have to keep it or hand it on. It runs nothing to
      find the captured arrays, takes them with any dtype, and needs no example.

    What counts as captured: the values of closure cells, of defaults and keyword defaults, of the function's own
    attributes, the arguments of ``functools.partial`` and the object of a bound method; in containers and other
    pytrees too, and in functions that are captured in turn. Values are those at the time when it is made: a variable
    that is rebound later keeps its old value here, and an empty cell stays empty. Containers are copied, so a function
    that changes a captured list changes a copy, afresh in each call. Arrays are leaves; numbers, strings and all other
    hashable objects are static, as they may decide which code runs: under ``jit`` another number traces anew.

    Args:
        function: a Python function, a lambda, a ``functools.partial`` or a bound method.

    Raises:
        TypeError: where it captured something that cannot be carried; the message names it. That is: a variable that
            the function assigns (``nonlocal``), an object that is not hashable or holds arrays but is no pytree, a
            compiled function that itself captured arrays, an array of objects.
    """

    __slots__ = ("__weakref__", "_built", "_leaves", "_static")

    def __init__(self, function: Callable[..., Any]) -> None:
        if not _is_function(function):
            raise TypeError(f"PytreeClosure takes a Python function, partial or bound method, not {_kind(function)}")
        survey = _Survey()
        root = survey.node(function, "the function")
        self._static = _Static(root, tuple(survey.functions), tuple(survey.cells))
        self._leaves: Sequence[Any] = survey.leaves
        self._built: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if self._static.copies:
            return self._static.build(self._leaves)(*args, **kwargs)
        if self._built is None:
            self._built = self._static.build(self._leaves)
        return self._built(*args, **kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        """A new function made of the same code and the captured values as they are here."""
        return self._static.build(self._leaves)

    def __repr__(self) -> str:
        """The function's name and how many arrays it carries."""
        return f"PytreeClosure({self._static.name}, {len(self._leaves)} arrays)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Code is stored as this Python's bytecode, and global names by their module: load it with the same Python."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in self._leaves):
            raise TypeError(f"{self!r} holds a value of a transform that is still running, which cannot be pickled")
        return _from_parts, (self._static, list(self._leaves))


def _from_parts(static: _Static, leaves: Sequence[Any]) -> PytreeClosure:
    closure = object.__new__(PytreeClosure)
    closure._static, closure._leaves, closure._built = static, leaves, None
    return closure


def _flatten(closure: PytreeClosure) -> tuple[Sequence[Any], _Static]:
    return tuple(closure._leaves), closure._static


jax.tree_util.register_pytree_node(PytreeClosure, _flatten, _from_parts)


# -- the static part ---------------------------------------------------------------------------------------------------


class _Same:
    """A dictionary of global names: equal only to itself, pickled by its module."""

    __slots__ = ("names",)

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.names is other.names

    def __hash__(self) -> int:
        return id(self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        module = self.names.get("__name__")
        if not isinstance(module, str) or vars(sys.modules.get(module, object())).get("__name__") != module:
            raise TypeError("a function whose global names belong to no importable module cannot be pickled")
        return _names_of, (module,)


def _names_of(module: str) -> _Same:
    __import__(module)
    return _Same(sys.modules[module].__dict__)


class _Code:
    """A code object, pickled as bytecode of this Python."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Code) and self.code == other.code

    def __hash__(self) -> int:
        return hash(self.code)

    def __reduce__(self) -> tuple[Any, ...]:
        return _code_of, (sys.implementation.cache_tag, marshal.dumps(self.code))


def _code_of(tag: str, data: bytes) -> _Code:
    if tag != sys.implementation.cache_tag:
        raise TypeError(
            f"this PytreeClosure was pickled by {tag} and cannot be loaded by {sys.implementation.cache_tag}"
        )
    return _Code(marshal.loads(data))


class _Constant:
    """A static value: equal to one of the same type that compares equal."""

    __slots__ = ("value",)

    def __init__(self, value: Hashable) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant) or type(self.value) is not type(other.value):
            return False
        if self.value is other.value:
            return True
        try:
            # 0.0 and -0.0 are equal and compute different things
            return bool(self.value == other.value) and (
                not isinstance(self.value, float | complex) or repr(self.value) == repr(other.value)
            )
        except Exception:  # the object's own comparison
            return False

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Constant, (self.value,)


@dataclass(frozen=True)
class _Leaf:
    """An array: number ``index`` of the leaves."""

    index: int


@dataclass(frozen=True)
class _Tree:
    """A pytree, with a node for each of its leaves."""

    treedef: Any
    nodes: tuple[_Node, ...]


@dataclass(frozen=True)
class _FunctionAt:
    """A function: number ``index`` of the functions."""

    index: int


@dataclass(frozen=True)
class _Partial:
    """A ``functools.partial`` or a subclass of it that adds nothing."""

    kind: type
    function: _Node
    args: tuple[_Node, ...]
    keywords: tuple[tuple[str, _Node], ...]


@dataclass(frozen=True)
class _Method:
    """A bound method."""

    function: _Node
    owner: _Node


_Node = _Leaf | _Tree | _FunctionAt | _Partial | _Method | _Constant


@dataclass(frozen=True)
class _Function:
    """A function without the values that it captured."""

    code: _Code
    names: _Same
    name: str
    qualname: str
    doc: str | None
    module: str | None
    cells: tuple[int, ...]
    defaults: tuple[_Node, ...] | None
    keyword_defaults: tuple[tuple[str, _Node], ...] | None
    attributes: tuple[tuple[str, _Node], ...]


@dataclass(frozen=True)
class _Static:
    """All but the arrays: what to build, the functions, and the cells that they share; None is an empty cell."""

    root: _Node
    functions: tuple[_Function, ...]
    cells: tuple[_Node | None, ...]

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.root, self.functions, self.cells))

    def __hash__(self) -> int:
        """Kept, since ``jit`` asks at each call."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which another process computes in another way."""
        return {"root": self.root, "functions": self.functions, "cells": self.cells}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @functools.cached_property
    def copies(self) -> bool:
        """Whether a container was captured, of which each call gets a copy of its own."""
        return any(isinstance(node, _Tree) for node in self._nodes())

    def _nodes(self) -> Iterator[_Node]:
        waiting: list[_Node] = [self.root, *(node for node in self.cells if node is not None)]
        for function in self.functions:
            waiting += function.defaults or ()
            waiting += [node for _, node in (*(function.keyword_defaults or ()), *function.attributes)]
        while waiting:
            node = waiting.pop()
            yield node
            if isinstance(node, _Partial):
                waiting += [node.function, *node.args, *(value for _, value in node.keywords)]
            elif isinstance(node, _Method):
                waiting += [node.function, node.owner]

    @property
    def name(self) -> str:
        """Qualified name of the outermost function."""
        node = self.root
        while isinstance(node, _Partial | _Method):
            node = node.function
        return self.functions[node.index].qualname if isinstance(node, _FunctionAt) else "?"

    def build(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        """The function with these arrays."""
        return _Building(self, leaves).run()


class _Building:
    """Puts the functions together again: first cells, then functions, then what stands in the cells."""

    def __init__(self, static: _Static, leaves: Sequence[Any]) -> None:
        self.static = static
        self.leaves = leaves
        self.cells = [CellType() for _ in static.cells]
        self.functions = [self._function(each) for each in static.functions]

    def run(self) -> Callable[..., Any]:
        for cell, node in zip(self.cells, self.static.cells, strict=True):
            if node is not None:
                cell.cell_contents = self.value(node)
        for function, each in zip(self.functions, self.static.functions, strict=True):
            if each.defaults is not None:
                function.__defaults__ = tuple(map(self.value, each.defaults))
            if each.keyword_defaults is not None:
                function.__kwdefaults__ = {name: self.value(node) for name, node in each.keyword_defaults}
            for name, node in each.attributes:
                function.__dict__[name] = self.value(node)
        return self.value(self.static.root)

    def _function(self, each: _Function) -> FunctionType:
        closure = tuple(self.cells[number] for number in each.cells)
        function = FunctionType(each.code.code, each.names.names, each.name, None, closure)
        function.__qualname__, function.__doc__ = each.qualname, each.doc
        function.__module__ = each.module  # type: ignore[assignment]
        return function

    def value(self, node: _Node) -> Any:
        match node:
            case _Leaf(index):
                return self.leaves[index]
            case _Tree(treedef, nodes):
                return jax.tree.unflatten(treedef, [self.value(each) for each in nodes])
            case _FunctionAt(index):
                return self.functions[index]
            case _Partial(kind, function, args, keywords):
                bound = {name: self.value(each) for name, each in keywords}
                return kind(self.value(function), *map(self.value, args), **bound)
            case _Method(function, owner):
                return MethodType(self.value(function), self.value(owner))
            case _Constant(value=value):
                return value


# -- taking a function apart -------------------------------------------------------------------------------------------


class _Survey:
    """Takes a function apart: arrays on one side, everything else on the other."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.functions: list[_Function] = []
        self.cells: list[_Node | None] = []
        self._functions: dict[int, int] = {}
        self._cells: dict[int, int] = {}
        self._kept: list[Any] = []

    def node(self, value: Any, where: str) -> _Node:
        """The node for a value, with its arrays put among the leaves.

        Args:
            value: the value.
            where: what it is, for a refusal.
        """
        self._kept.append(value)  # an id stays its own only as long as the object lives
        if type(value) is FunctionType:
            return self._function(value)
        if type(value) is MethodType:
            return _Method(self.node(value.__func__, where), self.node(value.__self__, f"the object of {where}"))
        if isinstance(value, functools.partial):
            return self._partial(cast(Any, value), where)
        if _is_array(value):
            return self._leaf(value, where)
        leaves, treedef = jax.tree.flatten(value, is_leaf=lambda each: each is not value and _is_function(each))
        if len(leaves) == 1 and leaves[0] is value:
            return self._constant(value, where)
        return _Tree(treedef, tuple(self.node(leaf, f"a value in {where}") for leaf in leaves))

    def _leaf(self, value: Any, where: str) -> _Leaf:
        if isinstance(value, np.ndarray) and value.dtype == object:
            raise TypeError(f"{where} is an array of objects, which JAX does not take")
        self.leaves.append(value)
        return _Leaf(len(self.leaves) - 1)

    def _partial(self, value: functools.partial[Any], where: str) -> _Partial:
        if type(value) not in (functools.partial, jax.tree_util.Partial) or value.__dict__:
            raise TypeError(f"{where} is a partial with additions of its own ({_kind(value)})")
        args = tuple(self.node(each, f"argument {number} of {where}") for number, each in enumerate(value.args))
        keywords = tuple(
            (name, self.node(each, f"argument `{name}` of {where}")) for name, each in value.keywords.items()
        )
        return _Partial(type(value), self.node(value.func, where), args, keywords)

    def _function(self, function: FunctionType) -> _FunctionAt:
        known = self._functions.get(id(function))
        if known is not None:
            return _FunctionAt(known)
        number = self._functions[id(function)] = len(self.functions)
        self.functions.append(cast(_Function, None))  # its place; it may be asked for by its own cells
        code = function.__code__
        if (written := _written_cells(code)) & set(code.co_freevars):
            name = sorted(written & set(code.co_freevars))[0]
            raise TypeError(
                f"`{function.__qualname__}` assigns `{name}`, which it would lose: return the value instead"
            )
        cells = tuple(
            self._cell(cell, f"`{name}`, captured by `{function.__qualname__}`,")
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        )
        defaults = function.__defaults__
        keyword_defaults = function.__kwdefaults__
        self.functions[number] = _Function(
            _Code(code),
            _Same(function.__globals__),
            function.__name__,
            function.__qualname__,
            function.__doc__,
            cast("str | None", function.__module__),
            cells,
            None if defaults is None else tuple(self._default(function, each) for each in defaults),
            None if keyword_defaults is None else self._named(keyword_defaults, function),
            self._named(function.__dict__, function),
        )
        return _FunctionAt(number)

    def _default(self, function: FunctionType, value: Any) -> _Node:
        return self.node(value, f"a default of `{function.__qualname__}`")

    def _named(self, values: Mapping[str, Any], function: FunctionType) -> tuple[tuple[str, _Node], ...]:
        return tuple(
            (name, self.node(value, f"`{name}` of `{function.__qualname__}`")) for name, value in values.items()
        )

    def _cell(self, cell: CellType, where: str) -> int:
        known = self._cells.get(id(cell))
        if known is not None:
            return known
        number = self._cells[id(cell)] = len(self.cells)
        self.cells.append(None)
        self._kept.append(cell)
        try:
            value = cell.cell_contents
        except ValueError:  # nothing in it (yet)
            return number
        self.cells[number] = self.node(value, where)
        return number

    def _constant(self, value: Any, where: str) -> _Constant:
        wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
        if _is_function(wrapped) and not isinstance(value, type | ModuleType):
            inner = _Survey()
            inner.node(wrapped, where)
            if inner.leaves:
                raise TypeError(
                    f"{where} is a transformed function ({_kind(value)}) that captured arrays: transform it where it "
                    "is called, or make the function inside a PytreeClosure"
                )
        if _holds_arrays(value):
            raise TypeError(
                f"{where} is {_kind(value)}, which holds arrays and is no pytree: register its class as one"
            )
        try:
            hash(value)
        except TypeError:
            raise TypeError(f"{where} is {_kind(value)}, which is neither an array, a pytree nor hashable") from None
        return _Constant(value)


def _is_function(value: Any) -> bool:
    return type(value) in (FunctionType, MethodType) or isinstance(value, functools.partial)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def _has_plain_dict(value: Any) -> bool:
    return type(value).__dict__.get("__getattribute__") is None and isinstance(getattr(value, "__dict__", None), dict)


def _holds_arrays(value: Any) -> bool:
    """Whether an object of a plain class has arrays among its attributes, also in containers there."""
    if isinstance(value, type | ModuleType | BuiltinFunctionType | str | int | float | complex | bytes):
        return False
    if not _has_plain_dict(value):
        return False
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy", "builtins", "functools"):
        return False
    return any(_is_array(leaf) for leaf in jax.tree.leaves(dict(value.__dict__)))


def _kind(value: Any) -> str:
    return f"an object of type `{type(value).__qualname__}`"


@functools.lru_cache(maxsize=1024)
def _written_cells(code: CodeType) -> frozenset[str]:
    """Free variables that a function, or one defined in it, assigns or deletes."""
    written = {
        str(each.argval)
        for each in dis.get_instructions(code)
        if each.opname in ("STORE_DEREF", "DELETE_DEREF") and each.argval in code.co_freevars
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            # A name that the inner function writes is either this one's own (not free here) or free here too.
            written |= _written_cells(constant) & set(code.co_freevars)
    return frozenset(written)
