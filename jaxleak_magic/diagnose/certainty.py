"""What surely happens when a function is called and returns, by its syntax alone: which nodes run, how often, on what.

Used where a wrong sentence is worse than none: a branch, a loop of unknown length, or whatever follows an early return
is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.syntax import FunctionNode, Syntax

Loop = ast.For | ast.While
Scope = FunctionNode | ast.Module
_MAX_CALLS = 4

CONTAINERS = frozenset({"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter"})
_PLAIN_BUILTINS = frozenset(
    {"len", "str", "repr", "int", "float", "bool", "type", "id", "hash", "isinstance", "range", "ord", "format"}
)
_PLAIN_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "__name__", "__class__"})
_PLAIN_MODULES = frozenset({"time", "math", "random", "datetime", "os", "sys", "uuid", "numpy"})


@dataclass(frozen=True)
class Reached:
    """A node that surely runs.

    Attributes:
        node: a statement or an expression.
        chain: the functions that are running, outermost first; the node stands in the last one.
        loops: the Python loops around it, outermost first, each with how often it runs.
    """

    node: ast.AST
    chain: tuple[FunctionNode, ...]
    loops: tuple[tuple[Loop, int], ...] = ()

    @property
    def function(self) -> FunctionNode:
        """The function in which the node stands."""
        return self.chain[-1]

    @property
    def times(self) -> int:
        """How often the node runs in one call of the outermost function, as far as the loops tell."""
        product = 1
        for _, count in self.loops:
            product *= count
        return product


class Certainty:
    """Answers about the text in which a function is defined.

    Args:
        syntax: that text.
        others: further texts of the user, whose top-level bindings count too (a notebook's other cells).
    """

    def __init__(self, syntax: Syntax, others: Sequence[Syntax] = ()) -> None:
        self.syntax = syntax
        self.texts = [syntax, *(each for each in others if each is not syntax)]
        self._bindings: dict[int, dict[str, list[ast.expr | None]]] = {}
        self._modules: dict[str, str] = {}
        for text in self.texts:
            self._modules |= _imported(text.tree)

    # what runs

    def reached(self, function: FunctionNode) -> Iterator[Reached]:
        """The nodes that surely run in one call of ``function``, also in the user's functions that it surely calls."""
        yield from self._call((function,), ())

    def _call(self, chain: tuple[FunctionNode, ...], loops: tuple[tuple[Loop, int], ...]) -> Iterator[Reached]:
        function = chain[-1]
        if isinstance(function, ast.Lambda):
            yield from self._expression(function.body, chain, loops)
        elif isinstance(function, ast.FunctionDef) and not _contains(function.body, ast.Yield | ast.YieldFrom):
            yield from self._block(function.body, chain, loops)

    def _block(
        self, body: Iterable[ast.stmt], chain: tuple[FunctionNode, ...], loops: tuple[tuple[Loop, int], ...]
    ) -> Iterator[Reached]:
        for statement in body:
            yield from self._statement(statement, chain, loops)
            if _contains([statement], ast.Return):
                return

    def _statement(
        self, statement: ast.stmt, chain: tuple[FunctionNode, ...], loops: tuple[tuple[Loop, int], ...]
    ) -> Iterator[Reached]:
        if isinstance(statement, ast.For | ast.While):
            count = self._repetitions(statement, chain)
            yield from self._expression(
                statement.iter if isinstance(statement, ast.For) else statement.test, chain, loops
            )
            if count > 0 and not _contains(statement.body, ast.Break | ast.Continue | ast.Return):
                yield from self._block(statement.body, chain, (*loops, (statement, count)))
        elif isinstance(statement, ast.With):
            for item in statement.items:
                yield from self._expression(item.context_expr, chain, loops)
            if not any(_may_swallow(item.context_expr) for item in statement.items):
                yield from self._block(statement.body, chain, loops)
        elif isinstance(statement, ast.If):
            yield from self._expression(statement.test, chain, loops)
        elif isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return):
            yield Reached(statement, chain, loops)
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.expr) and child is not getattr(statement, "annotation", None):
                    yield from self._expression(child, chain, loops)

    def _expression(
        self, node: ast.expr, chain: tuple[FunctionNode, ...], loops: tuple[tuple[Loop, int], ...]
    ) -> Iterator[Reached]:
        yield Reached(node, chain, loops)
        parts: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            parts = [node.test]
        elif isinstance(node, ast.BoolOp):
            parts = node.values[:1]
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            children = [c.value if isinstance(c, ast.keyword) else c for c in ast.iter_child_nodes(node)]
            parts = [child for child in children if isinstance(child, ast.expr)]
        for part in parts:
            yield from self._expression(part, chain, loops)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(chain) < _MAX_CALLS:
            called = self._function(node.func.id, chain[-1])
            if called is not None and called not in chain:
                yield from self._call((*chain, called), loops)

    def _function(self, name: str, user: FunctionNode) -> FunctionNode | None:
        """The undecorated function of this text that is certainly meant by a name, or None."""
        scope = self.scope_of(name, user)
        around = self.syntax.tree if scope is None else scope
        if isinstance(around, ast.Lambda) or self.bindings(around).get(name) != [None]:
            return None
        found = [s for s in around.body if isinstance(s, ast.FunctionDef) and s.name == name]
        return found[0] if len(found) == 1 and not found[0].decorator_list else None

    def _repetitions(self, loop: Loop, chain: tuple[FunctionNode, ...]) -> int:
        """How often a loop runs; 0 where that is not certain."""
        if isinstance(loop, ast.While):
            return self._while_repetitions(loop, chain[-1])
        call = loop.iter
        if isinstance(call, ast.Tuple | ast.List):
            return 0 if any(isinstance(e, ast.Starred) for e in call.elts) else len(call.elts)
        if not (isinstance(call, ast.Call) and _is_builtin_call(call, "range")) or call.keywords:
            return 0
        numbers = [self._integer(argument, chain[-1]) for argument in call.args]
        if (
            not 1 <= len(numbers) <= 3
            or any(number is None for number in numbers)
            or self._is_bound("range", chain[-1])
        ):
            return 0
        try:
            return len(range(*[number for number in numbers if number is not None]))
        except (ValueError, OverflowError):
            return 0

    def _while_repetitions(self, loop: ast.While, function: FunctionNode) -> int:
        """``i = 0``, ``while i < N``, and one ``i += 1`` in it."""
        test = loop.test
        if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and isinstance(test.ops[0], ast.Lt)):
            return 0
        name = test.left.id
        bound = self.bindings(function).get(name, [])
        steps = [s for s in loop.body if isinstance(s, ast.AugAssign) and _is_name(s.target, name)]
        if len(test.ops) != 1 or len(bound) != 2 or len(steps) != 1 or not isinstance(steps[0].op, ast.Add):
            return 0
        if not (_is_int(bound[0], 0) and _is_int(steps[0].value, 1)):
            return 0
        return self._integer(test.comparators[0], function) or 0

    def _integer(self, node: ast.expr, function: FunctionNode) -> int | None:
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._integer(node.operand, function)
            return None if value is None else -value
        if isinstance(node, ast.Name):
            bound = self._bound_values(node.id, function)
            if len(bound) == 1 and isinstance(bound[0], ast.Constant) and type(bound[0].value) is int:
                return bound[0].value
        return None

    # names

    def bindings(self, scope: Scope) -> dict[str, list[ast.expr | None]]:
        """Names that a scope binds, each with the values it is given; None where the value is not plain to see."""
        if id(scope) not in self._bindings:
            self._bindings[id(scope)] = _bindings(scope)
        return self._bindings[id(scope)]

    def scope_of(self, name: str, function: FunctionNode) -> FunctionNode | None:
        """The function that binds a name used in ``function``; None for the module (or a builtin)."""
        if name in _declared(function, ast.Global):
            return None
        around: FunctionNode | None = function
        while around is not None:
            if name in self.bindings(around) and name not in _declared(around, ast.Nonlocal):
                return around
            if name in _declared(around, ast.Global):
                return None
            around = self.syntax.function_around(around)
        return None

    def full_name(self, node: ast.expr) -> str | None:
        """``jax.numpy.sin`` for ``jnp.sin``, by the imports of the texts; None for names that are not imported."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._modules:
            return None
        return ".".join([self._modules[node.id], *parts[::-1]])

    def defines(self, name: str) -> bool:
        """Whether a text of the user's defines a function or class of this name."""
        return any(
            isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and s.name == name
            for text in self.texts
            for s in text.tree.body
        )

    def _is_bound(self, name: str, function: FunctionNode) -> bool:
        return self.scope_of(name, function) is not None or bool(self._bound_at_top(name))

    def _bound_values(self, name: str, function: FunctionNode) -> list[ast.expr | None]:
        scope = self.scope_of(name, function)
        return self._bound_at_top(name) if scope is None else self.bindings(scope).get(name, [])

    def _bound_at_top(self, name: str) -> list[ast.expr | None]:
        return [value for text in self.texts for value in self.bindings(text.tree).get(name, [])]

    # values

    def is_container(self, target: ast.expr, function: FunctionNode) -> bool:
        """Whether a name, or an attribute by its name, is only ever a list, dict, set or deque of Python's."""
        if isinstance(target, ast.Name):
            values = self._bound_values(target.id, function)
        elif isinstance(target, ast.Attribute):
            values = self._attribute_values(target.attr)
        else:
            return False
        return bool(values) and all(value is not None and self._makes_container(value) for value in values)

    def _makes_container(self, value: ast.expr) -> bool:
        if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
            return True
        if not isinstance(value, ast.Call):
            return False
        full = self.full_name(value.func) or (value.func.id if isinstance(value.func, ast.Name) else "")
        return full in CONTAINERS or (full.startswith("collections.") and full.rpartition(".")[2] in CONTAINERS)

    def _attribute_values(self, attribute: str) -> list[ast.expr | None]:
        return [w.value for text in self.texts for w in text.writes if w.kind == "attribute" and w.target == attribute]

    def is_plain(self, value: ast.expr, function: FunctionNode, assumed: frozenset[str] = frozenset()) -> bool:
        """Whether an expression certainly gives no tracer, once it has been evaluated without an error.

        Args:
            value: the expression.
            function: where it stands.
            assumed: names taken as plain: those on whose values the question hangs.
        """

        def plain(*parts: ast.expr | None) -> bool:
            return all(part is not None and self.is_plain(part, function, assumed) for part in parts)

        if isinstance(value, ast.Constant | ast.JoinedStr):
            return True
        if isinstance(value, ast.Tuple | ast.List | ast.Set):
            return plain(*value.elts)
        if isinstance(value, ast.Dict):
            return plain(*value.keys, *value.values)
        if isinstance(value, ast.BinOp):
            return plain(value.left, value.right)
        if isinstance(value, ast.UnaryOp):
            return plain(value.operand)
        if isinstance(value, ast.BoolOp):
            return plain(*value.values)
        if isinstance(value, ast.IfExp):
            return plain(value.body, value.orelse)
        if isinstance(value, ast.Compare):
            by_identity = all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in value.ops)
            return by_identity or plain(value.left, *value.comparators)
        if isinstance(value, ast.Attribute):
            return value.attr in _PLAIN_ATTRIBUTES
        if isinstance(value, ast.Subscript):
            return plain(value.value)
        if isinstance(value, ast.Call):
            return self._plain_call(value, function)
        return isinstance(value, ast.Name) and self._plain_name(value.id, function, assumed)

    def _plain_call(self, call: ast.Call, function: FunctionNode) -> bool:
        if isinstance(call.func, ast.Name) and call.func.id in _PLAIN_BUILTINS:
            return not self._is_bound(call.func.id, function)
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant):
            return True  # "{}".format(x)
        return (self.full_name(call.func) or "").partition(".")[0] in _PLAIN_MODULES

    def _plain_name(self, name: str, function: FunctionNode, assumed: frozenset[str]) -> bool:
        if name in assumed:
            return True
        values = self._bound_values(name, function)
        scope = self.scope_of(name, function) or function
        return bool(values) and all(v is not None and self.is_plain(v, scope, assumed | {name}) for v in values)

    def attribute_is_plain(self, attribute: str, function: FunctionNode) -> bool:
        """Whether every write to attributes of this name gives a value that is no tracer."""
        values = self._attribute_values(attribute)
        steps = [
            node.value
            for text in self.texts
            for node in ast.walk(text.tree)
            if isinstance(node, ast.AugAssign)
            and isinstance(node.target, ast.Attribute)
            and node.target.attr == attribute
        ]
        known = [value for value in values if value is not None]
        return len(values) - len(known) <= len(steps) and all(self.is_plain(v, function) for v in [*known, *steps])


def root_name(target: ast.expr) -> str | None:
    """``net`` for ``net.layers[0].size``; None where it is no chain from a name."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and what is below them, but for what is inside functions and classes defined there."""
    stack = list(nodes)[::-1]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, FunctionNode | ast.ClassDef):
            stack += list(ast.iter_child_nodes(node))[::-1]


def parameters(function: FunctionNode) -> list[str]:
    """Names of all parameters."""
    a = function.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    return [argument.arg for argument in every if argument is not None]


def _contains(nodes: Iterable[ast.AST], kinds: type | object) -> bool:
    return any(isinstance(node, kinds) for node in own_nodes(nodes))  # type: ignore[arg-type]


def _declared(scope: Scope, kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    if isinstance(scope, ast.Lambda):
        return set()
    return {name for node in own_nodes(scope.body) if isinstance(node, kind) for name in node.names}


def _bindings(scope: Scope) -> dict[str, list[ast.expr | None]]:
    found: dict[str, list[ast.expr | None]] = {}

    def bind(name: str, value: ast.expr | None) -> None:
        found.setdefault(name, []).append(value)

    if isinstance(scope, FunctionNode):
        for name in parameters(scope):
            bind(name, None)
    if isinstance(scope, ast.Lambda):
        return found
    outside = _declared(scope, ast.Global)
    for node in own_nodes(scope.body):
        for name, value in _bound_by(node):
            if name not in outside or isinstance(scope, ast.Module):
                bind(name, value)
    # Nested functions write here too, by `global` and `nonlocal`.
    kind = ast.Global if isinstance(scope, ast.Module) else ast.Nonlocal
    for inner in ast.walk(scope):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner is not scope:
            declared = _declared(inner, kind)
            for node in own_nodes(inner.body) if declared else ():
                for name, value in _bound_by(node):
                    if name in declared:
                        bind(name, value)
    return found


def _bound_by(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            else:
                yield from ((name, None) for name in _stored(target))
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
        if isinstance(node.target, ast.Name) and (node.value is not None):
            yield node.target.id, node.value
    elif isinstance(node, ast.For | ast.AsyncFor):
        is_range = isinstance(node.iter, ast.Call) and _is_builtin_call(node.iter, "range")
        for name in _stored(node.target):
            yield name, node.iter if is_range else None
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, None
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield (alias.asname or alias.name).partition(".")[0], None
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from ((name, None) for name in _stored(node.optional_vars))
    elif isinstance(node, ast.Delete | ast.Match):
        yield from ((name, None) for name in _stored(node))


def _stored(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            yield each.id
        elif isinstance(each, ast.MatchAs | ast.MatchStar) and each.name:
            yield each.name


def _imported(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _may_swallow(context: ast.expr) -> bool:
    return any(
        getattr(node, "id", getattr(node, "attr", "")) in ("suppress", "raises", "ExitStack")
        for node in ast.walk(context)
    )


def _is_builtin_call(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_int(node: ast.expr | None, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value
