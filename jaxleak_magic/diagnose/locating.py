"""Which statement put a value where it is kept: watched in a second run, where the syntax alone does not tell.

Only for ``--locate``: the code runs again, under ``sys.settrace`` in the user's own functions. After each of their
lines the watched places are looked at, without running code of the objects on the way.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from jaxleak_magic.heap.objects import instance_dict

_MISSING = object()
_MOST = 10_000
"""Entries of a container that are looked at after each line."""


class StoreWatcher:
    """Notes for each watched place the last line of the user's that put something new there.

    Args:
        accesses: expressions that reach the kept value from the namespace: ``learners.schedule``, ``history[0]``.
            ``found`` has them by their `watch_key`.
        namespace: the user's namespace.
        is_users: whether a code object is the user's.
    """

    def __init__(
        self, accesses: Sequence[str], namespace: Mapping[str, Any], is_users: Callable[[CodeType], bool]
    ) -> None:
        self.found: dict[str, tuple[str, int]] = {}
        self._namespace = namespace
        self._is_users = is_users
        self._watched = {watch_key(access): node for access in accesses if (node := _parsed(access)) is not None}
        self._seen: dict[str, frozenset[int]] = {}
        self._line: tuple[str, int] | None = None

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch what this thread runs inside; a trace function that was there before is put back."""
        before = sys.gettrace()
        self._seen = {access: self._contents(node) for access, node in self._watched.items()}
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            self._look()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not self._is_users(frame.f_code):
            return None
        self._look()
        return self._inside

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event in ("line", "return"):
            self._look()
        if event == "line":
            self._line = frame.f_code.co_filename, frame.f_lineno
        return self._inside

    def _look(self) -> None:
        for access, node in self._watched.items():
            contents = self._contents(node)
            seen = self._seen.get(access, frozenset())
            if contents - seen and self._line is not None:
                self.found[access] = self._line
            self._seen[access] = contents

    def _contents(self, node: ast.expr) -> frozenset[int]:
        """Identities of what is at the place: the attribute's or variable's value, or a container's entries."""
        if isinstance(node, ast.Subscript):
            return frozenset(map(id, _entries(self._reach(node.value))))
        value = self._reach(node)
        return frozenset() if value is _MISSING else frozenset((id(value),))

    def _reach(self, node: ast.expr) -> object:
        if isinstance(node, ast.Name):
            return self._namespace.get(node.id, _MISSING)
        if isinstance(node, ast.Attribute):
            return _attribute(self._reach(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return _item(self._reach(node.value), node.slice.value)
        return _MISSING


def watch_key(access: str) -> str:
    """What is watched for a kept value: the attribute or variable itself, of an entry the container around it."""
    node = _parsed(access)
    return f"{ast.unparse(node.value)}[]" if isinstance(node, ast.Subscript) else access


def _parsed(access: str) -> ast.expr | None:
    try:
        return ast.parse(access, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _attribute(holder: object, name: str) -> object:
    attributes = instance_dict(holder)
    return _MISSING if attributes is None else dict.get(attributes, name, _MISSING)


def _item(holder: object, key: object) -> object:
    if type(holder) is dict:
        return next((v for k, v in list(dict.items(holder)) if type(k) is type(key) and k == key), _MISSING)
    entries = _entries(holder)
    return entries[key] if type(key) is int and -len(entries) <= key < len(entries) else _MISSING


def _entries(holder: object) -> list[object]:
    """Entries of a built-in container; nothing of any other object."""
    if type(holder) is dict:
        return list(dict.values(holder))[:_MOST]
    if type(holder) in (list, tuple, set, frozenset, deque):
        return list(holder)[:_MOST]  # type: ignore[call-overload]
    return []
