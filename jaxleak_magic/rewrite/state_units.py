"""Which functions a state has to be threaded through: who reads and writes it, and who calls them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from jaxleak_magic.rewrite.call_paths import CallPaths, Site
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.states import (
    Access,
    Carried,
    Collected,
    State,
    accesses,
    is_only_attribute,
    starts_as_empty_list,
)

LOOPS = frozenset(("jax.lax.while_loop", "jax.lax.fori_loop"))


@dataclass
class Unit:
    """A function through which states go.

    Attributes:
        function: the function.
        needs: states that must come in, in the order in which they are passed.
        gives: states whose new values must come out, in the order in which they are returned.
    """

    function: FunctionNode
    needs: dict[State, None] = field(default_factory=dict)
    gives: dict[State, None] = field(default_factory=dict)


class StateUnits:
    """Finds the functions for some states.

    Args:
        program: all texts.
        seeds: (function, state) pairs: the writes to be mended.
    """

    def __init__(self, program: Program, seeds: Sequence[tuple[FunctionNode, State]]) -> None:
        self.program = program
        self.paths = CallPaths(program)
        self.units: dict[FunctionNode, Unit] = {}
        self._accesses: dict[State, tuple[Access, ...]] = {}
        self._traced: dict[FunctionNode, bool] = {}
        for function, state in seeds:
            self._unit(function).gives[state] = None
        self._close()

    def _unit(self, function: FunctionNode) -> Unit:
        return self.units.setdefault(function, Unit(function))

    def name(self, function: FunctionNode) -> str:
        """The function in the user's words."""
        return function_name(self.program, function)

    # -- states at calls --------------------------------------------------------------------------------------------

    def at_site(self, state: State, site: Site) -> State:
        """What a callee's state is called where it is called.

        Raises:
            Refused: where the object is not a plain name there.
        """
        if isinstance(state, Carried):
            return self._carried_at(state, site)
        if not state.of_self:
            return state
        receiver = site.receiver
        if receiver is None and self._is_in_method(site, state):
            return state
        if not isinstance(receiver, ast.Name):
            what = "the object" if receiver is None else f"`{short_text(self.program, receiver)}`"
            raise Refused(
                f"A method that writes `self{state.path}` is called on line {site.call.lineno}, where {what} has no "
                "name of its own. Give the object a name, return the value from the method, and assign it there."
            )
        owner = self.program.owner(receiver)
        assert owner is not None
        if self.paths.instance_class(receiver) is not None and self._is_self(receiver):
            return State(self.program.scope_at[owner.node], "", state.path)  # type: ignore[index]
        return State(owner, receiver.id, state.path)

    def _is_in_method(self, site: Site, state: State) -> bool:
        """Whether a call stands in a method of the state's class, and calls a function that is defined in it."""
        scope = self.program.scope_at[site.call].function()
        while scope is not None and scope.parent is not state.owner:
            scope = scope.parent.function() if scope.parent is not None else None
        return scope is not None

    def _carried_at(self, state: Carried, site: Site) -> Carried:
        if not (state.uses_self or state.of_self) or state.receiver is not None:
            return state
        receiver = site.receiver
        if receiver is None and self._is_in_method(site, state):
            return state
        if not isinstance(receiver, ast.Name):
            raise Refused(
                f"A method that stores a value is called on line {site.call.lineno}, where the object has no name of "
                "its own. Give it a name, return the value from the method, and store it there."
            )
        if self.paths.instance_class(receiver) is not None and self._is_self(receiver):
            return state
        owner = self.program.owner(receiver)
        assert owner is not None
        if state.of_self:
            return replace(state, owner=owner, root=receiver.id, receiver=receiver.id)
        return replace(state, receiver=receiver.id)

    def _is_self(self, receiver: ast.Name) -> bool:
        owner = self.program.owner(receiver)
        site = self.program.only_site(owner, receiver.id) if owner is not None else None
        return site is not None and site.kind == "parameter"

    def is_sink(self, caller: FunctionNode | None, state: State) -> bool:
        """Whether a state can be written where a function is called, outside of every transform that could keep it."""
        if caller is None:
            if state.owner.kind != "module":
                raise Refused(
                    f"`{state.root}` belongs to a function, and the function that writes it is called outside of that "
                    "function. Return the value by hand."
                )
            return True
        if not state.of_self and state.owner is self.program.own_scope[caller]:
            return True
        return not self.is_traced(caller)

    def is_traced(self, function: FunctionNode) -> bool:
        """Whether a function runs under a transform in one of its calls."""
        if function not in self._traced:
            self._traced[function] = False  # recursion decides nothing
            self._traced[function] = any(
                not site.is_plain
                or ((caller := self.caller(site)) is not None and caller is not function and self.is_traced(caller))
                for site in self.paths.of(function)
            )
        return self._traced[function]

    def caller(self, site: Site) -> FunctionNode | None:
        """The function in whose body a call stands, or None at module level."""
        return self.program.enclosing_function(site.call)

    # -- closure ----------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        for _ in range(50):
            before = [(f, list(u.needs), list(u.gives)) for f, u in self.units.items()]
            count = -1
            while count != (count := sum(len(u.gives) + 1 for u in self.units.values())):
                for unit in list(self.units.values()):
                    self._carry_out(unit)
            for unit in list(self.units.values()):
                self._find_needs(unit)
            self._take_in_readers()
            if before == [(f, list(u.needs), list(u.gives)) for f, u in self.units.items()]:
                return
        raise Refused("The functions that write the value call each other in too many ways. Return it by hand.")

    def _carry_out(self, unit: Unit) -> None:
        sites = self.paths.of(unit.function)
        if not sites:
            raise Refused(
                f"No call of `{self.name(unit.function)}` was found, so there is no place to bind what it would return."
            )
        for site in sites:
            caller = self.caller(site)
            for state in (*unit.gives, *unit.needs):
                here = self.at_site(state, site)
                if self.is_sink(caller, here):
                    continue
                assert caller is not None
                if site.consumer == "jax.eval_shape":
                    self._unit(caller).needs[here] = None
                elif state in unit.gives:
                    self._unit(caller).gives[self._for_caller(here, caller)] = None
                else:
                    self._unit(caller)

    def _for_caller(self, state: State, caller: FunctionNode) -> State:
        """What comes out of a caller: the value itself, or a list where several calls give one."""
        if not isinstance(state, Carried) or not self._can_be_collected(state):
            return state
        sites = [
            site
            for unit, site in self.calls_in(caller)
            if any(self.at_site(each, site) == state for each in unit.gives)
        ]
        if len(sites) == 1 and not self.is_conditional(sites[0].call, caller):
            return state
        self._unit(caller).gives.pop(state, None)
        if isinstance(state, Collected):
            return replace(state, gathered=True)
        name = State(state.owner, state.root, state.container).stem
        path = f"{state.container}@list"
        return Collected(state.owner, state.root, path, name, state.statement, receiver=state.receiver)

    def _can_be_collected(self, state: Carried) -> bool:
        """Whether a list of the caller's own can take what several calls give, in place of the list outside."""
        if isinstance(state, Collected):
            return not state.gathered
        match state.statement:
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=container, attr="append"), args=[stored], keywords=[])
            ):
                direct = stored is state.value or (isinstance(stored, ast.Name) and state.value is None)
            case _:
                return False
        if not direct or state.before:
            return False
        if state.container:
            return is_only_attribute(self.program, state.container, {container})
        in_module = state.owner.kind == "module"
        return in_module and starts_as_empty_list(self.program, state.owner, state.root)

    def collects(self, function: FunctionNode, state: State) -> bool:
        """Whether a function has a list of its own for what it appends, or for the values of its calls."""
        if self.appends(function, state):
            return True
        return isinstance(state, Collected) and any(
            state.takes(each) for unit, _ in self.calls_in(function) for each in unit.gives
        )

    def appends(self, function: FunctionNode, state: State) -> bool:
        """Whether a function itself appends the values, in a loop or under a condition."""
        own_list = isinstance(state, Collected) and state.statement is not None
        return own_list and self.program.enclosing_function(state.statement) is function  # type: ignore[union-attr]

    def runs_once(self, function: FunctionNode) -> bool:
        """Whether a function is called once, by a module-level statement outside of any loop."""
        sites = self.paths.of(function)
        if len(sites) != 1 or self.caller(sites[0]) is not None:
            return False
        node: ast.AST = sites[0].call
        while not isinstance(node, ast.Module):
            node = self.program.parent[node]
            if isinstance(node, ast.For | ast.While | ast.comprehension | ast.ListComp | ast.GeneratorExp):
                return False
        return True

    def _find_needs(self, unit: Unit) -> None:
        states = dict.fromkeys([*unit.gives, *self._read_in(unit.function)])
        for state in states:
            if self.needs_value(unit.function, state):
                unit.needs[state] = None

    def _read_in(self, function: FunctionNode) -> Iterator[State]:
        for other in list(self.units.values()):
            for site in self.paths.of(other.function):
                if self.caller(site) is function:
                    for state in other.needs:
                        here = self.at_site(state, site)
                        if not self.is_sink(function, here):
                            yield here
        for state in self.all_states():
            if any(a.kind != "opaque" for a in self.accesses_in(function, state)):
                yield state

    def all_states(self) -> dict[State, None]:
        """Every state in play, in the order in which they came up."""
        return {state: None for unit in self.units.values() for state in (*unit.gives, *unit.needs)}

    # -- accesses ---------------------------------------------------------------------------------------------------

    def accesses(self, state: State) -> tuple[Access, ...]:
        """Every place that touches a state."""
        if state not in self._accesses:
            self._accesses[state] = tuple(accesses(self.program, state))
        known = self._objects_called()
        return tuple(a for a in self._accesses[state] if a.kind != "opaque" or a.node not in known)

    def _objects_called(self) -> set[ast.expr]:
        """Names of objects where they are called themselves: what their ``__call__`` reads and writes is known."""
        return {
            site.receiver
            for unit in self.units.values()
            if getattr(unit.function, "name", None) == "__call__"
            for site in self.paths.of(unit.function)
            if site.receiver is not None
        }

    def accesses_in(self, function: FunctionNode, state: State) -> list[Access]:
        """Places in a function's own body that touch a state."""
        return [a for a in self.accesses(state) if self.program.enclosing_function(a.node) is function]

    def events(self, function: FunctionNode, state: State) -> list[tuple[int, str, ast.AST]]:
        """(position, ``read`` or ``write``, node) of all that happens to a state in a function, in order."""
        text = self.program.text_of[function]
        found: list[tuple[int, str, ast.AST]] = []
        for access in self.accesses_in(function, state):
            if access.kind in ("read", "opaque"):
                found.append((text.start(access.node), "read", access.node))
                continue
            stop = text.stop(statement_of(self.program, access.node))
            if access.kind == "augmented":
                found.append((stop - 1, "read", access.node))
            found.append((stop, "write", access.node))
        for unit, site in self.calls_in(function):
            stop = text.stop(site.call)
            if any(self.at_site(s, site) == state for s in unit.needs):
                found.append((stop - 1, "read", site.call))
            if any(self.at_site(s, site) == state for s in unit.gives) and site.consumer != "jax.eval_shape":
                if site.consumer in LOOPS:
                    found.append((stop - 1, "read", site.call))
                found.append((stop, "write", site.call))
        return sorted(found, key=lambda event: event[0])

    def calls_in(self, function: FunctionNode | None) -> list[tuple[Unit, Site]]:
        """Calls of units in a function's own body."""
        return [
            (unit, site)
            for unit in list(self.units.values())
            for site in self.paths.of(unit.function)
            if self.caller(site) is function
        ]

    def needs_value(self, function: FunctionNode, state: State) -> bool:
        """Whether a function needs the state's value before it has certainly set it."""
        if isinstance(state, Carried):
            return False
        unit = self.units[function]
        if state in unit.gives and any(site.consumer in LOOPS for site in self.paths.of(function)):
            return True
        events = self.events(function, state)
        if not events:
            return False
        _, kind, node = events[0]
        if kind == "read" or self.is_conditional(node, function):
            return True
        text = self.program.text_of[function]
        return state in unit.gives and any(text.stop(r) <= text.start(node) for r in returns_of(self.program, function))

    def is_conditional(self, node: ast.AST, function: FunctionNode) -> bool:
        """Whether a node may run not at all, or more than once, in a call of the function."""
        while node is not function:
            above = self.program.parent[node]
            if isinstance(above, ast.If) and node is not above.test:
                return True
            if isinstance(above, ast.For | ast.AsyncFor) and node is not above.iter:
                return True
            if isinstance(above, ast.While | ast.Try | ast.TryStar | ast.Match):
                return True
            if isinstance(above, ast.IfExp) and node is not above.test:
                return True
            if isinstance(above, ast.BoolOp) and node is not above.values[0]:
                return True
            if isinstance(above, ast.comprehension | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                return True
            node = above
        return False

    # -- readers ----------------------------------------------------------------------------------------------------

    def _take_in_readers(self) -> None:
        """Functions that touch the states and run inside of the units become units too."""
        reachable = self.extent()
        for state in self.all_states():
            for access in self.accesses(state):
                function = self.program.enclosing_function(access.node)
                if function is None or function in self.units or function not in reachable:
                    continue
                if not state.of_self and state.owner is self.program.own_scope[function]:
                    continue
                if isinstance(state, Carried) and state.statement in self._above(access.node):
                    continue
                if access.kind == "opaque":
                    raise self.opaque(state, access, function)
                unit = self._unit(function)
                if access.kind != "read":
                    unit.gives[state] = None

    def _above(self, node: ast.AST) -> list[ast.AST]:
        found: list[ast.AST] = []
        current: ast.AST | None = node
        while current is not None:
            found.append(current)
            current = self.program.parent.get(current)
        return found

    def extent(self) -> set[FunctionNode]:
        """Functions that may run while a unit runs."""
        found: set[FunctionNode] = set()
        waiting: list[ast.AST] = list(self.units)
        for unit in self.units.values():
            for site in self.paths.of(unit.function):
                waiting += site.call.args
                waiting += [k.value for k in site.call.keywords]
        seen: set[ast.AST] = set()
        values: list[ast.AST] = []
        while waiting or values:
            # Of what is only a value here, functions may be called; a class in it was called before.
            runs = bool(waiting)
            node = waiting.pop() if runs else values.pop()
            if node in seen:
                continue
            seen.add(node)
            for each in ast.walk(node):
                if isinstance(each, FunctionNode):
                    found.add(each)
                for meant in self._meant_by(each, runs):
                    (waiting if isinstance(meant, FunctionNode) else values).append(meant)
        return found

    def _meant_by(self, node: ast.AST, runs: bool) -> list[ast.AST]:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            return [
                f
                for f in self.program.functions()
                if isinstance(f, ast.FunctionDef) and f.name == node.attr and self.program.scope_at[f].kind == "class"
            ]
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            return []
        owner = self.program.owner(node)
        found: list[ast.AST] = []
        for site in self.program.sites(owner, node.id) if owner is not None else []:
            if isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(site.node)
            elif isinstance(site.node, ast.ClassDef):
                methods = [n for n in site.node.body if isinstance(n, ast.FunctionDef) and n.name[:2] == "__"]
                made_before = ("__init__", "__new__", "__post_init__", "__init_subclass__")
                found += [m for m in methods if runs or m.name not in made_before]
            elif (value := self.program.assigned_value(site)) is not None:
                found.append(value)
        return found

    def opaque(self, state: State, access: Access, function: FunctionNode) -> Refused:
        """The refusal of a use of which it is not sure what it reads."""
        return Refused(
            f"`{self.name(function)}` uses `{short_text(self.program, access.node)}` on line {access.node.lineno} "
            f"while `{state.root or 'self'}{state.path.partition('@')[0]}` is being computed, and it is not "
            "sure what it reads. Pass the value there as an argument."
        )


def statement_of(program: Program, node: ast.AST) -> ast.stmt:
    """The innermost statement in which a node stands."""
    while not isinstance(node, ast.stmt):
        node = program.parent[node]
    return node


def returns_of(program: Program, function: FunctionNode) -> list[ast.Return]:
    """The return statements of a function's own body, in order."""
    own = program.own_scope[function]
    found = [n for n in ast.walk(function) if isinstance(n, ast.Return) and program.scope_at.get(n) is own]
    return sorted(found, key=program.text_of[function].start)
