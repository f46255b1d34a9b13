"""Writes to what lies outside of a function, and what of each has to come out of it instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite.call_paths import CallPaths, self_parameter
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_units import statement_of
from jaxleak_magic.rewrite.states import MUTATORS
from jaxleak_magic.rewrite.texts import Text

_PYTREE_CALLABLES = ("jax.linearize", "jax.vjp")
"""Calls whose second result is a function that is a pytree: it can be returned from ``jit``."""

_ARRAY_ATTRIBUTES = frozenset(
    (  # noqa: SIM905
        "T all any argmax argmin argsort astype at clip conj conjugate copy cumprod cumsum diagonal dot dtype flat "
        "flatten imag item itemsize mT max mean min nbytes ndim nonzero prod ptp ravel real repeat reshape round "
        "searchsorted shape size sort squeeze std sum swapaxes take trace transpose var view get items keys values"
    ).split()
)
"""Attributes of ``jax.Array`` (JAX 0.10.2), and those of dicts, which JAX returns too."""


@dataclass(frozen=True)
class Write:
    """One statement that writes outside of its function.

    Attributes:
        function: the function.
        statement: the statement.
        target: what is assigned, or the container whose method is called.
        value: what is stored, or None for an in-place change that stores nothing new.
    """

    function: FunctionNode
    statement: ast.stmt
    target: ast.expr
    value: ast.expr | None

    @property
    def is_call(self) -> bool:
        """Whether a method of a container stores the value."""
        return isinstance(self.statement, ast.Expr)


def writes_in(program: Program, function: FunctionNode) -> Iterator[Write]:
    """Every statement in a function's own body that writes outside of it, in order."""
    if isinstance(function, ast.Lambda):
        return
    own = program.own_scope[function]
    statements = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and program.scope_at.get(n) is own]
    for statement in sorted(statements, key=program.text_of[function].start):
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in _flattened(targets):
                    if _is_outside(program, target, function):
                        yield Write(function, statement, target, value)
            case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                if _is_outside(program, target, function):
                    yield Write(function, statement, target, value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=container, attr=method)) as call):
                stored = call.args[-1] if call.args else call if call.keywords else None
                if stored is None or method not in MUTATORS or _is_users_method(program, container, method):
                    continue
                if _is_outside(program, container, function):
                    yield Write(function, statement, container, stored)
            case _:
                pass


def _is_users_method(program: Program, owner: ast.expr, name: str) -> bool:
    """Whether an object is certainly of a class of the user's that has this method."""
    definition = CallPaths(program).instance_class(owner)
    return definition is not None and any(isinstance(n, ast.FunctionDef) and n.name == name for n in definition.body)


def _flattened(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flattened(target.elts)
        else:
            yield target


def _is_outside(program: Program, target: ast.expr, function: FunctionNode) -> bool:
    base = target
    while isinstance(base, ast.Attribute | ast.Subscript | ast.Starred):
        base = base.value
    if not isinstance(base, ast.Name):
        return False
    return _root_is_outside(program, base, function)


def _root_is_outside(program: Program, base: ast.Name, function: FunctionNode) -> bool:
    owner = program.owner(base)
    if owner is None:
        return False
    if owner.is_inside(program.own_scope[function]):
        parameter = self_parameter(program, function)
        return parameter is not None and parameter.arg == base.id and program.only_site(owner, base.id) is not None
    if owner.kind == "module":
        sites = program.sites(owner, base.id)
        return bool(sites) and all(site.kind not in ("import", "def", "star") for site in sites)
    return True


class Values:
    """What is certainly an array, or a pytree of arrays, in one function.

    Args:
        program: all texts.
        function: the function.
        known: names that are known to hold a tracer.
    """

    def __init__(self, program: Program, function: FunctionNode, known: frozenset[str] = frozenset()) -> None:
        self.program = program
        self.function = function
        self.known = known
        self._asked: set[str] = set()

    def may_be_traced(self, node: ast.expr) -> bool:
        """Whether a value depends on something that may be traced: an argument, or what JAX computes."""
        return any(self._is_traced_leaf(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Call))

    def _is_traced_leaf(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return (self.program.qualified(node.func) or "").startswith(("jax.", "optax.", "flax.", "equinox."))
        assert isinstance(node, ast.Name)
        owner = self.program.owner(node)
        if owner is None or owner.kind == "module":
            return False
        parameter = self_parameter(self.program, self.function)
        if parameter is not None and parameter.arg == node.id:
            return False
        if owner is not self.program.own_scope[self.function]:
            return True
        if node.id in self._asked:
            return True
        self._asked.add(node.id)
        try:
            values = [self.program.assigned_value(site) for site in self.program.sites(owner, node.id)]
            return any(value is None or self.may_be_traced(value) for value in values)
        finally:
            self._asked.discard(node.id)

    def is_array(self, node: ast.expr, depth: int = 12) -> bool:
        """Whether an expression certainly gives an array or a pytree that JAX can return."""
        if depth == 0:
            return False
        match node:
            case ast.Constant(value=value):
                return isinstance(value, int | float | complex) or value is None
            case ast.BinOp():
                return self.is_array(node.left, depth - 1) or self.is_array(node.right, depth - 1)
            case ast.UnaryOp(operand=operand):
                return self.is_array(operand, depth - 1)
            case ast.Compare():
                return self.is_array(node.left, depth - 1) or any(self.is_array(c, depth - 1) for c in node.comparators)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return all(self.is_array(e, depth - 1) for e in elements)
            case ast.Dict(keys=keys, values=values):
                plain = all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in keys)
                return plain and all(self.is_array(v, depth - 1) for v in values)
            case ast.IfExp():
                return self.is_array(node.body, depth - 1) and self.is_array(node.orelse, depth - 1)
            case ast.Subscript(value=value):
                return self.is_array(value, depth - 1)
            case ast.Attribute(value=value, attr=attribute):
                return attribute in ("T", "real", "imag", "mT") and self.is_array(value, depth - 1)
            case ast.Call():
                return self._is_array_call(node, depth)
            case ast.Name():
                return self._is_array_name(node, depth)
            case _:
                return False

    def _is_array_call(self, node: ast.Call, depth: int) -> bool:
        name = self.program.qualified(node.func) or ""
        if name.startswith(("jax.numpy.", "jax.nn.", "jax.lax.", "jax.random.", "jax.scipy.", "jax.ops.", "flax.nnx.")):
            return not name.rpartition(".")[2][:1].isupper()
        if name.startswith(("optax.apply_updates", "optax.losses", "optax.global_norm")):
            return True
        if name in ("jax.tree.map", "jax.tree_util.tree_map"):
            return True
        if self._makes_pytree(node):
            return True
        if isinstance(node.func, ast.Attribute) and not name:
            return _is_indexed_update(node.func) or self.is_array(node.func.value, depth - 1)
        return False

    def _makes_pytree(self, node: ast.Call) -> bool:
        """Whether a call makes an object of a class that is a pytree, or a changed copy of one by its own method."""
        paths = CallPaths(self.program)
        if isinstance(node.func, ast.Name):
            definition = self.program.definition(node.func)
            return isinstance(definition, ast.ClassDef) and self._is_pytree_class(definition)
        if not isinstance(node.func, ast.Attribute):
            return False
        definition = paths.instance_class(node.func.value)
        if definition is None and isinstance(node.func.value, ast.Name):
            owner = self.program.owner(node.func.value)
            sites = self.program.sites(owner, node.func.value.id) if owner is not None else []
            values = [v for s in sites if (v := self.program.assigned_value(s)) is not None and v is not node]
            made = {paths.instance_class(v) for v in values}
            definition = made.pop() if len(made) == 1 else None
        if definition is None or not self._is_pytree_class(definition):
            return False
        if node.func.attr in ("_replace", "replace"):
            return True
        method = next((n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == node.func.attr), None)
        if method is None or method.decorator_list:
            return False
        returned = [n.value for n in ast.walk(method) if isinstance(n, ast.Return)]
        return bool(returned) and all(
            isinstance(v, ast.Call)
            and (
                (isinstance(v.func, ast.Attribute) and v.func.attr in ("_replace", "replace"))
                or (isinstance(v.func, ast.Name) and v.func.id == definition.name)
            )
            for v in returned
        )

    def _is_pytree_class(self, definition: ast.ClassDef) -> bool:
        names = [self.program.qualified(base) for base in definition.bases]
        names += [self.program.qualified(d.func if isinstance(d, ast.Call) else d) for d in definition.decorator_list]
        return any(
            name in ("typing.NamedTuple", "flax.struct.dataclass", "flax.struct.PyTreeNode", "equinox.Module",
                     "jax.tree_util.register_dataclass", "jax.tree_util.register_pytree_node_class")
            for name in names
        )  # fmt: skip

    def _is_array_name(self, node: ast.Name, depth: int) -> bool:
        if node.id in self.known:
            return True
        owner = self.program.owner(node)
        if owner is None or owner.kind == "module":
            return False
        parameter = self_parameter(self.program, self.function)
        if parameter is not None and parameter.arg == node.id:
            return False
        sites = self.program.sites(owner, node.id)
        if not sites:
            return False
        for site in sites:
            if site.kind == "parameter":
                if owner is not self.program.own_scope[self.function] or not self._is_traced_parameter(site.node):
                    return False
                continue
            if site.kind == "augmented":
                continue
            value = self.program.assigned_value(site)
            if value is None:
                value = self._unpacked(site.node)
            if value is None or not self.is_array(value, depth - 1):
                return False
        return True

    def _is_traced_parameter(self, parameter: ast.AST) -> bool:
        """A parameter without a default of a function that no option makes static."""
        arguments = self.function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        if not isinstance(parameter, ast.arg) or parameter not in positional or self._is_no_array(parameter.arg):
            return False
        if positional.index(parameter) >= len(positional) - len(arguments.defaults):
            return False
        for decorator in getattr(self.function, "decorator_list", []):
            for option in decorator.keywords if isinstance(decorator, ast.Call) else []:
                if option.arg == "static_argnames":
                    return False
                if option.arg == "static_argnums" and not (
                    isinstance(option.value, ast.Constant) and option.value.value != positional.index(parameter)
                ):
                    return False
        return True

    def _is_no_array(self, parameter: str) -> bool:
        """Whether a parameter is called, or has an attribute that no array has: a function or another object."""
        for load in self.program.loads(self.program.own_scope[self.function], parameter):
            match self.program.parent[load]:
                case ast.Call(func=func) if func is load:
                    return True
                case ast.Attribute(attr=attribute) if attribute not in _ARRAY_ATTRIBUTES:
                    return True
                case _:
                    pass
        return False

    def _unpacked(self, name: ast.AST) -> ast.expr | None:
        """The right side of which a name takes a part."""
        node = name
        while isinstance(node, ast.Name | ast.Tuple | ast.List | ast.Starred):
            node = self.program.parent[node]
        if not isinstance(node, ast.Assign):
            return None
        if isinstance(node.value, ast.Call) and self.program.qualified(node.value.func) in _PYTREE_CALLABLES:
            return ast.Constant(value=0)  # both results are pytrees
        return node.value


def _is_indexed_update(method: ast.Attribute) -> bool:
    """Whether a method is that of ``x.at[i].set(y)``, which only arrays have."""
    match method:
        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(attr="at"))):
            return True
        case _:
            return False


def cannot_move(program: Program, write: Write) -> Refused:
    """The refusal of a write of a form that is not understood."""
    name = function_name(program, write.function)
    return Refused(
        f"On line {write.statement.lineno}, `{name}` stores a value with `{short_text(program, write.statement)}`. "
        f"Return the value from `{name}` instead, and store it where `{name}` is called."
    )


def write_at(program: Program, line: int, is_here: object) -> Write | None:
    """The write on a line of a text, or None where there is none or it is not understood."""
    for function in program.functions():
        if program.text_of[function] is not is_here:
            continue
        for write in writes_in(program, function):
            stop = write.statement.end_lineno or write.statement.lineno
            if write.statement.lineno <= line <= stop and statement_of(program, write.target) is write.statement:
                return write
    return None


def sets_flag(text: Text, guard: ast.If, flag: ast.expr) -> bool:
    """Whether a block ends by setting the flag that guards it."""
    return any(
        isinstance(s, ast.Assign)
        and text.of(s.targets[0]) == text.of(flag)
        and isinstance(s.value, ast.Constant)
        and s.value.value is True
        for s in guard.body
    )
