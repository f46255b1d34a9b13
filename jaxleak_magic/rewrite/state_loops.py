"""State in the bodies of loops: read and written it goes into the carry, only collected it comes back as ys."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.call_paths import Site
from jaxleak_magic.rewrite.refusing import Refused, plural, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_conditions import where
from jaxleak_magic.rewrite.state_units import Unit, returns_of, statement_of
from jaxleak_magic.rewrite.states import Carried, Collected, State
from jaxleak_magic.rewrite.texts import TextEdit

if TYPE_CHECKING:
    from jaxleak_magic.rewrite.state_threading import StateThreading

_INITIAL = {"jax.lax.scan": 1, "jax.lax.while_loop": 2, "jax.lax.fori_loop": 3}
"""Position of the initial carry."""
_CARRY = {"jax.lax.scan": 0, "jax.lax.while_loop": 0, "jax.lax.fori_loop": 1}
"""Number of the body's parameter that takes the carry."""


def emit_loop(threading: StateThreading, unit: Unit, site: Site, caller: FunctionNode | None) -> None:
    """The edits of a call of ``scan``, ``while_loop`` or ``fori_loop`` and of the head of its body.

    Raises:
        Refused: where the carry is not written in a form that can be extended for sure.
    """
    body, call, name = unit.function, site.call, site.consumer
    assert name is not None
    if site.wrappers or len(threading.found.paths.of(body)) != 1 or isinstance(body, ast.Lambda) or site.receiver:
        raise _by_hand(threading, unit, "is used in more than one way, transformed, or a lambda")
    if name == "jax.lax.while_loop" and site.operand != 1:
        raise _by_hand(threading, unit, "is the condition of the loop")
    carried = [s for s in unit.gives if s in unit.needs]
    collected = [s for s in unit.gives if s not in unit.needs]
    if [s for s in unit.needs if s not in unit.gives] or (carried and collected) or not unit.gives:
        raise _by_hand(threading, unit, "reads one value and stores another")
    if any(k.arg in ("init", "init_val", "f", "body_fun", None) for k in call.keywords) or any(
        isinstance(a, ast.Starred) for a in call.args
    ):
        raise _by_hand(threading, unit, "gets its initial value by keyword")
    if carried:
        _carry(threading, unit, site, caller, carried)
    else:
        _collect(threading, unit, site, caller)


def _by_hand(threading: StateThreading, unit: Unit, why: str) -> Refused:
    name = threading.found.name(unit.function)
    states = ", ".join(f"`{where(s)}`" for s in unit.gives)
    return Refused(
        f"The loop body `{name}` {why}. Put {states} into the carry by hand, and bind it where the loop returns."
    )


# -- carry -------------------------------------------------------------------------------------------------------------


def _carry(threading: StateThreading, unit: Unit, site: Site, caller: FunctionNode | None, states: list[State]) -> None:
    program, body, call = threading.program, unit.function, site.call
    assert isinstance(body, ast.FunctionDef) and site.consumer is not None
    text = program.text_of[call]
    for state in states:
        _check_initial(threading, threading.found.at_site(state, site), unit)
    names = ", ".join(threading.local(body, state) for state in states)
    values = ", ".join(threading.text_at(threading.found.at_site(state, site), caller, call) for state in states)
    _take_apart(threading, body, _CARRY[site.consumer], names, unit)
    if site.consumer == "jax.lax.while_loop":
        _condition(threading, unit, call, len(states))
    position = _INITIAL[site.consumer]
    if position >= len(call.args):
        raise _by_hand(threading, unit, "has no initial value that can be extended")
    threading.add(text, *insertions.wrap(text, call.args[position], "(", f", {values})"))
    scan = site.consumer == "jax.lax.scan"
    statement, parent = statement_of(program, call), program.parent[call]
    if isinstance(statement, ast.Assign) and parent is statement and len(statement.targets) == 1:
        target = statement.targets[0]
        if not scan:
            old = text.of(target)
            plain = not isinstance(target, ast.Tuple) or old.startswith("(")
            threading.add(text, *insertions.replace(text, target, f"{old if plain else f'({old})'}, {values}"))
            return
        if isinstance(target, ast.Tuple) and len(target.elts) == 2:
            threading.add(text, *insertions.wrap(text, target.elts[0], "(", f", {values})"))
            return
    _hoist(threading, unit, call, caller, ("carry", f", {values}"), scan)


def _take_apart(threading: StateThreading, function: ast.FunctionDef, number: int, names: str, unit: Unit) -> None:
    """``carry, total = carry`` at the top of a function."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    if number >= len(arguments) or function.args.vararg:
        raise _by_hand(threading, unit, "takes its carry in an unusual form")
    parameter = arguments[number].arg
    text, first = threading.program.text_of[function], function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1:
        first = function.body[1]
    match first:
        case ast.Assign(targets=[ast.Tuple(elts=elements) as target], value=ast.Name(id=name)) if name == parameter:
            threading.add(
                text,
                *insertions.wrap(
                    text,
                    target,
                    "(" if text.of(target)[0] != "(" else "",
                    ")" * (text.of(target)[0] != "(") + f", {names}",
                ),
            )
            del elements
            return
        case _:
            pass
    if isinstance(first, ast.Global | ast.Nonlocal):
        rest = function.body[function.body.index(first) + 1 :]
        first = next((s for s in rest if not isinstance(s, ast.Global | ast.Nonlocal)), first)
    threading.before(text, first, f"{parameter}, {names} = {parameter}", head=1)


def _condition(threading: StateThreading, unit: Unit, call: ast.Call, count: int) -> None:
    program, condition = threading.program, call.args[0]
    text = program.text_of[condition]
    unused = ", ".join([threading.unused()] * count)
    if isinstance(condition, ast.Lambda) and len(condition.args.args) == 1 and not condition.args.defaults:
        own = program.own_scope[condition]
        name = condition.args.args[0].arg
        for load in program.loads(own, name):
            if program.scope_at[load] is not own:
                raise _by_hand(threading, unit, "has a condition that is too involved")
            threading.add(text, TextEdit(text.stop(load), text.stop(load), 0, "[0]"))
        return
    definition = program.definition(condition)
    owner = program.owner(condition) if isinstance(condition, ast.Name) else None
    if (
        not isinstance(definition, ast.FunctionDef)
        or owner is None
        or definition.decorator_list
        or len(program.loads(owner, definition.name)) != 1
    ):
        raise _by_hand(threading, unit, "has a condition that is used elsewhere too")
    _take_apart(threading, definition, 0, unused, unit)


def _check_initial(threading: StateThreading, state: State, unit: Unit) -> None:
    """The state must hold an array of its final type from the start, since a carry keeps its type."""
    program = threading.program
    found: list[ast.expr | None] = []
    for access in threading.found.accesses(state):
        if access.kind == "write" and program.enclosing_function(access.node) not in threading.units:
            parent = program.parent[access.node]
            found.append(parent.value if isinstance(parent, ast.Assign) and access.node in parent.targets else None)
    if not found or not all(_is_array_at_first(threading, value) for value in found):
        raise Refused(
            f"`{where(state)}` would go into the carry of a loop, and it is not sure that it holds an array "
            f"of the right type from the start. Give it one, then pass it through the carry of "
            f"`{threading.found.name(unit.function)}`."
        )


def _is_array_at_first(threading: StateThreading, value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        name = threading.program.qualified(value.func) or ""
        return name.startswith(("jax.numpy.", "jax.random."))
    if isinstance(value, ast.Constant):
        return type(value.value) is float
    return False


# -- ys ----------------------------------------------------------------------------------------------------------------


def _collect(threading: StateThreading, unit: Unit, site: Site, caller: FunctionNode | None) -> None:
    program, call = threading.program, site.call
    if site.consumer != "jax.lax.scan":
        raise _by_hand(threading, unit, "stores a value that no carry holds yet")
    text = program.text_of[call]
    names: list[str] = []
    for state in unit.gives:
        here = threading.found.at_site(state, site)
        local = threading.local(unit.function, state)
        name = threading.fresh(caller, plural(local), f"{here.stem}_steps", at=call)
        threading.draft.new_parameters.add(name)
        names.append(name)
        if not isinstance(here, Carried):
            threading.then(f"{threading.text_at(here, caller, call)} = {name}[-1]")
        elif (
            not isinstance(here, Collected)
            and (line := _extended(threading, here, name)) is not None
            and _is_sink(threading, here, caller)
        ):
            threading.then(line)
        else:
            raise _by_hand(threading, unit, "stores more than the value itself")
    nothing = all(_second_is_none(statement) for statement in returns_of(program, unit.function))
    statement, parent = statement_of(program, call), program.parent[call]
    added = ", ".join(names) if nothing and len(names) == 1 else f"({', '.join(names)})"
    if isinstance(statement, ast.Assign) and parent is statement and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and not isinstance(target.elts[1], ast.Starred):
            second = target.elts[1]
            if nothing and _is_unused(threading, second):
                threading.add(text, *insertions.replace(text, second, added))
            elif nothing:
                raise _by_hand(threading, unit, "returns nothing for each step, and that is used")
            else:
                threading.add(text, *insertions.replace(text, second, f"({text.of(second)}, {', '.join(names)})"))
            threading.follow(statement, hoisted=False)
            return
    if nothing:
        _hoist(threading, unit, call, caller, ("carry", added), True)
    else:
        raise _by_hand(threading, unit, "gives its results to a larger expression")


def _is_sink(threading: StateThreading, state: State, caller: FunctionNode | None) -> bool:
    return threading.found.is_sink(caller, state)


def _extended(threading: StateThreading, state: Carried, name: str) -> str | None:
    """``path.extend(hops)`` for ``path.append(hop)``."""
    match state.statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=container, attr="append"), args=[argument], keywords=[])):
            direct = argument is state.value or (isinstance(argument, ast.Name) and state.value is None)
            if not direct or state.before or state.uses_self:
                return None
            return f"{threading.program.text_of[container].of(container)}.extend({name})"
        case _:
            return None


def _is_unused(threading: StateThreading, target: ast.expr) -> bool:
    if not isinstance(target, ast.Name):
        return False
    owner = threading.program.owner(target)
    return owner is not None and not threading.program.loads(owner, target.id)


def _second_is_none(statement: ast.Return) -> bool:
    match statement.value:
        case ast.Tuple(elts=[_, ast.Constant(value=None)]):
            return True
        case _:
            return False


def _hoist(
    threading: StateThreading,
    unit: Unit,
    call: ast.Call,
    caller: FunctionNode | None,
    parts: tuple[str, str],
    scan: bool,
) -> None:
    """The loop on a line of its own, where its result is only part of an expression."""
    program = threading.program
    text, statement, parent = program.text_of[call], statement_of(program, call), program.parent[call]
    threading.binding.check_binding_place(call, statement, caller)
    stem, added = parts
    number: object = None
    match parent:
        case ast.Subscript(value=value, slice=ast.Constant(value=0 | 1 as number)) if value is call and scan:
            pass
        case _:
            if scan:
                raise _by_hand(threading, unit, "gives its results to a larger expression")
    carry = threading.unused() if scan and number == 1 else threading.fresh(caller, stem, "last", at=call)
    threading.draft.new_parameters.add(carry)
    if not scan:
        target, whole, replaced = f"{carry}{added}", carry, call
    elif added.startswith(", "):
        outputs = threading.unused() if number == 0 else threading.fresh(caller, "outputs", at=call)
        target = f"({carry}{added}), {outputs}"
        whole, replaced = (carry if number == 0 else outputs), parent
        threading.draft.new_parameters.add(outputs)
    else:
        if number == 1:
            raise _by_hand(threading, unit, "returns nothing for each step, and that is used")
        target, whole, replaced = f"{carry}, {added}", carry, parent
    rendered = threading.rendered(text, call)
    threading.before(text, statement, f"{target} = {rendered}")
    threading.follow(statement, hoisted=True)
    threading.add(text, *insertions.replace(text, replaced, whole))


# -- returns -----------------------------------------------------------------------------------------------------------


def emit_returns(threading: StateThreading, unit: Unit) -> None:
    """The return statements of a loop's body."""
    program, body = threading.program, unit.function
    text = program.text_of[body]
    (site,) = threading.found.paths.of(body)
    names = ", ".join(threading.local(body, state) for state in unit.gives)
    carried = all(state in unit.needs for state in unit.gives)
    statements = returns_of(program, body)
    if not statements or statements[-1] not in body.body:  # type: ignore[union-attr]
        raise _by_hand(threading, unit, "does not end in a return statement")
    for statement in statements:
        value = statement.value
        if value is None:
            raise _by_hand(threading, unit, "returns nothing")
        if site.consumer != "jax.lax.scan":
            bare = isinstance(value, ast.Tuple) and text.of(value)[0] != "("
            threading.add(
                text, *insertions.wrap(text, value, "(" if bare else "", (")" if bare else "") + f", {names}")
            )
            continue
        if not isinstance(value, ast.Tuple) or len(value.elts) != 2:
            raise Refused(
                f"`{short_text(program, statement)}` (line {statement.lineno}) is not written as a pair of carry and "
                f"output. Write it so, then add {names} to it."
            )
        first, second = value.elts
        if carried:
            threading.add(text, *insertions.wrap(text, first, "(", f", {names})"))
        elif isinstance(second, ast.Constant) and second.value is None:
            joined = names if len(unit.gives) == 1 else f"({names})"
            threading.add(text, *insertions.replace(text, second, joined))
        else:
            threading.add(text, *insertions.wrap(text, second, "(", f", {names})"))
