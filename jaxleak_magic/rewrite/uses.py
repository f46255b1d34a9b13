"""What is known of a function's uses: what each needs, and what a value made of the function is."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from jaxleak_magic.rewrite.call_sites import Row


@dataclass(frozen=True)
class Use:
    """What has to be done at one place so that the lifted values reach the function.

    Attributes:
        kind: what to do:
            ``call``: the call hands the values on;
            ``tuple``, ``slot``: its ``args`` does;
            ``axes``: a vmap gets entries for them;
            ``mapped``: the call is mapped over them;
            ``term``: nothing, unless the slot is taken and the callable has to be bound here;
            ``bind``: the expression is bound with ``jax.tree_util.Partial``;
            ``field``: the same for the field of an object.
        node: the call, or the expression to bind.
        values: what to write there for each variable.
        row: the table's row, where there is one.
        direct: whether the call calls the function itself or what a wrapper made of it, not a consumer.
        keywords: whether a direct call names its arguments, so that the values must be named too.
        field_of: the class whose field takes the function (``field``).
        field_name: the field.
        inside: full name of a function that has to be put around a bound expression, or None.
        cached: whether a trace of the function may be used again there, made with an older value.
        axes: axis of each value over which the call has to be mapped, None where it is not (``mapped``).
    """

    kind: Literal["call", "tuple", "slot", "term", "axes", "mapped", "bind", "field"]
    node: ast.expr
    values: tuple[str, ...] = ()
    row: Row | None = None
    direct: bool = False
    keywords: bool = False
    field_of: ast.ClassDef | None = None
    field_name: str | None = None
    axes: tuple[int | None, ...] = ()
    cached: bool = False
    inside: str | None = None


@dataclass(frozen=True)
class Shape:
    """What a value is, as seen from the function that is followed.

    Attributes:
        calls: how many calls away the function is (1 for a factory that returns it).
        wrappers: rows of the wrappers around it, innermost first, with their calls.
        solver: the row of the object that was made of it, or None.
        many: whether the value is a list of such functions.
    """

    calls: int = 0
    wrappers: tuple[tuple[Row, ast.Call | None], ...] = ()
    solver: Row | None = None
    many: bool = False

    @property
    def plain(self) -> bool:
        """Whether the value is the function itself."""
        return self == Shape()

    @property
    def mapped(self) -> bool:
        """Whether a wrapper maps over the arguments."""
        return any(row.axes for row, _ in self.wrappers)
