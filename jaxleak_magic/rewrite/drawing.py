"""A call that only draws from outside state, as of a random key, moves out of the transform; its result goes in."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.call_paths import MAPS, RESULTS_PASS, TAKES_AUX, CallPaths, Site, self_parameter
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_case import text_at
from jaxleak_magic.rewrite.state_writes import writes_in

_NAME = "key"


class Drawing:
    """Moves the call of a drawing function out of the transform.

    Args:
        program: all texts.
        drawing: the function that writes the state and gives what is drawn; it takes nothing that may be traced.
    """

    def __init__(self, program: Program, drawing: ast.FunctionDef) -> None:
        self.program = program
        self.drawing = drawing
        self.paths = CallPaths(program)
        self.draft = Draft()
        self.drawn = ""

    def run(self) -> Draft:
        """The edits.

        Raises:
            Refused: where the draw does not certainly happen once in each call of the transformed function.
        """
        calls = self._traced_calls()
        if len(calls) != 1:
            raise self._by_hand("is called in more than one place of what is transformed")
        (call,) = calls
        self.drawn = short_text(self.program, call)
        if not self._is_traced(self._function_of(call)):
            raise self._by_hand("is called by a function that no transform was found for")
        self._lift(call, self._function_of(call), self.program.text_of[call].of(call))
        return self.draft

    def _by_hand(self, why: str) -> Refused:
        name = function_name(self.program, self.drawing)
        return Refused(
            f"`{name}` changes a state and {why}. Call `{name}` outside of the transform, and pass what it gives as an "
            "argument."
        )

    def _calls(self) -> list[ast.Call]:
        """All calls of the drawing function, by its name, whatever the object."""
        found: list[ast.Call] = []
        for node in self.program.scope_at:
            is_name = isinstance(node, ast.Attribute) and node.attr == self.drawing.name
            if self.program.scope_at[self.drawing].kind != "class":
                is_name = isinstance(node, ast.Name) and self.program.definition(node) is self.drawing
            if not is_name or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            parent = self.program.parent[node]
            if not isinstance(parent, ast.Call) or parent.func is not node or parent.args or parent.keywords:
                raise self._by_hand("is used otherwise than by a call without arguments")
            found.append(parent)
        return found

    def _traced_calls(self) -> list[ast.Call]:
        return [call for call in self._calls() if self.program.enclosing_function(call) is not None]

    def _function_of(self, call: ast.Call) -> FunctionNode:
        function = self.program.enclosing_function(call)
        assert function is not None
        return function

    # -- from the inside out ----------------------------------------------------------------------------------------

    def _lift(self, call: ast.expr, function: FunctionNode, drawn: str) -> None:
        """Let a function take what is drawn, in place of the expression that draws it."""
        text = self.program.text_of[call]
        self.draft.add(text, insertions.replace(text, call, _NAME))
        self._take(function, drawn)

    def _take(self, function: FunctionNode, drawn: str) -> None:
        own = self.program.own_scope[function]
        used = [n for n, s in self.program.scope_at.items() if s.is_inside(own) and isinstance(n, ast.Name)]
        if _NAME in own.sites or any(n.id == _NAME for n in used):
            raise self._by_hand(f"`{_NAME}` means something in `{function_name(self.program, function)}` already")
        arguments = function.args
        if arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            raise self._by_hand("is used by a function with `*` parameters")
        text = self.program.text_of[function]
        self.draft.lifted.append(function)
        if _NAME not in self.draft.variables:
            self.draft.variables.append(_NAME)
        by_name = bool(arguments.defaults)
        edits = insertions.append_keyword_only if by_name else insertions.append_parameters
        self.draft.add(text, edits(text, function, [_NAME]))
        branch = self._branch(function)
        if branch is not None:
            self._take_in_branches(branch, function, drawn, by_name)
            return
        sites = self.paths.of(function)
        if not sites:
            raise self._by_hand("is used by a function that is never called")
        for site in sites:
            self._pass(site, function, drawn, by_name)

    def _pass(self, site: Site, function: FunctionNode, drawn: str, by_name: bool) -> None:
        caller = self.program.enclosing_function(site.call)
        known = RESULTS_PASS | TAKES_AUX
        if site.consumer is not None or any(w.name not in known for w in site.wrappers):
            mapped = any(w.name in MAPS for w in site.wrappers)
            raise self._by_hand("is used by a mapped function" if mapped else "is used inside a loop")
        if any(w.name == "jax.jit" and w.call is not None and w.call.keywords for w in site.wrappers):
            raise self._by_hand("is used by a function that is compiled with options")
        call = site.call
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            raise self._by_hand("is used by a function that is called with `*` arguments")
        traced = caller is not None and self._is_traced(caller)
        if traced and self._is_repeated(call, caller):
            raise self._by_hand("may run not at all, or more than once, in a call")
        value = _NAME if traced else self._visible(drawn, call)
        text = self.program.text_of[call]
        if by_name or call.keywords:
            self.draft.add(text, insertions.append_keywords(text, call, [f"{_NAME}={value}"]))
        else:
            self.draft.add(text, insertions.append_arguments(text, call, [value]))
        if traced:
            assert caller is not None
            if caller not in self.draft.lifted:
                self._take(caller, drawn)
            else:
                raise self._by_hand("is drawn twice in one call")

    def _visible(self, drawn: str, place: ast.expr) -> str:
        root = drawn.split("(")[0].split(".")[0]
        owner = self.program.scope_at[place].lookup(root)
        if owner is None or owner.kind != "module":
            raise self._by_hand("is not visible where the transformed function is called")
        return drawn

    def _is_traced(self, function: FunctionNode) -> bool:
        if self._branch(function) is not None:
            return True
        return any(
            not site.is_plain
            or ((caller := self.program.enclosing_function(site.call)) is not None and self._is_traced(caller))
            for site in self.paths.of(function)
        )

    def _is_repeated(self, node: ast.AST, function: FunctionNode | None) -> bool:
        while node is not function:
            above = self.program.parent[node]
            if isinstance(above, ast.If | ast.For | ast.While | ast.Try | ast.IfExp | ast.BoolOp | ast.comprehension):
                return True
            if type(above).__name__.endswith(("Comp", "Exp")) and isinstance(above, ast.GeneratorExp | ast.ListComp):
                return True
            node = above
        return False

    # -- branches ---------------------------------------------------------------------------------------------------

    def _branch(self, function: FunctionNode) -> ast.Call | None:
        """The ``cond`` of which a lambda is a branch, or None."""
        call = self.program.parent[function]
        if not isinstance(function, ast.Lambda) or not isinstance(call, ast.Call):
            return None
        is_cond = self.program.qualified(call.func) == "jax.lax.cond" and function in call.args[1:3]
        return call if is_cond and len(call.args) > 3 and not call.keywords else None

    def _take_in_branches(self, call: ast.Call, function: FunctionNode, drawn: str, by_name: bool) -> None:
        """A branch sees what is drawn by closure, which JAX takes care of: the function around takes it."""
        around = self.program.enclosing_function(call)
        if around is None or by_name:
            raise self._by_hand("is used in a branch")
        # The branch needs no parameter of its own.
        text = self.program.text_of[function]
        self.draft.lifted.remove(function)
        parameter = insertions.append_parameters(text, function, [_NAME])
        self.draft.edits[text] = [e for e in self.draft.edits[text] if e not in parameter]
        self.draft.kept.append(function)
        if self._is_repeated(call, around):
            raise self._by_hand("is used in a branch that may not be reached")
        self._take(around, drawn)


def drawing_of(case: Case) -> Drawing | None:
    """The drawing function behind a leak: it takes nothing, writes a state, and gives something else."""
    place = case.leak.stored
    text = text_at(case.program, place)
    if place is None or text is None:
        return None
    for function in case.program.functions():
        if case.program.text_of[function] is not text or not isinstance(function, ast.FunctionDef):
            continue
        writes = any(w.statement.lineno == place.line for w in writes_in(case.program, function))
        if not writes and not _writes_through_alias(function, place.line):
            continue
        parameter = self_parameter(case.program, function)
        count = len([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs])
        last = function.body[-1]
        if count != (parameter is not None) or function.args.vararg or function.decorator_list:
            return None
        if not isinstance(last, ast.Return) or last.value is None:
            return None
        return Drawing(case.program, function)
    return None


def _writes_through_alias(function: ast.FunctionDef, line: int) -> bool:
    """``top = self.stack[-1]; top.prng = new``."""
    return any(
        isinstance(n, ast.Assign) and n.lineno == line and isinstance(n.targets[0], ast.Attribute)
        for n in ast.walk(function)
    )


def draw(case: Case) -> tuple[str, Draft] | None:
    """The title and the edits; None where the leak is of another form."""
    drawing = drawing_of(case)
    if drawing is None:
        return None
    draft = drawing.run()
    return f"Call `{drawing.drawn}` outside of the transform and pass what it gives", draft
