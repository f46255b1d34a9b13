"""A statement that stores a value moves out to where the function is called; the values that it needs come out too."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.call_paths import Site, self_parameter
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.own_lists import own_list
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_writes import Values, Write, cannot_move
from jaxleak_magic.rewrite.states import Carried, Collected, State, state_at
from jaxleak_magic.rewrite.texts import Text, TextEdit, apply_edits

if TYPE_CHECKING:
    from jaxleak_magic.rewrite.state_threading import StateThreading
    from jaxleak_magic.rewrite.state_units import Unit


def carried_values(program: Program, write: Write, values: Values) -> list[tuple[FunctionNode, State]]:
    """The values that have to come out so that the write can be made outside.

    Raises:
        Refused: where one of them is not certainly a value that JAX can return.
    """
    function, statement = write.function, write.statement
    assert not isinstance(function, ast.Lambda)
    assert write.value is not None
    name = function_name(program, function)
    if (collected := own_list(program, write, values)) is not None:
        return [(function, collected)]
    if statement not in function.body:
        raise Refused(
            f"On line {statement.lineno}, `{name}` stores a value under a condition or in a loop. Collect the values "
            f"in a local variable, return it from `{name}`, and store it where `{name}` is called."
        )
    root = _root(write.target)
    owner = program.owner(root)
    assert owner is not None
    parameter = self_parameter(program, function)
    of_self = parameter is not None and parameter.arg == root.id
    if of_self:
        owner = program.scope_at[function]
    container = _path(write)
    whole = isinstance(statement, ast.Expr) and write.value is statement.value  # ``metrics.update(loss=loss)``
    named = isinstance(write.value, ast.Name) or _is_display(write.value)
    if not whole and not named and values.is_array(write.value):
        parts: dict[str, ast.expr | None] = {_stem(write): write.value}
        before: list[ast.stmt] = []
        names = set(_names(program, statement, function, skip=write.value))
        if names - ({parameter.arg} if parameter else set()):
            raise cannot_move(program, write)
        uses_self = bool(names)
    else:
        parts, before, uses_self = _sliced(program, write, values)
    return [
        (
            function,
            Carried(
                owner,
                "" if of_self else root.id,
                f"{container}@{statement.lineno}:{part}",
                part,
                statement,
                tuple(before),
                value,
                uses_self or of_self,
            ),
        )
        for part, value in parts.items()
    ]


def _sliced(program: Program, write: Write, values: Values) -> tuple[dict[str, ast.expr | None], list[ast.stmt], bool]:
    """(the values needed, statements to take along, whether ``self`` occurs)."""
    function, statement = write.function, write.statement
    own = program.own_scope[function]
    parameter = self_parameter(program, function)
    text = program.text_of[function]
    needed: dict[str, ast.expr | None] = {}
    before: dict[ast.stmt, None] = {}
    uses_self = False
    waiting: list[ast.stmt] = [statement]
    while waiting:
        current = waiting.pop()
        for name in _names(program, current, function):
            if parameter is not None and name == parameter.arg:
                uses_self = True
                continue
            if name in needed:
                continue
            sites = program.sites(own, name)
            if any(text.start(site.node) > text.start(statement) or _in_loop(program, site.node) for site in sites):
                raise Refused(f"`{name}` changes after line {statement.lineno}. Return its value by hand.")
            if values.is_array(_load(current, name)):
                needed[name] = None
                continue
            site = program.only_site(own, name)
            defining = None if site is None else _defining(program, site.node)
            if defining is None or defining not in getattr(function, "body", []):
                raise cannot_move(program, write)
            if defining not in before:
                before[defining] = None
                waiting.append(defining)
    if not needed:
        raise cannot_move(program, write)
    ordered = sorted(before, key=text.start)
    return (
        dict(sorted(needed.items(), key=lambda each: text.start(program.sites(own, each[0])[0].node))),
        ordered,
        uses_self,
    )


def _load(inside: ast.AST, name: str) -> ast.Name:
    return next(n for n in ast.walk(inside) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))


def _names(program: Program, node: ast.AST, function: FunctionNode, skip: ast.AST | None = None) -> Iterator[str]:
    """Names of the function's own variables that occur in a statement, without those that it binds itself."""
    left_out = set(ast.walk(skip)) if skip is not None else set[ast.AST]()
    own = program.own_scope[function]
    for each in ast.walk(node):
        if not isinstance(each, ast.Name) or each in left_out or not isinstance(each.ctx, ast.Load):
            continue
        if program.owner(each) is own:
            yield each.id


def _in_loop(program: Program, node: ast.AST) -> bool:
    current: ast.AST | None = node
    while current is not None and not isinstance(current, FunctionNode):
        if isinstance(current, ast.For | ast.While | ast.AsyncFor):
            return True
        current = program.parent.get(current)
    return False


def _defining(program: Program, node: ast.AST) -> ast.stmt | None:
    """The plain statement that binds a name, or None where it is of another form."""
    if isinstance(node, ast.FunctionDef):
        return node
    parent = program.parent[node]
    return parent if isinstance(parent, ast.Assign) and parent.targets == [node] else None


def _root(target: ast.expr) -> ast.Name:
    base = target
    while isinstance(base, ast.Attribute | ast.Subscript | ast.Starred):
        base = base.value
    assert isinstance(base, ast.Name)
    return base


def _path(write: Write) -> str:
    """The path of the container: what stands before a key, or of the object whose method is called."""
    node = write.target
    while isinstance(node, ast.Subscript):
        node = node.value
    path = ""
    while isinstance(node, ast.Attribute):
        path = f".{node.attr}{path}"
        node = node.value
    return path


def _stem(write: Write) -> str:
    target = write.target
    if isinstance(target, ast.Attribute) and not write.is_call:
        return target.attr.lstrip("_") or "value"
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        key = target.slice.value
        if isinstance(key, str) and key.isidentifier():
            return key
    return "value"


def _is_display(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple | ast.List | ast.Dict)


# -- edits -------------------------------------------------------------------------------------------------------------


def emit_source(threading: StateThreading, unit: Unit, state: Carried) -> None:
    """Take a moved statement out of the function, or leave there what the function itself still reads."""
    program, statement = threading.program, state.statement
    assert statement is not None
    if (unit.function, statement) in threading.moved:
        return
    threading.moved.add((unit.function, statement))
    text = program.text_of[statement]
    if state.value is not None:
        name = threading.local(unit.function, state)
        new = f"{name} = {text.of(state.value)}"
        threading.add(text, TextEdit(text.start(statement), text.stop(statement), 0, new))
        _check_not_read(threading, unit, state)
        return
    reads = _reads_after(threading, unit, state)
    if reads:
        if not all(_makes_equals(program, each) for each in ast.walk(statement) if isinstance(each, ast.Call)):
            raise _made_twice(threading, reads[0], statement)
        target = statement.targets[0]  # type: ignore[attr-defined]
        outside = state_at(program, target, unit.function)
        assert outside is not None
        local = threading.fresh(unit.function, outside.stem)
        threading.draft.variables.append(local)
        for node in (target, *reads):
            threading.add(text, *insertions.replace(text, node, local))
        return
    threading.remove(text, statement)
    for taken in state.before:
        if _is_only_used_in(program, taken, {statement, *state.before}, unit.function):
            threading.remove(text, taken)


def _reads_after(threading: StateThreading, unit: Unit, state: Carried) -> list[ast.expr]:
    """Where the function reads what it has just stored."""
    statement = state.statement
    found = [
        a.node
        for a in threading.found.accesses(state)
        if threading.program.enclosing_function(a.node) is unit.function and not _contains(statement, a.node)
    ]
    if not found:
        return []
    if not isinstance(statement, ast.Assign):
        raise _read_too(threading, state, found[0])
    outside = state_at(threading.program, statement.targets[0], unit.function)
    text = threading.program.text_of[statement]
    if outside is None:
        raise _read_too(threading, state, found[0])
    reads = [
        a
        for a in threading.found.accesses(outside)
        if threading.program.enclosing_function(a.node) is unit.function and not _contains(statement, a.node)
    ]
    if len(reads) != len(found) or any(a.kind != "read" or text.start(a.node) < text.start(statement) for a in reads):
        raise _read_too(threading, state, found[0])
    return [a.node for a in reads]


def _check_not_read(threading: StateThreading, unit: Unit, state: Carried) -> None:
    for access in threading.found.accesses(state):
        inside = threading.program.enclosing_function(access.node) is unit.function
        if inside and not _contains(state.statement, access.node):
            raise _read_too(threading, state, access.node)


def _read_too(threading: StateThreading, state: Carried, node: ast.expr) -> Refused:
    return Refused(
        f"`{short_text(threading.program, node)}` is read on line {node.lineno} in the same function that stores a "
        "value in it. Use a local variable there, return it, and store it where the function is called."
    )


def _makes_equals(program: Program, call: ast.Call) -> bool:
    """Whether a call that is made twice gives objects that nobody can tell apart: neither has a state of its own."""
    name = program.qualified(call.func) or ""
    return name in ("functools.partial", "jax.tree_util.Partial", "builtins.tuple") or name.startswith("jax.numpy.")


def _made_twice(threading: StateThreading, node: ast.expr, statement: ast.stmt) -> Refused:
    return Refused(
        f"`{short_text(threading.program, node)}` is used on line {node.lineno} after it is stored on line "
        f"{statement.lineno}. Outside the function its value would be made anew, without what happened to it in "
        "between. Return it from the function, and store it where the function is called."
    )


def _contains(outer: ast.AST | None, node: ast.AST) -> bool:
    return outer is not None and any(each is node for each in ast.walk(outer))


def _is_only_used_in(program: Program, defining: ast.stmt, users: set[ast.stmt], function: FunctionNode) -> bool:
    name = defining.name if isinstance(defining, ast.FunctionDef) else defining.targets[0].id  # type: ignore[attr-defined]
    loads = program.loads(program.own_scope[function], name)
    return all(any(_contains(user, load) for user in users) for load in loads)


def moved_text(threading: StateThreading, values: Mapping[Carried, str], site: Site) -> list[str]:
    """The moved statement as it stands after the call, with the names that the values have there."""
    state = next(iter(values))
    if isinstance(state, Collected):
        return [f"{_list_at(threading.program, state, site)}.extend({values[state]})"]
    program, statement = threading.program, state.statement
    assert statement is not None
    text = program.text_of[statement]
    origin = program.enclosing_function(statement)
    assert origin is not None
    names = {each.name: new for each, new in values.items() if each.value is None}
    if site.is_mapped:
        _check_mapped(threading, state, statement)
    if _in_loop(program, site.call) and any(_makes_function(each) for each in (*state.before, statement)):
        raise Refused(
            f"What is stored on line {statement.lineno} keeps a function that would see later values of the loop "
            f"around line {site.call.lineno}. Make it in a function of its own by hand."
        )
    parts: list[str] = []
    for each in (*state.before, statement):
        value = state.value if each is statement else None
        parts.append(_renamed(threading, each, names, value, values[state], state, site, origin, text))
    return parts


def _list_at(program: Program, state: Collected, site: Site) -> str:
    """How the list outside is written where the function is called."""
    root = state.root
    if state.of_self:
        caller = program.enclosing_function(site.call)
        parameter = self_parameter(program, caller) if caller is not None else None
        root = parameter.arg if parameter is not None else ""
    elif program.scope_at[site.call].lookup(root) is not state.owner:
        root = ""
    if not root:
        where = f"`{state.root or 'self'}` is not visible on line {site.call.lineno}"
        raise Refused(f"{where}. Store the values by hand.")
    return f"{root}{state.container}"


def _makes_function(statement: ast.stmt) -> bool:
    return any(isinstance(node, FunctionNode) for node in ast.walk(statement))


def _check_mapped(threading: StateThreading, state: Carried, statement: ast.stmt) -> None:
    """Stacked values may only be stored as they are: a function made with them would not map over them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and node is not getattr(statement, "value", None):
            raise Refused(
                f"`{short_text(threading.program, node)}` on line {node.lineno} would get one value for each mapped "
                "row. Return the value from the mapped function, and say what is to be stored for all rows."
            )
    if state.before:
        raise Refused(
            f"What is stored on line {statement.lineno} is made for one mapped row. Return the value from the mapped "
            "function, and say what is to be stored for all rows."
        )


def _renamed(
    threading: StateThreading,
    statement: ast.stmt,
    names: Mapping[str, str],
    value: ast.expr | None,
    value_name: str,
    state: Carried,
    site: Site,
    origin: FunctionNode,
    text: Text,
) -> str:
    program = threading.program
    own, place = program.own_scope[origin], program.scope_at[site.call]
    start = text.start(statement)
    if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
        start = text.offset(statement.decorator_list[0].lineno, statement.col_offset)
    edits: list[TextEdit] = []
    if value is not None:
        edits.append(TextEdit(text.start(value) - start, text.stop(value) - start, 0, value_name))
    skipped = set(ast.walk(value)) if value is not None else set[ast.AST]()
    own_names = {_bound_name(each) for each in state.before}
    for node in ast.walk(statement):
        if not isinstance(node, ast.Name) or node in skipped:
            continue
        owner = program.owner(node)
        if owner is own:
            parameter = self_parameter(program, origin)
            if parameter is not None and node.id == parameter.arg:
                new = state.receiver or node.id
            elif node.id in own_names:
                new = node.id
                if place.lookup(node.id) is not None:
                    raise Refused(f"`{node.id}` means something else on line {site.call.lineno}. Rename one of them.")
                threading.draft.new_parameters.add(node.id)
            else:
                new = names.get(node.id, node.id)
            if new != node.id:
                edits.append(TextEdit(text.start(node) - start, text.stop(node) - start, 0, new))
        elif owner is not None and not owner.is_inside(own) and place.lookup(node.id) is not owner:
            raise Refused(
                f"`{node.id}` is not visible on line {site.call.lineno}, where the value has to be stored. Store it by "
                "hand where the function is called."
            )
    if isinstance(statement, ast.FunctionDef):
        own_name = statement.name
        if place.lookup(own_name) is not None:
            raise Refused(f"`{own_name}` means something else on line {site.call.lineno}. Rename one of them.")
        threading.draft.new_parameters.add(own_name)
    source = text.text[start : text.stop(statement)]
    if any(isinstance(n, ast.Constant | ast.JoinedStr) and n.end_lineno != n.lineno for n in ast.walk(statement)):  # type: ignore[attr-defined]
        raise Refused(f"A text over several lines would have to move (line {statement.lineno}). Move it by hand.")
    indent = text.indent_of_line(start) or ""
    new_source = apply_edits(source, edits).replace("\r\n", "\n").replace("\r", "\n")
    return textwrap.dedent(indent + new_source) if "\n" in new_source else new_source


def _bound_name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef):
        return statement.name
    assert isinstance(statement, ast.Assign)
    target = statement.targets[0]
    assert isinstance(target, ast.Name)
    return target.id
