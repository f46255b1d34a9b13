"""Which shape an array certainly has, by the text alone: for a loop whose carry must keep shape and dtype.

Only floating-point values of JAX's default dtype are followed, through expressions that are known to give such values
again and to do nothing else. Everything else is not known.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope

_ELEMENTWISE = frozenset(
    """
    abs arccos arcsin arctan arctanh cbrt ceil cos cosh erf exp exp2 expm1 fabs flip floor log log10 log1p log2
    negative reciprocal rsqrt sign sin sinc sinh sqrt square tan tanh ones_like zeros_like
    elu gelu log_sigmoid log_softmax relu sigmoid silu softmax softplus swish
    """.split()  # noqa: SIM905 (one word a line would take a page)
)
_PAIRWISE = frozenset("add arctan2 divide hypot logaddexp maximum minimum multiply subtract".split())  # noqa: SIM905
_REDUCTIONS = frozenset("max mean min prod std sum var".split())  # noqa: SIM905
_MODULES = ("jax.numpy", "jax.nn", "jax.lax", "jax.scipy.special")
_FILLED = frozenset(("jax.numpy.ones", "jax.numpy.zeros"))
_DRAWN = frozenset(("jax.random.normal", "jax.random.uniform"))
_KEYS = frozenset(("jax.random.PRNGKey", "jax.random.fold_in", "jax.random.key"))
_UPDATES = frozenset(("add", "multiply", "set"))
_DEEPEST_CALL = 6

Kind = Literal["int", "index", "float", "array"]


@dataclass(frozen=True)
class Value:
    """What is known of a value.

    Attributes:
        kind: a Python ``"int"`` or ``"float"``, the ``"index"`` of the loop, or an ``"array"`` of the default dtype.
        shape: of the array; ``()`` for numbers.
    """

    kind: Kind
    shape: tuple[int, ...] = ()

    @property
    def is_floating(self) -> bool:
        """Whether arithmetic with it gives floating-point numbers."""
        return self.kind in ("float", "array")


Names = dict[tuple[Scope, str], Value]
"""What the names of functions hold at one moment."""


class NotKnown(Exception):
    """Shape or dtype of an expression do not follow from the text.

    Args:
        node: the innermost part that is not known.
    """

    def __init__(self, node: ast.AST) -> None:
        super().__init__("not known")
        self.node = node


class ArrayShapes:
    """Follows values through expressions and statements.

    Args:
        program: all texts.
        indexes: the range of the loop's index, by the scope and name that hold it.
    """

    def __init__(self, program: Program, indexes: Mapping[tuple[Scope, str], range] | None = None) -> None:
        self._program = program
        self._indexes = dict(indexes or {})
        self._depth = 0

    def of(self, node: ast.expr, names: Names) -> Value:
        """What an expression gives.

        Raises:
            NotKnown: where that is not certain, or where evaluating it might do anything else.
        """
        match node:
            case ast.Constant(value=bool()):
                raise NotKnown(node)
            case ast.Constant(value=int()):
                return Value("int")
            case ast.Constant(value=float()):
                return Value("float")
            case ast.Name():
                return self._name(node, names)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return self.of(node.operand, names)
            case ast.BinOp():
                return self._operation(node, names)
            case ast.Subscript():
                return self._item(node, self.of(node.value, names), node.slice)
            case ast.Attribute(attr="T"):
                value = self.of(node.value, names)
                return Value("array", value.shape[::-1]) if value.kind == "array" else self._fail(node)
            case ast.Call():
                return self._call(node, names)
            case _:
                raise NotKnown(node)

    def run(self, statements: Sequence[ast.stmt], names: Names) -> None:
        """Follow assignments one after the other; ``names`` is changed.

        Raises:
            NotKnown: for anything that is no plain assignment to names.
        """
        for statement in statements:
            match statement:
                case ast.Assign(targets=[ast.Name() as target]):
                    names[self._key(target)] = self.of(statement.value, names)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    if len(targets) != len(values):
                        raise NotKnown(statement)
                    found = [self.of(value, names) for value in values]
                    for target, value in zip(targets, found, strict=True):
                        names[self._key(target)] = value
                case ast.AugAssign(target=ast.Name() as target):
                    held = self._held(target, names)
                    names[self._key(target)] = self._combine(statement, statement.op, held, statement.value, names)
                case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as assigned):
                    names[self._key(target)] = self.of(assigned, names)
                case ast.Expr(value=ast.Constant()):
                    pass  # a docstring
                case _:
                    raise NotKnown(statement)

    def call(self, function: FunctionNode, values: Sequence[Value], node: ast.expr, names: Names) -> Value:
        """What a function of the user's gives for these arguments.

        Raises:
            NotKnown: where that is not certain.
        """
        arguments = function.args
        given = [*arguments.posonlyargs, *arguments.args]
        plain = not (arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.defaults)
        if not plain or len(given) != len(values) or self._depth >= _DEEPEST_CALL:
            raise NotKnown(node)
        own = self._program.own_scope[function]
        inner = {**names, **{(own, a.arg): value for a, value in zip(given, values, strict=True)}}
        self._depth += 1
        try:
            if isinstance(function, ast.Lambda):
                return self.of(function.body, inner)
            if not isinstance(function, ast.FunctionDef) or not self._is_only_compiled(function):
                raise NotKnown(node)
            *before, last = function.body
            self.run(before, inner)
            if not isinstance(last, ast.Return) or last.value is None:
                raise NotKnown(node)
            return self.of(last.value, inner)
        finally:
            self._depth -= 1

    def integer(self, node: ast.expr) -> int:
        """The value of an integer that the text writes out, here or in the one assignment to a name at top level.

        Raises:
            NotKnown: where it does not.
        """
        value = self._constant(node)
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
            return -self.integer(value.operand)
        if isinstance(value, ast.Constant) and type(value.value) is int:
            return value.value
        raise NotKnown(node)

    def _fail(self, node: ast.AST) -> Value:
        raise NotKnown(node)

    def _is_only_compiled(self, function: ast.FunctionDef) -> bool:
        return all(self._program.qualified(decorator) == "jax.jit" for decorator in function.decorator_list)

    def _key(self, target: ast.expr) -> tuple[Scope, str]:
        owner = self._program.owner(target) if isinstance(target, ast.Name) else None
        if not isinstance(target, ast.Name) or owner is None or owner is not self._program.scope_at[target]:
            raise NotKnown(target)
        return owner, target.id

    def _held(self, name: ast.Name, names: Names) -> Value:
        key = self._key(name)
        return names[key] if key in names else self._fail(name)

    def _name(self, node: ast.Name, names: Names) -> Value:
        owner = self._program.owner(node)
        if owner is None:
            raise NotKnown(node)
        if (owner, node.id) in self._indexes:
            return Value("index")
        if (owner, node.id) in names:
            return names[owner, node.id]
        value = self._constant(node)
        return self.of(value, {}) if value is not node else self._fail(node)

    def _constant(self, node: ast.expr) -> ast.expr:
        """The one value that a name of the module is ever given; any other expression itself."""
        owner = self._program.owner(node) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or owner is None or owner.kind != "module":
            return node
        site = self._program.only_site(owner, node.id)
        value = self._program.assigned_value(site) if site is not None else None
        at_top = site is not None and isinstance(self._program.parent.get(self._program.parent[site.node]), ast.Module)
        return value if value is not None and at_top and not self._program.is_called_in_magic(node.id) else node

    def _operation(self, node: ast.BinOp, names: Names) -> Value:
        return self._combine(node, node.op, self.of(node.left, names), node.right, names)

    def _combine(self, node: ast.AST, op: ast.operator, left: Value, right_node: ast.expr, names: Names) -> Value:
        right = self.of(right_node, names)
        if isinstance(op, ast.MatMult):
            return self._product(node, left, right)
        if isinstance(op, ast.Pow):
            # With a number as exponent, dtype and shape are those of the base. Python's own powers may be complex.
            literal = isinstance(right_node, ast.Constant) and left.kind == "array"
            return left if literal else self._fail(node)
        if not isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            raise NotKnown(node)
        if not left.is_floating and not right.is_floating:
            return self._whole(node, op, left, right)
        shape = _broadcast(left.shape, right.shape)
        if shape is None:
            raise NotKnown(node)
        return Value("float" if {left.kind, right.kind} <= {"int", "float"} else "array", shape)

    def _whole(self, node: ast.AST, op: ast.operator, left: Value, right: Value) -> Value:
        """Python's integers have no end, those of a program have: only sums with the index cannot reach theirs."""
        numbers = left.kind == right.kind == "int"
        if isinstance(op, ast.Div):
            return Value("float" if numbers else "array")
        if isinstance(op, ast.Add | ast.Sub) or numbers:
            return Value("int" if numbers else "index")
        raise NotKnown(node)

    def _product(self, node: ast.AST, left: Value, right: Value) -> Value:
        ranks = len(left.shape), len(right.shape)
        if not left.kind == right.kind == "array" or not all(1 <= rank <= 2 for rank in ranks):
            raise NotKnown(node)
        if left.shape[-1] != right.shape[0]:
            raise NotKnown(node)
        return Value("array", (*left.shape[:-1], *right.shape[1:]))

    def _item(self, node: ast.AST, value: Value, key: ast.expr) -> Value:
        """``x[0]``, ``x[1:]``, or ``x[i]`` where the index of the loop stays inside."""
        if value.kind != "array" or not value.shape:
            raise NotKnown(node)
        length, rest = value.shape[0], value.shape[1:]
        if isinstance(key, ast.Slice):
            bounds = [None if b is None else self.integer(b) for b in (key.lower, key.upper)]
            if key.step is not None:
                raise NotKnown(node)
            return Value("array", (len(range(length)[slice(*bounds)]), *rest))
        owner = self._program.owner(key) if isinstance(key, ast.Name) else None
        if isinstance(key, ast.Name) and owner is not None and (owner, key.id) in self._indexes:
            steps = self._indexes[owner, key.id]
            inside = steps.start >= 0 and steps.stop <= length
        else:
            inside = -length <= self.integer(key) < length
        return Value("array", rest) if inside else self._fail(node)

    def _call(self, node: ast.Call, names: Names) -> Value:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise NotKnown(node)
        name = self._program.qualified(node.func)
        if name is not None and name.startswith("jax."):
            return self._library_call(node, name, names)
        if isinstance(node.func, ast.Call):
            return self._gradient(node, node.func, names)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, names)
        return self._user_call(node.func, node, names)

    def _user_call(self, callee: ast.expr, node: ast.Call, names: Names) -> Value:
        function = self._program.definition(callee)
        if not isinstance(function, FunctionNode) or node.keywords:
            raise NotKnown(node)
        if isinstance(callee, ast.Name) and self._program.is_called_in_magic(callee.id):
            raise NotKnown(node)
        return self.call(function, [self.of(argument, names) for argument in node.args], node, names)

    def _gradient(self, node: ast.Call, wrapped: ast.Call, names: Names) -> Value:
        """``jax.grad(loss)(w, x)`` has the shape of ``w`` where ``loss`` gives one number."""
        if self._program.qualified(wrapped.func) != "jax.grad" or len(wrapped.args) != 1 or wrapped.keywords:
            raise NotKnown(node)
        result = self._user_call(wrapped.args[0], node, names)
        first = self.of(node.args[0], names) if node.args else self._fail(node)
        if result != Value("array") or not first.is_floating:
            raise NotKnown(node)
        return Value("array", first.shape)

    def _method(self, node: ast.Call, method: ast.Attribute, names: Names) -> Value:
        updated = method.value
        if isinstance(updated, ast.Subscript) and isinstance(updated.value, ast.Attribute):
            return self._update(node, method.attr, updated, updated.value, names)
        value = self.of(method.value, names)
        if value.kind == "array" and method.attr in _REDUCTIONS and not node.args and not node.keywords:
            return Value("array")
        raise NotKnown(node)

    def _update(self, node: ast.Call, name: str, item: ast.Subscript, at: ast.Attribute, names: Names) -> Value:
        """``x.at[i].set(value)`` has the shape of ``x``."""
        if at.attr != "at" or name not in _UPDATES or len(node.args) != 1 or node.keywords:
            raise NotKnown(node)
        array, new = self.of(at.value, names), self.of(node.args[0], names)
        if not new.is_floating or new.shape not in ((), self._item(item, array, item.slice).shape):
            raise NotKnown(node)
        return array

    def _library_call(self, node: ast.Call, name: str, names: Names) -> Value:
        module, _, short = name.rpartition(".")
        if name in _FILLED or name in _DRAWN or name == "jax.numpy.full":
            return self._made(node, name, names)
        if node.keywords:
            raise NotKnown(node)
        if name in ("jax.numpy.array", "jax.numpy.asarray") and len(node.args) == 1:
            return self._written_out(node.args[0])
        if name in ("jax.numpy.arange", "jax.numpy.linspace"):
            return self._spaced(node, short, names)
        if name == "jax.numpy.roll" and len(node.args) == 2:
            self.integer(node.args[1])
            rolled = self.of(node.args[0], names)
            return rolled if rolled.kind == "array" else self._fail(node)
        values = [self.of(argument, names) for argument in node.args]
        shapes = [value.shape for value in values]
        floating = bool(values) and any(value.is_floating for value in values)
        if floating and len(values) == 1 and module in _MODULES:
            if short in _ELEMENTWISE:
                return Value("array", shapes[0])
            if short in _REDUCTIONS and module == "jax.numpy":
                return Value("array")
        if floating and name == "jax.numpy.linalg.norm" and len(values) == 1:
            return Value("array")
        if floating and len(values) == 2 and module == "jax.numpy":
            if short in ("dot", "matmul"):
                return self._product(node, *values)
            shape = _broadcast(*shapes)
            if short in _PAIRWISE and shape is not None:
                return Value("array", shape)
        raise NotKnown(node)

    def _made(self, node: ast.Call, name: str, names: Names) -> Value:
        filled = name == "jax.numpy.full"
        if node.keywords or len(node.args) != (1 if name in _FILLED else 2):
            raise NotKnown(node)
        if filled and self.of(node.args[1], names).kind != "float":
            raise NotKnown(node)
        if name in _DRAWN and not self._is_key(node.args[0]):
            raise NotKnown(node)
        return Value("array", self._shape(node.args[1] if name in _DRAWN else node.args[0]))

    def _is_key(self, node: ast.expr) -> bool:
        """Whether an expression is a key, or makes one, and does nothing else; a wrong key would have been an error."""
        if isinstance(node, ast.Call):
            made = self._program.qualified(node.func) in _KEYS and not node.keywords
            return made and all(isinstance(a, ast.Constant) or self._is_key(a) for a in node.args)
        return isinstance(node, ast.Name)

    def _shape(self, node: ast.expr) -> tuple[int, ...]:
        value = self._constant(node)
        elements = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        return tuple(self.integer(element) for element in elements)

    def _spaced(self, node: ast.Call, name: str, names: Names) -> Value:
        if not node.args:
            raise NotKnown(node)
        if name == "linspace":
            numbers = len(node.args) == 3 and not any(self.of(end, names).shape for end in node.args[:2])
            return Value("array", (self.integer(node.args[2]),)) if numbers else self._fail(node)
        stop = node.args[0]
        if (
            len(node.args) == 1
            and isinstance(stop, ast.Constant)
            and type(stop.value) is float
            and 0 <= stop.value < 1e9
        ):
            return Value("array", (math.ceil(stop.value),))
        raise NotKnown(node)

    def _written_out(self, node: ast.expr) -> Value:
        """``jnp.array([[0.5, 1.0], [2.0, 3.0]])``."""
        if isinstance(node, ast.Constant | ast.UnaryOp):
            return Value("array") if self.of(node, {}).kind == "float" else self._fail(node)
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            raise NotKnown(node)
        shapes = {self._written_out(element).shape for element in node.elts}
        return Value("array", (len(node.elts), *shapes.pop())) if len(shapes) == 1 else self._fail(node)


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """NumPy's rule for the shapes of two operands; None where they do not fit."""
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    found = [a if b == 1 else b if a in (1, b) else None for a, b in pairs]
    return None if None in found else tuple(n for n in found if n is not None)
