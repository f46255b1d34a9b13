"""State that functions keep outside of themselves: globals, nonlocals, attributes and items, and who touches them."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Literal

from jaxleak_magic.rewrite.call_paths import self_parameter
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope

MUTATORS = frozenset(
    ("append", "extend", "insert", "add", "appendleft", "extendleft", "put", "update", "setdefault", "push")
)
"""Methods of containers that store their argument."""


@dataclass(frozen=True)
class State:
    """A place that outlives a call.

    Attributes:
        owner: the scope that binds the root; for an attribute of ``self`` the class scope.
        root: name of the root variable, or the empty string for ``self``.
        path: text after the root: ``".field"``, ``"['k']"``, or nothing for a plain name.
    """

    owner: Scope
    root: str
    path: str

    @property
    def of_self(self) -> bool:
        """Whether it is an attribute of whatever object the method is called on."""
        return not self.root

    @property
    def stem(self) -> str:
        """What a local variable for the value is called."""
        if not self.path:
            return self.root
        words = [word.lstrip("_") for word in re.findall(r"[^\W\d]\w*", self.path)]
        word = words[-1] if words else self.root
        return word if word and not keyword.iskeyword(word) else self.root or "value"


@dataclass(frozen=True)
class Access:
    """One place that touches a state.

    Attributes:
        node: the name, attribute or subscript.
        kind: ``opaque`` where only a part of the way to it stands there, so that it is not sure what is read.
    """

    node: ast.expr
    kind: Literal["read", "write", "augmented", "opaque"]


def key_text(key: object) -> str:
    """A constant key as it is written: with double quotes where it is a string."""
    text = repr(key)
    return f'"{text[1:-1]}"' if isinstance(key, str) and text[0] == "'" and '"' not in text else text


def state_at(program: Program, node: ast.expr, function: FunctionNode) -> State | None:
    """The state outside of a function that an expression in it means, or None where there is none for sure."""
    path = ""
    base = node
    while not isinstance(base, ast.Name):
        if isinstance(base, ast.Attribute):
            path = f".{base.attr}{path}"
        elif isinstance(base, ast.Subscript) and isinstance(base.slice, ast.Constant):
            path = f"[{key_text(base.slice.value)}]{path}"
        else:
            return None
        base = base.value
    owner = program.owner(base)
    own = program.own_scope[function]
    if owner is None or owner.kind not in ("module", "function"):
        return None
    if owner.kind == "function" and owner.is_inside(own):
        if path and _is_self(program, owner, base.id):
            return State(program.scope_at[owner.node], "", path)  # type: ignore[index]
        return None
    if path:
        if _is_self(program, owner, base.id):
            return State(program.scope_at[owner.node], "", path)  # type: ignore[index]
        site = program.only_site(owner, base.id)
        if site is None or site.kind == "import":
            return None
    return State(owner, base.id, path)


def _is_self(program: Program, owner: Scope, name: str) -> bool:
    node = owner.node
    if not isinstance(node, ast.FunctionDef):
        return False
    parameter = self_parameter(program, node)
    return parameter is not None and parameter.arg == name and program.only_site(owner, name) is not None


def accesses(program: Program, state: State) -> Iterator[Access]:
    """Every place in the program that touches a state, also by a part of its path."""
    for node in list(program.scope_at):
        if isinstance(node, ast.Name) and _is_root(program, state, node):
            found = _access(program, state, node)
            if found is not None:
                yield found


def _is_root(program: Program, state: State, node: ast.Name) -> bool:
    owner = program.owner(node)
    if owner is None:
        return False
    if not state.of_self:
        return owner is state.owner and node.id == state.root
    return _is_self(program, owner, node.id) and program.scope_at[owner.node] is state.owner  # type: ignore[index]


def _access(program: Program, state: State, name: ast.Name) -> Access | None:
    """Climb from the root as far as the path goes."""
    node: ast.expr = name
    path = ""
    whole = state.container if isinstance(state, Carried) else state.path
    while path != whole:
        above = program.parent[node]
        if isinstance(above, ast.Attribute) and above.value is node:
            path += f".{above.attr}"
        elif isinstance(above, ast.Subscript) and above.value is node and isinstance(above.slice, ast.Constant):
            path += f"[{key_text(above.slice.value)}]"
        else:
            return Access(node, "opaque")
        if not whole.startswith(path):
            return None  # another attribute or item of the same object
        node = above
    if isinstance(state, Carried):
        return Access(node, "opaque")
    if isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
        return Access(node, "read")
    return Access(node, "augmented" if isinstance(program.parent[node], ast.AugAssign) else "write")


@dataclass(frozen=True)
class Carried(State):
    """A value that comes out so that a statement can be made with it where the function was called.

    Its path is that of the container, and a mark that tells it from all other values.

    Attributes:
        name: the local variable of the writing function that holds the value.
        statement: the statement that is made there instead.
        before: statements that it needs before it.
        value: the expression in the statement that the variable stands for, where it has no name of its own yet.
        uses_self: whether ``self`` occurs in the statements.
        receiver: what ``self`` is called there, or None while it is still ``self``.
    """

    name: str = ""
    statement: ast.stmt | None = None
    before: tuple[ast.stmt, ...] = ()
    value: ast.expr | None = None
    uses_self: bool = False
    receiver: str | None = None

    @property
    def stem(self) -> str:
        """What a local variable for the value is called."""
        return self.name

    @property
    def container(self) -> str:
        """The path of the container that takes the value."""
        return self.path.partition("@")[0]


@dataclass(frozen=True)
class Collected(Carried):
    """The values that several calls, or a loop, append to one list: a list of the function's own comes out.

    The list has the name of the one outside; ``statement`` is the first that appends.

    Attributes:
        gathered: whether it takes the lists of several calls.
    """

    gathered: bool = False

    def takes(self, given: State) -> bool:
        """Whether what a call gives goes into this list: a value, or a list of which several come."""
        if not isinstance(given, Carried) or given.statement is not self.statement:
            return False
        return self.gathered and not given.gathered if isinstance(given, Collected) else not self.gathered


def starts_as_empty_list(program: Program, owner: Scope, name: str) -> bool:
    """Whether a name is bound once, to a list without elements."""
    site = program.only_site(owner, name)
    value = program.assigned_value(site) if site is not None else None
    return isinstance(value, ast.List) and not value.elts


_ONLY_READ = ("builtins.", "jax.numpy.", "numpy.")
"""Libraries whose functions keep no list that they are given."""


def may_get_another_name(program: Program, list_read: ast.expr) -> bool:
    """Whether something else may refer to a list after it is read here: through that it could be read in between."""
    parent = program.parent[list_read]
    if isinstance(parent, ast.keyword):
        list_read, parent = parent, program.parent[parent]  # type: ignore[assignment]
    match parent:
        case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
            return True
        case ast.Call(func=called):
            return called is not list_read and not (program.qualified(called) or "").startswith(_ONLY_READ)
        case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
            return not isinstance(program.parent[parent], ast.Expr)
        case _:
            return False


def is_only_attribute(program: Program, path: str, targets: Set[ast.expr]) -> bool:
    """Whether functions use an attribute only here, whatever object it is of, and it is set once, to an empty list.

    Args:
        program: all texts.
        path: ``".name"``.
        targets: where it is used.
    """
    name = path.rpartition(".")[2]
    if path != f".{name}":
        return False
    stores = 0
    for node in _named(program, name):
        if not isinstance(node, ast.Attribute):
            return False  # a class attribute, or the name in a string
        function = program.enclosing_function(node)
        if isinstance(node.ctx, ast.Load):
            if node not in targets and (function is not None or may_get_another_name(program, node)):
                return False
            continue
        stores += 1
        if not _begins_empty(program, node, function):
            return False
    return stores == 1


def _named(program: Program, name: str) -> Iterator[ast.AST]:
    """Attributes of a name, and what may be one: a variable of a class body, or the name in a string."""
    for node in program.text_of:
        match node:
            case ast.Attribute(attr=attribute) if attribute == name:
                yield node
            case ast.Constant(value=str() as text) if text == name:
                yield node
            case ast.Name(id=variable) if variable == name and program.scope_at[node].kind == "class":
                yield node
            case _:
                pass


def _begins_empty(program: Program, target: ast.Attribute, function: FunctionNode | None) -> bool:
    """Whether ``self.kept = []`` in ``__init__``, or ``net.kept = []`` at top level, sets the attribute."""
    if function is not None and getattr(function, "name", None) != "__init__":
        return False
    match program.parent[target]:
        case ast.Assign(targets=[_], value=ast.List(elts=[])):
            return True
        case ast.AnnAssign(value=ast.List(elts=[])):
            return True
        case _:
            return False


def starts_as_number(program: Program, state: State) -> bool:
    """Whether a state is first bound to a number."""
    values: list[ast.expr | None] = []
    if not state.path:
        sites = [s for s in program.sites(state.owner, state.root) if s.kind != "augmented"]
        values = [program.assigned_value(site) for site in sites]
        values = values[:1] if values else []
    elif isinstance(state.owner.node, ast.ClassDef):
        for node in ast.walk(state.owner.node):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=name) | ast.Name(id=name)], value=value):
                    if name == state.path[1:]:
                        values.append(value)
                        break
                case _:
                    pass
    return bool(values) and all(
        isinstance(v, ast.Constant) and isinstance(v.value, int | float) and not isinstance(v.value, bool)
        for v in values
    )
