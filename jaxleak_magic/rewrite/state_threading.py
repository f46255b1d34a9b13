"""Threads state through functions: old values come in as arguments, new ones come out as results."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from dataclasses import replace

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.call_paths import (
    MAPS,
    TAKES_AUX,
    VALUE_AND_GRAD,
    Site,
    Wrapper,
    self_parameter,
)
from jaxleak_magic.rewrite.imports import import_module
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed, plural, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.state_binding import Binding
from jaxleak_magic.rewrite.state_conditions import Conditions, is_writer
from jaxleak_magic.rewrite.state_moves import emit_source, moved_text
from jaxleak_magic.rewrite.state_units import LOOPS, StateUnits, Unit, returns_of, statement_of
from jaxleak_magic.rewrite.states import Carried, Collected, State
from jaxleak_magic.rewrite.texts import Text, TextEdit, apply_edits

_SPLIT = {"jax.vjp": ("value", "pullback"), "jax.jvp": ("value", "tangent"), "jax.linearize": ("value", "linear")}
"""Calls that give a pair back and take ``has_aux``, with names for the parts where the user has none."""
_BEFORE, _HEAD = -100_000, 100_000
_AFTER = 1000


class StateThreading:
    """Makes the edits.

    Args:
        program: all texts.
        seeds: (function, state) pairs: the writes to be mended.
    """

    def __init__(self, program: Program, seeds: Sequence[tuple[FunctionNode, State]]) -> None:
        self.program = program
        self.found = StateUnits(program, seeds)
        self.draft = Draft()
        self.binding = Binding(self)
        self._local: dict[tuple[FunctionNode, State], str] = {}
        self._dropped: dict[tuple[FunctionNode, State], ast.stmt] = {}
        self._flat: dict[FunctionNode, bool] = {}
        self._order = 0
        self._after: dict[ast.stmt, list[str]] = {}
        self._following: list[str] = []
        self._taken: dict[Scope | None, set[str]] = {}
        self.options: set[ast.AST] = set()
        self._replaced: set[ast.AST] = set()
        self._returned: set[FunctionNode] = set()
        self.moved: set[tuple[FunctionNode, ast.stmt]] = set()

    @property
    def units(self) -> dict[FunctionNode, Unit]:
        """The functions that take part."""
        return self.found.units

    @property
    def reads_first(self) -> bool:
        """Whether a value has to come in somewhere."""
        return any(unit.needs for unit in self.units.values())

    def run(self) -> Draft:
        """The edits.

        Raises:
            Refused: where the meaning would not certainly stay.
        """
        Conditions(self.found).check()
        for state in self.found.all_states():
            for access in self.found.accesses(state):
                replaced = state.path and not isinstance(state, Carried) and access.kind != "opaque"
                if replaced and self.program.enclosing_function(access.node) in self.units:
                    self._replaced.update(ast.walk(access.node))
        for unit in self.units.values():
            self._name_states(unit)
        self._returned = {f for f, unit in self.units.items() if self._returns_already(unit)}
        for unit in self.units.values():
            self._emit_accesses(unit)
        sites = [(unit, site) for unit in self.units.values() for site in self.found.paths.of(unit.function)]
        for unit, site in sorted(sites, key=lambda each: self._stop(each[1].call)):  # in the order of evaluation
            self._emit_site(unit, site)
        for unit in self.units.values():
            if unit.needs:
                self._emit_parameters(unit)
            if unit.gives and not self._passes_through(unit) and unit.function not in self._returned:
                self._emit_returns(unit)
        self._emit_after()
        self.draft.lifted += list(self.units)
        return self.draft

    def _stop(self, node: ast.AST) -> int:
        return self.program.text_of[node].stop(node)

    def _name(self, function: FunctionNode) -> str:
        return self.found.name(function)

    # -- names ------------------------------------------------------------------------------------------------------

    def _name_states(self, unit: Unit) -> None:
        for state in dict.fromkeys([*unit.gives, *unit.needs]):
            function = unit.function
            if (statement := self._plain_write(unit, state)) is not None:
                assert isinstance(statement, ast.Assign)
                assert isinstance(statement.value, ast.Name)
                self._local[function, state] = statement.value.id
                self._dropped[function, state] = statement
            elif isinstance(state, Carried) and is_writer(self.program, function, state):
                name = state.name if state.value is None else self.fresh(function, state.name)
                self._local[function, state] = name
            elif self.found.collects(function, state) and not _is_in_object(state):
                self._check_not_local(function, state)
                self._local[function, state] = state.root
                self._take(self.program.own_scope[function], state.root)
            elif isinstance(state, Carried):
                self._local[function, state] = self.fresh(function, state.name)
            elif not state.path:
                self._check_not_local(function, state)
                self._local[function, state] = state.root
                self._take(self.program.own_scope[function], state.root)
            else:
                self._local[function, state] = self.fresh(function, state.stem)
            self.draft.variables.append(self._local[function, state])

    def _check_not_local(self, function: FunctionNode, state: State) -> None:
        if self.program.own_scope[function].lookup(state.root) is not state.owner:
            raise Refused(f"`{state.root}` means something else inside `{self._name(function)}`. Rename one of them.")

    def _plain_write(self, unit: Unit, state: State) -> ast.stmt | None:
        """The one statement ``state = name`` that only hands a local value on."""
        if state in unit.needs or state not in unit.gives:
            return None
        events = self.found.events(unit.function, state)
        if len(events) != 1 or events[0][1] != "write":
            return None
        statement = statement_of(self.program, events[0][2])
        match statement:
            case ast.Assign(targets=[target], value=ast.Name(id=name)) if target is events[0][2]:
                own = self.program.own_scope[unit.function]
                local = self.program.owner(statement.value) is own  # type: ignore[arg-type]
                body = getattr(unit.function, "body", [])
                if local and self.program.only_site(own, name) is not None and statement in body and len(body) > 1:
                    return statement
            case _:
                pass
        return None

    def fresh(self, function: FunctionNode | None, *stems: str, at: ast.AST | None = None) -> str:
        """The first of some names, or of their variations, that means nothing yet in a scope or in those inside it."""
        scope = self.program.own_scope[function] if function is not None else self.program.scope_at[at].module  # type: ignore[index]
        used = self._taken.get(scope)
        if used is None:
            used = set(scope.sites) | set(dir(builtins))
            for node, inside in self.program.scope_at.items():
                if isinstance(node, ast.Name) and inside.is_inside(scope) and node not in self._replaced:
                    owner = self.program.owner(node)
                    if owner is None or owner is scope or not owner.is_inside(scope):
                        used.add(node.id)
            used |= {name for (owner, _), name in self._local.items() if owner is function}
            if function is None or function not in self.units:
                used |= self._names_of_states()
            self._taken[scope] = used
        for name in (
            *stems,
            *(f"new_{stem}" for stem in stems),
            *(f"{stem}_{n}" for n in range(2, 9) for stem in stems),
        ):
            if name not in used and name.isidentifier():
                used.add(name)
                return name
        raise Refused(f"No free name was found for `{stems[0]}`.")

    def _names_of_states(self) -> set[str]:
        """Names that are written wherever a state is bound, or a statement moves to."""
        found: set[str] = set()
        for state in self.found.all_states():
            found.add(state.root)
            if isinstance(state, Carried) and state.statement is not None:
                own = self.program.own_scope[self.program.enclosing_function(state.statement)]  # type: ignore[index]
                for statement in (*state.before, state.statement):
                    names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
                    found.update(n.id for n in names if self.program.owner(n) is not own)
        return found

    def unused(self) -> str:
        """A name for what is not used."""
        self.draft.new_parameters.add("_")
        if any(isinstance(n, ast.Name) and n.id == "_" and isinstance(n.ctx, ast.Load) for n in self.program.scope_at):
            raise Refused(
                "The name `_` is read somewhere, so it cannot take what is not used. Bind the results by hand."
            )
        return "_"

    def _take(self, scope: Scope, name: str) -> None:
        if scope in self._taken:
            self._taken[scope].add(name)

    def text_at(self, state: State, caller: FunctionNode | None, place: ast.AST) -> str:
        """How a state is written where it is read or bound."""
        if caller is not None and (caller, state) in self._local:
            return self._local[caller, state]
        scope = self.program.scope_at[place]
        if state.of_self:
            assert caller is not None
            parameter = self_parameter(self.program, caller)
            if parameter is None:
                raise Refused(f"`self{state.path}` cannot be reached in `{self._name(caller)}`.")
            return parameter.arg + state.path
        if scope.lookup(state.root) is not state.owner:
            raise Refused(
                f"`{state.root}` is not visible on line {getattr(place, 'lineno', '?')}, where the value has to be "
                "bound. Return it further out by hand."
            )
        if not state.path and caller is not None and state.owner is not self.program.own_scope[caller]:
            self._declare(caller, state)
        return state.root + state.path

    def _declare(self, caller: FunctionNode, state: State) -> None:
        """A function that binds a global or nonlocal name says so first."""
        own = self.program.own_scope[caller]
        if state.root in own.global_names | own.nonlocal_names:
            return
        if isinstance(caller, ast.Lambda):
            raise Refused(f"`{state.root}` cannot be assigned inside a lambda. Write it as a function first.")
        word = "global" if state.owner.kind == "module" else "nonlocal"
        text = self.program.text_of[caller]
        self.before(text, self._first_statement(caller), f"{word} {state.root}", head=2)

    @staticmethod
    def _first_statement(function: FunctionNode) -> ast.stmt:
        """The first statement after the docstring."""
        assert not isinstance(function, ast.Lambda)
        first = function.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        return function.body[1] if is_text and len(function.body) > 1 else first

    # -- edits of statements ----------------------------------------------------------------------------------------

    def before(self, text: Text, statement: ast.stmt, line: str, head: int = 0) -> None:
        """A line of its own before a statement; with ``head`` before all others there, the highest number first."""
        start = text.start(statement)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.decorator_list:
            start = text.offset(statement.decorator_list[0].lineno, 0)
            raise Refused(f"No line can be put before line {statement.lineno}.")
        indent = text.indent_of_line(start)
        if indent is None:
            raise Refused(
                f"Line {statement.lineno} holds more than one statement. Put each on a line of its own first."
            )
        self._order += 1
        self.add(text, TextEdit(start, start, _BEFORE + self._order - _HEAD * head, line + text.newline + indent))

    def add(self, text: Text, *edits: TextEdit) -> None:
        """Take up edits, each once."""
        for edit in edits:
            if edit not in self.draft.edits.get(text, []):
                self.draft.add(text, [edit])

    def rendered(self, text: Text, node: ast.AST) -> str:
        """A node's text with the edits made so far in it, which are taken out of the draft."""
        start, stop = text.start(node), text.stop(node)
        every = self.draft.edits.get(text, [])
        inside = [e for e in every if start <= e.start and e.stop <= stop and not _is_line(e, start)]
        self.draft.edits[text] = [e for e in every if e not in inside]
        moved = [TextEdit(e.start - start, e.stop - start, e.rank, e.new) for e in inside]
        return apply_edits(text.text[start:stop], moved)

    def then(self, line: str) -> None:
        """A line of its own that has to follow the call which is being edited."""
        if line not in self._following:
            self._following.append(line)

    def follow(self, statement: ast.stmt, hoisted: bool) -> None:
        """Put what has to follow a call behind its statement, or before it where the call was put before it."""
        text = self.program.text_of[statement]
        for line in self._following:
            if hoisted:
                indent = text.indent_of_line(text.start(statement)) or ""
                self.before(text, statement, line.replace("\n", text.newline + indent))
            else:
                self._after.setdefault(statement, []).append(line)
        self._following = []

    def _emit_after(self) -> None:
        for statement, lines in self._after.items():
            text = self.program.text_of[statement]
            indent = text.indent_of_line(text.start(statement))
            stop = text.stop(statement)
            line_end = re.compile(r"[ \t]*(#[^\r\n]*)?(?=\r|\n|\Z)").match(text.masked, stop)
            if indent is None or line_end is None:
                raise Refused(f"Line {statement.lineno} holds more than one statement. Put each on a line of its own.")
            new = "".join(
                text.newline + (indent + part if part else "") for line in _spaced(lines) for part in line.split("\n")
            )
            end = line_end.end()
            self.add(text, TextEdit(end, end, _AFTER, new))

    # -- the functions ----------------------------------------------------------------------------------------------

    def _emit_accesses(self, unit: Unit) -> None:
        function = unit.function
        text = self.program.text_of[function]
        self._undeclare(unit)
        for state in dict.fromkeys([*unit.gives, *unit.needs]):
            name = self._local[function, state]
            if self.found.collects(function, state):
                self.before(text, self._first_statement(function), f"{name} = []", head=1)
                for access in self.found.accesses_in(function, state) if _is_in_object(state) else ():
                    if isinstance(access.node, ast.Attribute):
                        self.add(text, *insertions.replace(text, access.node, name))
                continue
            if isinstance(state, Carried):
                if is_writer(self.program, function, state):
                    emit_source(self, unit, state)
                continue
            dropped = self._dropped.get((function, state))
            if dropped is not None:
                self.remove(text, dropped)
                continue
            if state.path:
                for access in self.found.accesses_in(function, state):
                    self.add(text, *insertions.replace(text, access.node, name))

    def _undeclare(self, unit: Unit) -> None:
        own = self.program.own_scope[unit.function]
        text = self.program.text_of[unit.function]
        names = {s.root for s in (*unit.gives, *unit.needs) if not s.path}
        for node, scope in self.program.scope_at.items():
            if scope is not own or not isinstance(node, ast.Global | ast.Nonlocal) or not names & set(node.names):
                continue
            kept = [name for name in node.names if name not in names]
            if kept:
                word = "global" if isinstance(node, ast.Global) else "nonlocal"
                self.add(text, TextEdit(text.start(node), text.stop(node), 0, f"{word} {', '.join(kept)}"))
            else:
                self.remove(text, node)

    def remove(self, text: Text, statement: ast.stmt) -> None:
        """Take a statement out with its line."""
        start, stop = text.start(statement), text.stop(statement)
        indent = text.indent_of_line(start)
        rest = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n|\Z)").match(text.masked, stop)
        if indent is None or rest is None:
            raise Refused(f"Line {statement.lineno} holds more than one statement. Put each on a line of its own.")
        self.add(text, TextEdit(start - len(indent), rest.end(), 0, ""))

    def _emit_parameters(self, unit: Unit) -> None:
        function = unit.function
        text = self.program.text_of[function]
        names = [self._local[function, state] for state in unit.needs]
        if self._consumed_by(unit, "jax.lax.scan", *LOOPS):
            return
        if self._keyword_only(function):
            self.add(text, *insertions.append_keyword_only(text, function, names))
        else:
            self.add(text, *insertions.append_parameters(text, function, names))

    def _keyword_only(self, function: FunctionNode) -> bool:
        arguments = function.args
        return bool(arguments.defaults or arguments.vararg or arguments.kwonlyargs or arguments.kwarg)

    def _consumed_by(self, unit: Unit, *names: str) -> bool:
        return any(site.consumer in names for site in self.found.paths.of(unit.function))

    # -- results ----------------------------------------------------------------------------------------------------

    def _takes_aux(self, unit: Unit) -> bool:
        """Whether a call of the function goes through a transform that gives exactly two results back."""
        for site in self.found.paths.of(unit.function):
            if site.consumer in _SPLIT or any(w.name in TAKES_AUX for w in site.wrappers):
                return True
            caller = self.found.caller(site)
            if caller in self.units and self._passing_site(self.units[caller]) == site:
                return self._takes_aux(self.units[caller])
        return False

    def _passing_site(self, unit: Unit) -> Site | None:
        """The call whose result a function returns as its own, where nothing more has to be added to it."""
        function = unit.function
        if isinstance(function, ast.Lambda):
            value: ast.expr | None = function.body
        else:
            returns = returns_of(self.program, function)
            last = function.body[-1]
            if len(returns) != 1 or returns[0] is not last:
                return None
            value = returns[0].value
        for callee, site in self.found.calls_in(function):
            if site.call is not value or site.consumer is not None or any(w.name in TAKES_AUX for w in site.wrappers):
                continue
            given = [self.found.at_site(state, site) for state in callee.gives]
            if given == list(unit.gives) and all(len(self._writes(unit, s)) == 1 for s in unit.gives):
                return site
        return None

    def _writes(self, unit: Unit, state: State) -> list[ast.AST]:
        return [node for _, kind, node in self.found.events(unit.function, state) if kind == "write"]

    def _passes_through(self, unit: Unit) -> bool:
        return self._passing_site(unit) is not None

    def is_bare(self, unit: Unit) -> bool:
        """Whether a function returned nothing before."""
        site = self._passing_site(unit)
        if site is not None:
            callee = next(u for u in self.units.values() if site in self.found.paths.of(u.function))
            return self.is_bare(callee)
        if isinstance(unit.function, ast.Lambda):
            return False
        return all(r.value is None for r in returns_of(self.program, unit.function))

    def is_flat(self, unit: Unit) -> bool:
        """Whether the new results stand beside those of a tuple that was returned before."""
        if unit.function not in self._flat:
            self._flat[unit.function] = self._may_be_flat(unit)
        return self._flat[unit.function]

    def _may_be_flat(self, unit: Unit) -> bool:
        if isinstance(unit.function, ast.Lambda) or self._takes_aux(unit) or self._passes_through(unit):
            return False
        sizes: set[int] = set()
        for statement in returns_of(self.program, unit.function):
            if not isinstance(statement.value, ast.Tuple) or len(statement.value.elts) < 2:
                return False
            if any(isinstance(e, ast.Starred) for e in statement.value.elts):
                return False
            sizes.add(len(statement.value.elts))
        for site in self.found.paths.of(unit.function):
            statement = self.program.parent[site.call]
            if site.consumer is not None or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                return False
            target = statement.targets[0]
            if not isinstance(target, ast.Tuple) or any(isinstance(e, ast.Starred) for e in target.elts):
                return False
            sizes.add(len(target.elts))
        return len(sizes) == 1

    def _joined(self, unit: Unit, names: Sequence[str]) -> str:
        """The new results as one piece of text after the old one."""
        if self._takes_aux(unit) and len(names) > 1:
            return f"({', '.join(names)})"
        return ", ".join(names)

    def _emit_returns(self, unit: Unit) -> None:
        function = unit.function
        if isinstance(function, ast.Lambda):
            raise Refused(
                f"The lambda on line {function.lineno} calls a function that would return one more value. Write it as "
                "a function with a name, and return the value from it too."
            )
        if self._consumed_by(unit, "jax.lax.scan", *LOOPS):
            self._emit_loop_returns(unit)
            return
        text = self.program.text_of[function]
        names = [self._local[function, state] for state in unit.gives]
        returns = returns_of(self.program, function)
        self._check_always_returns(unit, returns)
        if self.is_bare(unit):
            for statement in returns:
                self.add(text, TextEdit(text.start(statement), text.stop(statement), 0, f"return {', '.join(names)}"))
            if not returns or returns[-1] is not function.body[-1]:
                self._append_line(text, function, f"return {', '.join(names)}")
            return
        for statement in returns:
            assert statement.value is not None
            added = ", " + self._joined(unit, names)
            value = statement.value
            if isinstance(value, ast.Tuple) and not self.is_flat(unit) and text.masked[text.start(value)] != "(":
                self.add(text, *insertions.wrap(text, value, "(", ")" + added))
                continue
            if isinstance(value, ast.Tuple) and self.is_flat(unit):
                bracket = text.masked[text.start(value)] == "("
                end = text.after_parentheses(text.stop(value.elts[-1]), text.stop(value) - bracket)
                self.add(text, TextEdit(end, end, 5, added))
                continue
            if isinstance(value, ast.Lambda | ast.IfExp | ast.Yield | ast.NamedExpr):
                self.add(text, *insertions.wrap(text, value, "(", ")" + added))
                continue
            end = text.after_parentheses(text.stop(value), text.after_parentheses(text.stop(statement), len(text.text)))
            self.add(text, TextEdit(end, end, 5, added))

    def _append_line(self, text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef, line: str) -> None:
        last = function.body[-1]
        indent = text.indent_of_line(text.start(function.body[0]))
        if indent is None:
            raise Refused(f"`{function.name}` is written on one line. Give its body lines of its own first.")
        end = re.compile(r"[^\r\n]*").match(text.masked, text.stop(last))
        assert end is not None
        self.add(text, TextEdit(end.end(), end.end(), _AFTER + 1, text.newline + indent + line))

    def _check_always_returns(self, unit: Unit, returns: list[ast.Return]) -> None:
        function = unit.function
        assert not isinstance(function, ast.Lambda)
        bare = [r for r in returns if r.value is None]
        if not bare and not returns:
            return
        if bare and len(bare) != len(returns):
            raise Refused(f"`{function.name}` returns a value on some ways only. Let every way return one first.")
        if not bare and _can_fall_off(function.body):
            raise Refused(
                f"`{function.name}` can end without a return statement. Let every way end in one, then return "
                f"{listed([self._local[function, s] for s in unit.gives])} too."
            )

    # -- the calls --------------------------------------------------------------------------------------------------

    def _emit_site(self, unit: Unit, site: Site) -> None:
        caller = self.found.caller(site)
        if caller is not None and caller in self.units and self._passing_site(self.units[caller]) == site:
            self._emit_arguments(unit, site, caller)
            return
        if site.consumer in ("jax.lax.scan", *LOOPS):
            from jaxleak_magic.rewrite.state_loops import emit_loop

            emit_loop(self, unit, site, caller)
            return
        self._emit_arguments(unit, site, caller)
        if unit.function in self._returned:
            (name,) = self._bound_names(unit, site, caller)
            self.follow(statement_of(self.program, site.call), hoisted=False)
            if self._own_target(site) is None:
                self.binding.prefix(self.program.text_of[site.call], site.call, f"{name} = ")
        elif unit.gives:
            self._bind(unit, site, caller)

    def _emit_arguments(self, unit: Unit, site: Site, caller: FunctionNode | None) -> None:
        self._check_options(site, bool(unit.needs), bool(unit.gives))
        if not unit.needs:
            return
        text, call = self.program.text_of[site.call], site.call
        here = [self.found.at_site(state, site) for state in unit.needs]
        values = [self.text_at(state, caller, call) for state in here]
        names = [self._local[unit.function, state] for state in unit.needs]
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            raise Refused(
                f"`{short_text(self.program, call)}` passes `*` arguments. Add {listed(values)} to it by hand."
            )
        for wrapper in site.wrappers:
            if wrapper.name in MAPS:
                self._map_over_none(site, wrapper, len(values))
        keywords = bool(call.keywords) and site.consumer is None
        bound = any(w.call is not None and w.call.keywords for w in site.wrappers if w.name == "functools.partial")
        if self._keyword_only(unit.function) or keywords or bound:
            if site.consumer is not None or any(w.name in MAPS for w in site.wrappers):
                raise Refused(
                    f"`{self._name(unit.function)}` has parameters with defaults, so {listed(names)} has to be passed "
                    f"by name, which `{short_text(self.program, call.func)}` does not do. Pass it by hand."
                )
            pairs = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
            self.add(text, *insertions.append_keywords(text, call, pairs))
        elif site.consumer in _SPLIT:
            raise Refused(
                f"`{short_text(self.program, call.func)}` would differentiate with respect to {listed(names)} too. "
                f"Give it a function of the other arguments alone, with {listed(names)} bound, and return the new "
                "value from that with `has_aux=True`."
            )
        else:
            self.add(text, *insertions.append_arguments(text, call, values))

    def _check_options(self, site: Site, needs: bool, gives: bool) -> None:
        for wrapper in site.wrappers:
            if wrapper.call is None:
                continue
            for option in wrapper.call.keywords:
                word = option.arg or "**"
                numbers = word.endswith("argnums")
                if word in ("in_shardings", "out_shardings", "**") or (word == "has_aux" and gives):
                    raise Refused(
                        f"`{short_text(self.program, wrapper.call)}` is called with `{word}`, so a further result is "
                        "not added automatically. Add it to what comes back by hand."
                    )
                if word == "out_axes" and gives and not _is_zero(option.value):
                    raise Refused(
                        f"`{short_text(self.program, wrapper.call)}` has `out_axes`. Add an entry for the further "
                        "result by hand."
                    )
                if numbers and needs and not _count_from_the_front(option.value):
                    raise Refused(
                        f"`{short_text(self.program, wrapper.call)}` counts arguments from the end. Count them from "
                        "the front first."
                    )

    def _map_over_none(self, site: Site, wrapper: Wrapper, count: int) -> None:
        vmap = wrapper.call
        if vmap is None or wrapper.node in getattr(self.program.parent.get(wrapper.node), "decorator_list", []):
            raise Refused("A function decorated with `vmap` would need one more argument. Pass it by hand.")
        if vmap in self.options:
            return
        self.options.add(vmap)
        text = self.program.text_of[vmap]
        given = next((k.value for k in vmap.keywords if k.arg == "in_axes"), None)
        if given is None and len(vmap.args) > 1:
            given = vmap.args[1]
        extra = ["None"] * count
        if isinstance(given, ast.Tuple) and given.elts and text.masked[text.start(given)] == "(":
            end = text.after_parentheses(text.stop(given.elts[-1]), text.stop(given) - 1)
            self.add(text, TextEdit(end, end, 0, "".join(f", {e}" for e in extra)))
            return
        if not (given is None or isinstance(given, ast.Constant)) or site.call.keywords:
            raise Refused("The `in_axes` of a mapped function are not written out. Write them as a tuple first.")
        entry = "0" if given is None else text.of(given)
        value = f"({', '.join([entry] * len(site.call.args) + extra)})"
        if given is not None:
            self.add(text, *insertions.replace(text, given, value))
        else:
            self.add(text, *insertions.append_arguments(text, vmap, [f"in_axes={value}"]))

    def _ask_for_aux(self, site: Site) -> None:
        """Let every transform on the way give the further results back."""
        for wrapper in site.wrappers:
            if wrapper.name not in TAKES_AUX or wrapper.node in self.options:
                continue
            self.options.add(wrapper.node)
            text = self.program.text_of[wrapper.node]
            if wrapper.call is not None:
                self.add(text, *insertions.append_keywords(text, wrapper.call, ["has_aux=True"]))
                continue
            partial = self.program.spelling("functools.partial", wrapper.node)
            if partial is None and import_module(self.program, self.draft, "functools", wrapper.node):
                partial = "functools.partial"
            if partial is None:
                raise Refused(
                    f"`@{text.of(wrapper.node)}` needs `has_aux=True`. Write it as "
                    f"`@functools.partial({text.of(wrapper.node)}, has_aux=True)`, and bind both results at each call."
                )
            new = f"{partial}({text.of(wrapper.node)}, has_aux=True)"
            self.add(text, *insertions.replace(text, wrapper.node, new))
        if site.consumer in _SPLIT and site.call not in self.options:
            self.options.add(site.call)
            text = self.program.text_of[site.call]
            keyword = insertions.append_keywords(text, site.call, ["has_aux=True"])
            self.add(text, *(replace(edit, rank=3) for edit in keyword))

    # -- binding ----------------------------------------------------------------------------------------------------

    def _bind(self, unit: Unit, site: Site, caller: FunctionNode | None) -> None:
        self._ask_for_aux(site)
        names = self._bound_names(unit, site, caller)
        pair: tuple[str, str] | None = None
        if site.consumer in _SPLIT:
            pair = _SPLIT[site.consumer]
        elif any(w.name in VALUE_AND_GRAD for w in site.wrappers):
            pair = ("value", "grads")
        if sum(w.name in TAKES_AUX for w in site.wrappers) > 1 and pair is not None:
            raise Refused("The function is differentiated more than once. Return the value by hand.")
        self.binding.bind_result(site.call, caller, self._joined(unit, names), pair, self.is_bare(unit), unit)

    def _bound_names(self, unit: Unit, site: Site, caller: FunctionNode | None) -> list[str]:
        """What the new results are bound to, one name or place each."""
        if site.consumer == "jax.eval_shape":
            return [self.unused()] * len(unit.gives)
        names: list[str] = []
        moved: dict[ast.stmt, dict[Carried, str]] = {}
        for state in unit.gives:
            here = self.found.at_site(state, site)
            if not isinstance(here, Carried):
                names.append(self.text_at(here, caller, site.call))
                continue
            names.append(self._carried_name(here, site, caller))
            own_list = self._own_list(here, caller)
            if own_list is not None:
                method = "extend" if isinstance(here, Collected) else "append"
                self.then(f"{own_list}.{method}({names[-1]})")
            elif caller is None or (caller, here) not in self._local:
                assert here.statement is not None
                moved.setdefault(here.statement, {})[here] = names[-1]
        for values in moved.values():
            for line in moved_text(self, values, site):
                self.then(line)
        return names

    def _own_list(self, state: Carried, caller: FunctionNode | None) -> str | None:
        """The caller's own list that takes a value, or None."""
        if caller is None or caller not in self.units:
            return None
        for each in self.units[caller].gives:
            if isinstance(each, Collected) and each.takes(state):
                return self._local[caller, each]
        return None

    def _returns_already(self, unit: Unit) -> bool:
        """Whether a function returns the value by itself, and each call binds it to a name of its own."""
        if len(unit.gives) != 1 or unit.needs or isinstance(unit.function, ast.Lambda):
            return False
        (state,) = unit.gives
        if (
            not isinstance(state, Carried)
            or not is_writer(self.program, unit.function, state)
            or state.value is not None
        ):
            return False
        for statement in (returns := returns_of(self.program, unit.function)):
            if not isinstance(statement.value, ast.Name) or statement.value.id != self._local[unit.function, state]:
                return False
        return bool(returns) and all(
            site.consumer is None
            and not any(w.name in TAKES_AUX for w in site.wrappers)
            and (self._own_target(site) is not None or self._is_dropped(site))
            and (
                self.found.is_sink(self.found.caller(site), self.found.at_site(state, site))
                or self._own_list(state, self.found.caller(site)) is not None
            )
            for site in self.found.paths.of(unit.function)
        )

    def _is_writer_of_site(self, state: Carried, site: Site) -> bool:
        return any(
            function in self._returned
            and is_writer(self.program, function, state)
            and site in self.found.paths.of(function)
            for function in self.units
        )

    def _is_dropped(self, site: Site) -> bool:
        """Whether a call's result is neither used nor displayed."""
        statement, text = self.program.parent[site.call], self.program.text_of[site.call]
        return isinstance(statement, ast.Expr) and not self.binding.is_shown(text, statement)

    def _own_target(self, site: Site) -> ast.Name | None:
        """The name to which a call's result is bound, where nothing else is ever bound to it."""
        match self.program.parent[site.call]:
            case ast.Assign(targets=[ast.Name() as target]):
                owner = self.program.owner(target)
                return target if owner is not None and self.program.only_site(owner, target.id) is not None else None
            case _:
                return None

    def _carried_name(self, state: Carried, site: Site, caller: FunctionNode | None) -> str:
        if self._is_writer_of_site(state, site) and (target := self._own_target(site)) is not None:
            return target.id
        if caller is not None and (caller, state) in self._local:
            return self._local[caller, state]
        is_list = isinstance(state, Collected)
        stems = [plural(state.name), state.name] if site.is_mapped and not is_list else [state.name]
        name = self.fresh(caller, *stems, at=site.call)
        self.draft.new_parameters.add(name)
        return name

    def _emit_loop_returns(self, unit: Unit) -> None:
        from jaxleak_magic.rewrite.state_loops import emit_returns

        emit_returns(self, unit)

    def local(self, function: FunctionNode, state: State) -> str:
        """What a state is called inside a function that takes part."""
        return self._local[function, state]


def _is_in_object(state: State) -> bool:
    """Whether a list is an attribute: the function's own one then needs a name for itself."""
    return isinstance(state, Collected) and bool(state.container)


def _is_line(edit: TextEdit, start: int) -> bool:
    return edit.start == edit.stop == start and edit.rank < _BEFORE / 2


def _spaced(lines: Sequence[str]) -> list[str]:
    """Lines with an empty one before and after a definition."""
    found: list[str] = []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        if "\n" in line or "\n" in before:
            found.append("")
        found.append(line)
    return found


def _count_from_the_front(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_count_from_the_front, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _can_fall_off(body: Sequence[ast.stmt]) -> bool:
    """Whether control may reach the end of some statements."""
    last = body[-1]
    match last:
        case ast.Return() | ast.Raise():
            return False
        case ast.If():
            return not last.orelse or _can_fall_off(last.body) or _can_fall_off(last.orelse)
        case ast.With() | ast.AsyncWith():
            return _can_fall_off(last.body)
        case _:
            return True
