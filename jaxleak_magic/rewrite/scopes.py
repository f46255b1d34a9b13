"""Which name means what: Python's scoping rules over syntax trees, checked against the compiler's own answer."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ScopeKind = Literal["module", "function", "class", "comprehension"]
SiteKind = Literal[
    "parameter", "assign", "augmented", "annotation", "for", "with", "except", "delete", "def", "class", "import",
    "walrus", "match", "comprehension", "star",
]  # fmt: skip

_SPECIAL = frozenset(
    {
        *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp),
        *(ast.GeneratorExp, ast.Global, ast.Nonlocal, ast.Name, ast.Import, ast.ImportFrom, ast.ExceptHandler),
        *(ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    }
)
"""Nodes that open a scope or bind a name."""
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Nodes without a place of their own; Python shares them between trees."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Site:
    """A place that binds a name: ``node`` is the name, argument, alias, definition or pattern that does."""

    kind: SiteKind
    node: ast.AST


@dataclass(eq=False)
class Scope:
    """A scope with the names that it binds."""

    kind: ScopeKind
    node: ast.AST | None
    parent: Scope | None
    sites: dict[str, list[Site]] = field(default_factory=lambda: defaultdict(list))
    global_names: set[str] = field(default_factory=set)
    nonlocal_names: set[str] = field(default_factory=set)

    def lookup(self, name: str) -> Scope | None:
        """The scope that owns ``name`` as seen from here, or None where no scope of the program binds it."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            if scope.kind == "module" or name in scope.global_names:
                module = scope.module
                return module if name in module.sites else None
            visible = first or scope.kind != "class"
            if visible and name in scope.sites and name not in scope.nonlocal_names:
                return scope
            first = False
            scope = scope.parent
        return None

    @property
    def module(self) -> Scope:
        """The module scope around this one."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def is_inside(self, other: Scope) -> bool:
        """Whether this scope is ``other`` or nested in it."""
        scope: Scope | None = self
        while scope is not None:
            if scope is other:
                return True
            scope = scope.parent
        return False

    def function(self) -> Scope | None:
        """The innermost function scope that is this one or around it; None at module level and in a class body."""
        scope: Scope | None = self
        while scope is not None and scope.kind == "comprehension":
            scope = scope.parent
        return scope if scope is not None and scope.kind == "function" else None


@dataclass(eq=False)
class ScopeIndex:
    """Scopes, parents and name uses of one or more trees that share their module scope.

    Attributes:
        parent: the node above each node.
        evaluated_in: the scope in which each node is evaluated.
        own: the scope that a function, class or comprehension node opens.
        names: every `ast.Name`, in source order.
    """

    module: Scope = field(default_factory=lambda: Scope("module", None, None))
    parent: dict[ast.AST, ast.AST] = field(default_factory=dict)
    evaluated_in: dict[ast.AST, Scope] = field(default_factory=dict)
    own: dict[ast.AST, Scope] = field(default_factory=dict)
    names: list[ast.Name] = field(default_factory=list)
    _free: dict[Scope, set[str]] | None = None

    def add(self, tree: ast.Module) -> None:
        """Take up a tree whose top level is this index's module scope."""
        self.evaluated_in[tree] = self.module
        for statement in tree.body:
            self._visit(statement, tree, self.module)

    def free_names(self, scope: Scope) -> frozenset[str]:
        """Names that a scope or one nested in it takes from an enclosing function or comprehension."""
        if self._free is None:
            self._free = defaultdict(set)
            for node, at in self.evaluated_in.items():
                if type(node) is ast.Name:
                    self._note_free(node.id, at, self._free)
                elif type(node) is ast.Nonlocal:
                    for name in node.names:
                        self._note_free(name, at, self._free)
        return frozenset(self._free[scope])

    @staticmethod
    def _note_free(name: str, at: Scope, free: dict[Scope, set[str]]) -> None:
        owner = at.lookup(name)
        current: Scope | None = at
        while owner is not None and owner.kind in ("function", "comprehension") and current is not owner:
            assert current is not None
            free[current].add(name)
            current = current.parent

    # -- building -------------------------------------------------------------------------------------------------

    def _visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.parent[node] = parent
        self.evaluated_in[node] = scope
        if type(node) not in _SPECIAL:
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, _MARKS):
                    self._visit(child, node, scope)
            return
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._visit_function(node, scope)
            case ast.ClassDef():
                self._bind(scope, node.name, "class", node)
                inner = self._open("class", node, scope)
                for outer in (*node.decorator_list, *node.bases, *node.keywords):
                    self._visit(outer, node, scope)
                for statement in node.body:
                    self._visit(statement, node, inner)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._visit_comprehension(node, scope)
            case ast.Global():
                scope.global_names.update(node.names)
            case ast.Nonlocal():
                scope.nonlocal_names.update(node.names)
            case _:
                self._bind_here(node, scope)
                for child in ast.iter_child_nodes(node):
                    if not isinstance(child, _MARKS):
                        self._visit(child, node, scope)

    def _bind_here(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Name():
                self.names.append(node)
                if not isinstance(node.ctx, ast.Load):
                    self._bind(scope, node.id, self._store_kind(node), node)
            case ast.Import():
                for alias in node.names:
                    self._bind(scope, (alias.asname or alias.name).split(".")[0], "import", alias)
            case ast.ImportFrom():
                for alias in node.names:
                    kind: SiteKind = "star" if alias.name == "*" else "import"
                    self._bind(scope, alias.asname or alias.name, kind, alias)
            case ast.ExceptHandler(name=str(name)):
                self._bind(scope, name, "except", node)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._bind(scope, name, "match", node)
            case ast.MatchMapping(rest=str(name)):
                self._bind(scope, name, "match", node)
            case _:
                pass

    def _store_kind(self, node: ast.Name) -> SiteKind:
        if isinstance(node.ctx, ast.Del):
            return "delete"
        above: ast.AST = self.parent[node]
        while isinstance(above, ast.Tuple | ast.List | ast.Starred):
            above = self.parent[above]
        match above:
            case ast.AugAssign():
                return "augmented"
            case ast.AnnAssign():
                return "assign" if above.value is not None else "annotation"
            case ast.For() | ast.AsyncFor():
                return "for"
            case ast.withitem():
                return "with"
            case ast.NamedExpr():
                return "walrus"
            case ast.comprehension():
                return "comprehension"
            case _:
                return "assign"

    def _bind(self, scope: Scope, name: str, kind: SiteKind, node: ast.AST) -> None:
        if kind == "walrus":
            while scope.kind == "comprehension" and scope.parent is not None:
                scope = scope.parent
        target = scope
        if name in scope.global_names:
            target = scope.module
        elif name in scope.nonlocal_names:
            owner = scope.parent.lookup(name) if scope.parent else None
            target = owner or scope
        target.sites[name].append(Site(kind, node))

    def _open(self, kind: ScopeKind, node: ast.AST, parent: Scope) -> Scope:
        scope = Scope(kind, node, parent)
        self.own[node] = scope
        return scope

    def _visit_function(self, node: FunctionNode, scope: Scope) -> None:
        arguments = node.args
        if not isinstance(node, ast.Lambda):
            self._bind(scope, node.name, "def", node)
        inner = self._open("function", node, scope)
        self.parent[arguments] = node
        self.evaluated_in[arguments] = scope
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        for argument in every:
            self.parent[argument] = arguments
            self.evaluated_in[argument] = inner
            self._bind(inner, argument.arg, "parameter", argument)
            if argument.annotation is not None:
                self._visit(argument.annotation, argument, scope)
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            self._visit(default, arguments, scope)
        if isinstance(node, ast.Lambda):
            self._visit(node.body, node, inner)
            return
        for outer in (*node.decorator_list, *([node.returns] if node.returns else [])):
            self._visit(outer, node, scope)
        # Declarations count for the whole function, wherever they stand.
        for statement in _own_statements(node):
            if isinstance(statement, ast.Global):
                inner.global_names.update(statement.names)
            elif isinstance(statement, ast.Nonlocal):
                inner.nonlocal_names.update(statement.names)
        for parameter in getattr(node, "type_params", []):
            self._bind(inner, parameter.name, "parameter", parameter)
        for statement in node.body:
            self._visit(statement, node, inner)

    def _visit_comprehension(self, node: ast.expr, scope: Scope) -> None:
        assert isinstance(node, _COMPREHENSIONS)
        inner = self._open("comprehension", node, scope)
        for number, generator in enumerate(node.generators):
            self.parent[generator] = node
            self.evaluated_in[generator] = inner
            self._visit(generator.iter, generator, scope if number == 0 else inner)
            self._visit(generator.target, generator, inner)
            for condition in generator.ifs:
                self._visit(condition, generator, inner)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        for part in parts:
            self._visit(part, node, inner)


def _own_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.AST]:
    """All statements of a function's body but those of functions and classes defined in it."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def compiled_free_names(tree: ast.Module) -> dict[tuple[str, int], list[frozenset[str]]] | None:
    """What the compiler says: (function name, first line) -> the free names of each such function; None if it fails."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(tree, "<rewrite>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError):
            return None
    found: dict[tuple[str, int], list[frozenset[str]]] = defaultdict(list)
    waiting: list[CodeType] = [code]
    while waiting:
        current = waiting.pop()
        found[current.co_name, current.co_firstlineno].append(frozenset(current.co_freevars) - {"__class__"})
        waiting.extend(constant for constant in current.co_consts if isinstance(constant, CodeType))
    return found


def first_line(function: FunctionNode) -> int:
    """The line that a function's code object calls its first: that of the first decorator, where there is one."""
    if isinstance(function, ast.Lambda):
        return function.lineno
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
