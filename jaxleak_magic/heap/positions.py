"""Where in a container a child stands: keys, indices and names, each container read once for all children asked for."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Set
from typing import Any

from jaxleak_magic.heap.addresses import where
from jaxleak_magic.heap.objects import is_one_of, short_text
from jaxleak_magic.heap.paths import Root
from jaxleak_magic.heap.roots import history_names

_FEW = 16  # items: looking at each takes less than remembering where they are


class Positions:
    """Positions of children in containers, compared by identity; ``children`` says which a holder will be asked for."""

    def __init__(self, children: Mapping[int, Set[int]]) -> None:
        self._children = children
        self._known: dict[tuple[int, str], dict[int, Any]] = {}

    def close(self) -> None:
        """Let go of the keys read."""
        self._known.clear()

    def key(self, holder: Any, child: object) -> Any:
        """The key under which a dict holds a child, the child itself if it is a key, or None."""
        if dict.__len__(holder) <= _FEW:
            is_key = False
            for key, value in list(dict.items(holder)):
                if value is child:
                    return key
                is_key |= key is child
            return child if is_key else None
        return self._of(holder, child, "key", _keys)

    def key_text(self, holder: Any, child: object) -> str | None:
        """``"['k']"``, or ``"a key"`` if the child is the key."""
        key = self.key(holder, child)
        if key is None and not any(other is None for other in dict.keys(holder)):
            return None
        return "a key" if key is child else f"[{short_text(behind_weakref(key))}]"

    def attribute(self, values: Any, child: object) -> str | None:
        """The name in an instance's, class's or function's dict."""
        key = self.key(values, child)
        return key if type(key) is str else None

    def index(self, holder: Any, child: object) -> int | None:
        """The index of a child in a list, tuple or deque."""
        base = _base(holder)
        if base.__len__(holder) <= _FEW:
            for index, item in enumerate(list(base.__iter__(holder))):
                if item is child:
                    return index
            return None
        return self._of(holder, child, "index", _indices)

    def variable(self, root: Root, child: object) -> str | None:
        """The best name by which a root's dict holds a child: not of IPython's history, not private, the first."""
        return self._of(root.obj, child, "name", _names)

    def _of(self, holder: Any, child: object, what: str, read: Callable[[Any, set[int]], dict[int, Any]]) -> Any:
        known = self._known.get((id(holder), what))
        if known is None or id(child) not in known:
            wanted = {id(child), *self._children.get(id(holder), ())}
            known = self._known[id(holder), what] = read(holder, wanted)
        return known.get(id(child))


def behind_weakref(key: Any) -> Any:
    """What a weak reference refers to, if it is one; the keys of a ``WeakKeyDictionary`` are."""
    return key() if is_one_of(type(key), weakref.ref, weakref.KeyedRef) else key


def _base(holder: object) -> Any:
    kind = type(holder)
    return list if issubclass(kind, list) else tuple if issubclass(kind, tuple) else deque


def _keys(holder: Any, wanted: set[int]) -> dict[int, Any]:
    keys, values = list(dict.keys(holder)), list(dict.values(holder))
    result = {id(keys[i]): keys[i] for i in where(keys, wanted)}
    result.update((id(values[i]), keys[i]) for i in reversed(where(values, wanted)))
    return result


def _indices(holder: Any, wanted: set[int]) -> dict[int, int]:
    items = list(_base(holder).__iter__(holder))
    return {id(items[i]): i for i in reversed(where(items, wanted))}


def _names(holder: Any, wanted: set[int]) -> dict[int, str]:
    history = history_names(holder)
    best: dict[int, tuple[bool, bool, str]] = {}
    for name, value in list(dict.items(holder)):
        if id(value) in wanted:
            text = name if type(name) is str else f"[{short_text(name)}]"
            rank = (text in history, text.startswith("_"), text)
            if id(value) not in best or rank[:2] < best[id(value)][:2]:
                best[id(value)] = rank
    return {i: rank[2] for i, rank in best.items()}
