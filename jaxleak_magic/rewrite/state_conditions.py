"""When state can be threaded through functions without a change of meaning: refusals that say what to do by hand."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_units import StateUnits, Unit
from jaxleak_magic.rewrite.states import Carried, Collected, State, key_text


def where(state: State) -> str:
    """A state in the user's words."""
    return f"{state.root or 'self'}{state.container if isinstance(state, Carried) else state.path}"


def is_writer(program: Program, function: FunctionNode, state: Carried) -> bool:
    """Whether a function is the one that stores the value, and its statement moves out."""
    if isinstance(state, Collected):
        return False  # what appends stays where it is
    return state.statement is not None and program.enclosing_function(state.statement) is function


class Conditions:
    """Looks at functions and states before anything is edited.

    Args:
        found: the functions that take part.
    """

    def __init__(self, found: StateUnits) -> None:
        self.found = found
        self.program = found.program
        self.units = found.units

    def check(self) -> None:
        """Raises:
        Refused: where the meaning would not certainly stay.
        """
        for unit in self.units.values():
            self._check_unit(unit)
            for state in unit.needs:
                self._check_has_value(state)
        self._check_moved_read_nothing_new()

    def _check_moved_read_nothing_new(self) -> None:
        """A statement that moves behind a call would read there what the same call has changed."""
        states = self.found.all_states()
        changing = [s for s in states if not isinstance(s, Carried) and any(s in u.gives for u in self.units.values())]
        for carried in states:
            if not isinstance(carried, Carried) or carried.statement is None:
                continue
            inside = {n for part in (*carried.before, carried.statement) for n in ast.walk(part)}
            for state in changing:
                if any(access.node in inside for access in self.found.accesses(state)):
                    raise Refused(
                        f"What is stored on line {carried.statement.lineno} depends on `{where(state)}`, which changes "
                        "in the same function. Return both from it by hand, and store them where it is called."
                    )

    def _check_unit(self, unit: Unit) -> None:
        function, name = unit.function, self.found.name(unit.function)
        if isinstance(function, ast.AsyncFunctionDef) or any(
            isinstance(n, ast.Yield | ast.YieldFrom | ast.Await)
            for n in ast.walk(function)
            if self.program.scope_at.get(n) is self.program.own_scope[function]
        ):
            raise Refused(f"`{name}` is a generator or asynchronous. Return the value from it by hand.")
        if not self.program.scopes_agree(function):
            raise Refused(f"The names used in `{name}` could not be resolved with certainty.")
        own = self.program.own_scope[function]
        for state in (*unit.gives, *unit.needs):
            if isinstance(state, Carried):
                self._check_carried(unit, state)
            for access in self.found.accesses(state):
                around = self.program.enclosing_function(access.node)
                inside = self.program.scope_at[access.node].is_inside(own)
                if not inside or (isinstance(state, Carried) and self._in_moved(access.node, state)):
                    continue
                if around is not function and around not in self.units:
                    raise Refused(
                        f"A function inside `{name}` uses `{where(state)}` (line {access.node.lineno}). Pass the "
                        "value to it as an argument."
                    )
                if self.found.appends(function, state):
                    continue  # it does nothing else with the list
                if self.found.collects(function, state):
                    self._check_own_list(function, state, access.node)
                    continue
                if isinstance(state, Carried) and is_writer(self.program, function, state):
                    continue  # what it reads of what it stores is looked at where the statement is taken out
                if access.kind == "opaque":
                    raise self.found.opaque(state, access, function)
        self._check_same_attribute(unit)
        self._check_mapped_readers(unit)
        if unit.needs and unit.gives and any(s.is_mapped for s in self.found.paths.of(function)):
            both = [s for s in unit.gives if s in unit.needs]
            if both:
                raise Refused(
                    f"`{name}` is mapped, and each row would start from the same `{where(both[0])}` and give "
                    "another one back. Keep one value for each row: pass an array of them in, and map over it."
                )

    def _check_has_value(self, state: State) -> None:
        """A value that comes in must be there at the first call."""
        if isinstance(state, Carried) or not state.path:
            return
        if state.of_self:
            body = state.owner.node.body if isinstance(state.owner.node, ast.ClassDef) else []
            word = state.path[1:]
            for node in body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and word in ast.unparse(node).partition("=")[0].split():
                    return
        for access in self.found.accesses(state):
            function = self.program.enclosing_function(access.node)
            if access.kind == "write" and function not in self.units:
                return
        if not state.of_self and self._holds_at_first(state):
            return
        raise Refused(
            f"`{where(state)}` may hold nothing at the first call, so there is no value to pass in. Give it one "
            "before, then pass it in and return what becomes of it."
        )

    def _holds_at_first(self, state: State) -> bool:
        site = self.program.only_site(state.owner, state.root)
        if site is not None and isinstance(site.node, ast.ClassDef):
            names = [s for n in site.node.body if isinstance(n, ast.Assign) for s in n.targets]
            return any(isinstance(n, ast.Name) and f".{n.id}" == state.path for n in names)
        value = self.program.assigned_value(site) if site is not None else None
        match value:
            case ast.Dict(keys=keys):
                return any(isinstance(k, ast.Constant) and f"[{key_text(k.value)}]" == state.path for k in keys)
            case ast.List(elts=elements):
                return any(f"[{number}]" == state.path for number in range(len(elements)))
            case ast.Call() if (definition := self.found.paths.instance_class(value)) is not None:
                own = self.program.own_scope[definition]
                inside = [s for s in self.found.all_states() if s.of_self and s.owner is own and s.path == state.path]
                known = State(own, "", state.path)
                for each in [*inside, known]:
                    self._check_has_value(each)
                return True
            case _:
                return False

    def _check_mapped_readers(self, unit: Unit) -> None:
        """What a mapped function stores has one value a row afterwards: a function that reads it may want one only."""
        for site in self.found.paths.of(unit.function):
            if not site.is_mapped:
                continue
            for state in unit.gives:
                here = self.found.at_site(state, site)
                for access in self.found.accesses(here):
                    reader = self.program.enclosing_function(access.node)
                    if reader is None or reader in self.units or reader is self.found.caller(site):
                        continue
                    if access.kind == "write":
                        continue
                    raise Refused(
                        f"`{where(here)}` gets one value for each mapped row, and "
                        f"`{short_text(self.program, access.node)}` on line {access.node.lineno} may want only one. "
                        f"Return the value from `{self.found.name(unit.function)}`, and pass each row its own."
                    )

    def _in_moved(self, node: ast.AST, state: Carried) -> bool:
        return state.statement is not None and any(n is node for n in ast.walk(state.statement))

    def _check_carried(self, unit: Unit, state: Carried) -> None:
        function = unit.function
        giving = [
            (callee, site)
            for callee, site in self.found.calls_in(function)
            if any(self.found.at_site(s, site) == state for s in callee.gives)
        ]
        for number, (callee, site) in enumerate(giving):
            if number or self.found.is_conditional(site.call, function):
                how = "more than once" if number else "in a loop or under a condition"
                raise Refused(
                    f"`{self.found.name(callee.function)}` is called {how} in `{self.found.name(function)}` (line "
                    f"{site.call.lineno}), and each call stores a value in `{where(state)}`. Collect them in a "
                    f"list inside `{self.found.name(function)}` and return that list."
                )

    def _check_own_list(self, function: FunctionNode, state: State, node: ast.expr) -> None:
        """A function that reads the list would see only what its own calls append."""
        others = [
            site
            for unit in self.units.values()
            if any(isinstance(s, Carried) and s.root == state.root for s in unit.gives)
            for site in self.found.paths.of(unit.function)
            if unit.function is not function and self.found.caller(site) is not function
        ]
        if others or not self.found.runs_once(function):
            raise Refused(
                f"`{self.found.name(function)}` reads `{state.root}` (line {node.lineno}), which may hold values of "
                "earlier calls. Pass the list that it should see as an argument, and return the new values."
            )

    def _check_same_attribute(self, unit: Unit) -> None:
        """An attribute of the same name of an object that is not known may be the state under another name."""
        attributes = {s.path.rpartition(".")[2]: s for s in (*unit.gives, *unit.needs) if s.path.startswith(".")}
        if not attributes:
            return
        known = {a.node for s in self.found.all_states() for a in self.found.accesses(s)}
        for function in self.found.extent():
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in attributes and node not in known:
                    if self.program.qualified(node) is not None or self._is_called(node):
                        continue
                    base = self.found.paths.instance_class(node.value)
                    state = attributes[node.attr]
                    if base is not None and not self._may_be_of(base, state):
                        continue
                    raise Refused(
                        f"`{short_text(self.program, node)}` on line {node.lineno} may be "
                        f"`{where(state)}` too. Pass the value there as an argument."
                    )
                if isinstance(node, ast.Constant) and node.value in attributes:
                    raise Refused(
                        f"`{node.value}` is named in a string on line {node.lineno}, where it may be read or written."
                    )

    def _is_called(self, node: ast.expr) -> bool:
        parent = self.program.parent[node]
        return isinstance(parent, ast.Call) and parent.func is node

    def _may_be_of(self, definition: ast.ClassDef, state: State) -> bool:
        if state.of_self:
            return state.owner.node is definition
        site = self.program.only_site(state.owner, state.root)
        value = self.program.assigned_value(site) if site is not None else None
        return value is None or self.found.paths.instance_class(value) in (None, definition)
