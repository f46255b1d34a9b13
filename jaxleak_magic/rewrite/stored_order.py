"""Whether what is read from a place is what the same run of the code has stored there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.reaching import Reach
from jaxleak_magic.rewrite.refusing import Refused, listed, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope

_MAKE_ANEW = ("builtins.dict", "builtins.list", "types.SimpleNamespace")


@dataclass(frozen=True)
class StoredOrder:
    """The order of storing and reading one function.

    Args:
        program: all texts.
        function: the function that is stored.
        name: what the user calls it.
        variables: the values that are to reach it.
    """

    program: Program
    function: FunctionNode
    name: str
    variables: Sequence[str]

    def check(self, target: ast.expr | ast.stmt, load: ast.expr) -> None:
        """The function that a load finds must be the one that the same run of the code around it stored.

        A memo is the exception: it means the value of now, though it keeps that of its first run.
        """
        storing, loading = self.program.scope_at[target].function(), self.program.scope_at[load].function()
        if loading is None or storing is None or self._is_made_anew(target, loading):
            return
        text = self.program.text_of[target]
        after = text is self.program.text_of[load] and text.start(load) > text.stop(target)
        if not loading.is_inside(storing) or not after or not self._is_always_stored(target, storing):
            raise Refused(
                f"What `{self._short(target)}` holds when line {load.lineno} reads it may be from an earlier run. "
                f"Store a function that takes {self._values} as an argument, and pass the right value at each call."
            )
        if self.program.scope_at[load].is_inside(self.program.own_scope[self.function]):
            raise Refused(f"`{self.name}` calls what `{self._short(target)}` held before. Pass {self._values} by hand.")

    def check_never_another(self, target: ast.expr, loads: list[ast.expr]) -> None:
        """Where a place held another function at first, each read must certainly come after the assignment."""
        storing = self.program.scope_at[target].function()
        plain = storing is not None and self._is_always_stored(target, storing, memo=False)
        reach = Reach(self.program, self.function, self.name)
        for load in loads:
            at = self.program.scope_at[load].function()
            inside = at is not None and storing is not None and at.is_inside(storing)
            level = at is None or self._is_made_anew(target, at)
            outside = level and storing is not None and reach.is_called_before(storing, load)
            if not plain or not (inside or outside):
                raise Refused(
                    f"`{self._short(target)}` holds another function at first, which line {load.lineno} may call. "
                    f"Let both functions take {self._values} as an argument, and pass it at each call."
                )

    def _is_made_anew(self, target: ast.expr | ast.stmt, loading: Scope) -> bool:
        """Whether the container or object that keeps the function belongs to the one run of the function that reads."""
        base: ast.AST = target
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
        if not isinstance(base, ast.Name) or self.program.owner(base) is not loading:
            return False
        site = self.program.only_site(loading, base.id)
        value = self.program.assigned_value(site) if site is not None else None
        if not isinstance(value, ast.Call):
            return isinstance(value, ast.Dict | ast.List)
        made_by = self.program.qualified(value.func)
        return made_by in _MAKE_ANEW or isinstance(self.program.definition(value.func), ast.ClassDef)

    def _is_always_stored(self, target: ast.AST, storing: Scope, memo: bool = True) -> bool:
        node: ast.AST = target
        while node is not storing.node:
            above = self.program.parent[node]
            if isinstance(above, ast.If):
                if not memo or node in above.orelse or not _is_memo_test(above.test):
                    return False
            elif isinstance(above, ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Match | ast.IfExp):
                return False
            node = above
        return True

    def _short(self, node: ast.AST) -> str:
        return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else short_text(self.program, node)

    @property
    def _values(self) -> str:
        return listed(self.variables)


def _is_memo_test(test: ast.expr) -> bool:
    """``key not in cache`` or ``cache.attribute is None``: true only the first time."""
    match test:
        case ast.Compare(ops=[ast.NotIn()]):
            return True
        case ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return True
        case _:
            return False
