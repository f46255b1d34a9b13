"""Binds what a function returns now beside what it returned before, at one of its calls."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_units import Unit, returns_of, statement_of
from jaxleak_magic.rewrite.texts import Text, TextEdit

if TYPE_CHECKING:
    from jaxleak_magic.rewrite.state_threading import StateThreading


class Binding:
    """Edits the statements in which functions are called.

    Args:
        threading: the edits so far.
    """

    def __init__(self, threading: StateThreading) -> None:
        self.threading = threading
        self.program = threading.program

    def bind_result(
        self,
        call: ast.Call,
        caller: FunctionNode | None,
        added: str,
        pair: tuple[str, str] | None,
        bare: bool,
        unit: Unit,
    ) -> None:
        """Bind a call's result and what comes with it now, where it was used alone before.

        Args:
            call: the call.
            caller: the function around it.
            added: names of what comes with it.
            pair: what the parts are called where the call gives a pair of which the first part gets the addition
                (``value_and_grad``) or which gets a third part (``vjp``); else None.
            bare: whether nothing came back before.
            unit: the function that is called.
        """
        text, statement = self.program.text_of[call], statement_of(self.program, call)
        parent = self.program.parent[call]
        self.check_binding_place(call, statement, caller)
        if bare:
            if parent is not statement or not isinstance(statement, ast.Expr) or pair is not None:
                raise Refused(
                    f"`{self.threading.found.name(unit.function)}` returns nothing, and its result is used on line "
                    f"{call.lineno}. Return the value from it by hand."
                )
            self.prefix(text, call, f"{added} = ")
            self.threading.follow(statement, hoisted=False)
            return
        if isinstance(statement, ast.Assign) and parent is statement and len(statement.targets) == 1:
            target = statement.targets[0]
            pattern = self._pattern(text, target, added, pair, self.threading.is_flat(unit))
            if pattern is not None:
                self.threading.add(text, TextEdit(text.start(target), text.stop(target), 0, pattern))
                self.threading.follow(statement, hoisted=False)
                return
        shown = parent is statement and self.is_shown(text, statement)
        if parent is statement and isinstance(statement, ast.Expr) and not shown and pair is None:
            self.prefix(text, call, f"{self.threading.unused()}, {added} = ")
            self.threading.follow(statement, hoisted=False)
            return
        if pair is None:
            names = [self.threading.fresh(caller, *self._stems(unit), at=call)]
            whole = names[0]
        else:
            names = [self.threading.fresh(caller, name, at=call) for name in pair]
            whole = ", ".join(names)
        self.threading.draft.new_parameters.update(names)
        if pair is None:
            target_text = f"{names[0]}, {added}"
        elif call in self.threading.options:  # it takes ``has_aux`` itself: a third part
            target_text = f"{whole}, {added}"
        else:
            target_text = f"({names[0]}, {added}), {names[1]}"
        rendered = self.threading.rendered(text, call)
        if parent is statement and isinstance(statement, ast.Expr):
            start, stop = text.start(call), text.stop(call)
            self.threading.add(text, TextEdit(start, stop, 0, f"{target_text} = {rendered}"))
            if shown:
                self.threading.then(whole)
            self.threading.follow(statement, hoisted=False)
            return
        self.threading.before(text, statement, f"{target_text} = {rendered}")
        self.threading.follow(statement, hoisted=True)
        alone = isinstance(statement, ast.Return | ast.Assign | ast.Expr) and parent is statement
        self.threading.add(
            text, TextEdit(text.start(call), text.stop(call), 0, whole if pair is None or alone else f"({whole})")
        )

    def _stems(self, unit: Unit) -> list[str]:
        """Names for a function's result: that which it returns by name, or plain words."""
        returned = {r.value.id for r in returns_of(self.program, unit.function) if isinstance(r.value, ast.Name)}
        every = [r for r in returns_of(self.program, unit.function)]
        named = list(returned) if len(returned) == 1 and all(isinstance(r.value, ast.Name) for r in every) else []
        return [*named, "value", "result"]

    def prefix(self, text: Text, call: ast.Call, new: str) -> None:
        """Text before a call."""
        start = text.start(call)
        self.threading.add(text, TextEdit(start, start, -1, new))

    def is_shown(self, text: Text, statement: ast.stmt) -> bool:
        """Whether a statement is the last expression of a text, whose value is displayed."""
        if text.tree.body[-1:] != [statement]:
            return False
        return not text.masked[text.stop(statement) :].lstrip(" \t").startswith(";")

    def _pattern(
        self, text: Text, target: ast.expr, added: str, pair: tuple[str, str] | None, flat: bool
    ) -> str | None:
        """The left side that takes the addition too, or None where the target is not of the right form."""
        old = self.threading.rendered(text, target)
        if pair is None:
            if not isinstance(target, ast.Tuple | ast.List):
                return f"{old}, {added}"
            if flat:
                inner = old[1:-1].rstrip(", ") if old[0] in "([" else old.rstrip(", ")
                return f"{inner}, {added}"
            return f"{old}, {added}" if old[0] in "([" else f"({old}), {added}"
        if not isinstance(target, ast.Tuple | ast.List) or len(target.elts) != 2:
            return None
        first, second = target.elts
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return None
        one, two = text.of(first), text.of(second)
        if isinstance(first, ast.Tuple) and not one.startswith("("):
            one = f"({one})"
        return f"({one}, {added}), {two}" if pair == ("value", "grads") else f"{one}, {two}, {added}"

    def check_binding_place(self, call: ast.Call, statement: ast.stmt, caller: FunctionNode | None) -> None:
        """Refuse where a call's results cannot be bound before the rest of its statement runs."""
        node: ast.AST = call
        while node is not statement:
            above = self.program.parent[node]
            conditional = (
                (isinstance(above, ast.IfExp) and node is not above.test)
                or (isinstance(above, ast.BoolOp) and node is not above.values[0])
                or isinstance(above, ast.comprehension | ast.Lambda | ast.NamedExpr | ast.Await | ast.JoinedStr)
                or type(above).__name__.endswith("Comp")
                or isinstance(above, ast.GeneratorExp)
                or (isinstance(above, ast.Compare) and len(above.ops) > 1)
            )
            if conditional:
                raise Refused(
                    f"`{short_text(self.program, call)}` on line {call.lineno} stands inside a larger expression in "
                    "which it may not run, or run more than once. Call it in a statement of its own first, and bind "
                    "both results there."
                )
            node = above
        simple = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return | ast.Assert)
        text = self.program.text_of[call]
        header = isinstance(statement, ast.If) and text.of(statement).startswith("if")
        header = header or (isinstance(statement, ast.For) and self._is_within(call, statement.iter))
        if not simple and not header:
            raise Refused(
                f"`{short_text(self.program, call)}` on line {call.lineno} is called in a form in which a further "
                "result cannot be bound. Call it in a statement of its own first."
            )
        if caller is None and self.program.scope_at[call].kind == "class":
            raise Refused(f"A class body calls it on line {call.lineno}. Bind the value there by hand.")

    def _is_within(self, node: ast.AST, outer: ast.AST) -> bool:
        return any(n is node for n in ast.walk(outer))
