"""All texts of a run as one program: names resolved across cells, library functions by their full names."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxleak_magic.diagnose.model import Place, SourceText
from jaxleak_magic.rewrite.scopes import (
    FunctionNode,
    Scope,
    ScopeIndex,
    Site,
    compiled_free_names,
    first_line,
)
from jaxleak_magic.rewrite.texts import Text, Unreadable


class Program:
    """The user's texts with their names resolved.

    All cells share one module scope; each file has its own.

    Args:
        sources: texts in the order in which they ran; of a cell that ran twice, the last text counts.
        known_names: full names of names that the texts do not bind themselves (``{"jnp": "jax.numpy"}``).
        library_objects: module-level names that are bound to instances of libraries' classes.
    """

    def __init__(
        self,
        sources: Sequence[SourceText],
        known_names: Mapping[str, str] | None = None,
        library_objects: Collection[str] = (),
    ) -> None:
        self.known_names = dict(known_names or {})
        self.library_objects = frozenset(library_objects)
        self.texts: list[Text] = []
        self.unreadable: list[SourceText] = []
        self._indexes: dict[str | None, ScopeIndex] = {}
        self._index_of_text: dict[Text, ScopeIndex] = {}
        self.parent: dict[ast.AST, ast.AST] = {}
        self.scope_at: dict[ast.AST, Scope] = {}
        self.own_scope: dict[ast.AST, Scope] = {}
        self.text_of: dict[ast.AST, Text] = {}
        self._compiled: dict[Text, dict[tuple[str, int], list[frozenset[str]]] | None] = {}
        for source in _latest(sources):
            try:
                text = Text(source)
            except Unreadable:
                self.unreadable.append(source)
                continue
            index = self._indexes.setdefault(source.file if source.cell is None else None, ScopeIndex())
            before = len(index.parent)
            index.add(text.tree)
            self.texts.append(text)
            self._index_of_text[text] = index
            self.text_of[text.tree] = text
            for node in list(index.parent)[before:]:
                self.text_of[node] = text
        self._loads: dict[tuple[Scope, str], list[ast.Name]] = defaultdict(list)
        for index in self._indexes.values():
            self.parent |= index.parent
            self.scope_at |= index.evaluated_in
            self.own_scope |= index.own
            for name in index.names:
                owner = self.owner(name)
                if owner is not None and isinstance(name.ctx, ast.Load):
                    self._loads[owner, name.id].append(name)

    # -- names ----------------------------------------------------------------------------------------------------

    def owner(self, name: ast.Name) -> Scope | None:
        """The scope whose binding a name means, or None for builtins and names that no text binds."""
        return self.scope_at[name].lookup(name.id)

    def loads(self, owner: Scope, name: str) -> list[ast.Name]:
        """Every place that reads a binding."""
        return self._loads[owner, name]

    def sites(self, owner: Scope, name: str) -> list[Site]:
        """Every place that writes a binding."""
        return owner.sites.get(name, [])

    def only_site(self, owner: Scope, name: str) -> Site | None:
        """The single place that writes a binding, or None where there are several."""
        sites = self.sites(owner, name)
        return sites[0] if len(sites) == 1 else None

    def only_value_site(self, owner: Scope, name: str) -> Site | None:
        """The single place that binds a name to anything but a ``None`` at module level, or None."""
        sites = [s for s in self.sites(owner, name) if owner.kind != "module" or not self._assigns_none(s)]
        return sites[0] if len(sites) == 1 else None

    def _assigns_none(self, site: Site) -> bool:
        value = self.assigned_value(site)
        return isinstance(value, ast.Constant) and value.value is None

    def free_names(self, node: FunctionNode) -> frozenset[str]:
        """Free variables of a function."""
        return self._index_of_text[self.text_of[node]].free_names(self.own_scope[node])

    def scopes_agree(self, node: FunctionNode) -> bool:
        """Whether the compiler finds the same free variables in a function as the scopes here do."""
        text = self.text_of[node]
        if text not in self._compiled:
            self._compiled[text] = compiled_free_names(text.tree)
        compiled = self._compiled[text]
        if compiled is None:
            return False
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        return self.free_names(node) in compiled.get((name, first_line(node)), [])

    def is_called_in_magic(self, name: str) -> bool:
        """Whether a word occurs in IPython's own syntax anywhere, where no tree sees it."""
        from jaxleak_magic.rewrite.masking import names_in_spans

        return any(name in names_in_spans(text.text, text.masked_spans) for text in self.texts)

    # -- functions and classes --------------------------------------------------------------------------------------

    def functions(self) -> Iterator[FunctionNode]:
        """Every ``def`` and ``lambda``."""
        for node in self.own_scope:
            if isinstance(node, FunctionNode):
                yield node

    def function_at(self, name: str, place: Place | None, variable: str) -> FunctionNode | None:
        """The one function of this name at this place that closes over ``variable``; None where it is not sure."""
        found: list[FunctionNode] = []
        for node in self.functions():
            if ("<lambda>" if isinstance(node, ast.Lambda) else node.name) != name:
                continue
            if place is not None and not self._stands_at(node, place):
                continue
            if variable in self.free_names(node):
                found.append(node)
        if len(found) > 1 and place is not None and place.column is not None:
            found = [f for f in found if self._column(f) == place.column] or found
        if len(found) > 1:
            # A lambda inside a lambda of the same line captures through the outer one: the inner one is meant.
            found = [f for f in found if not any(g is not f and self._around(f, g) for g in found)]
        return found[0] if len(found) == 1 else None

    def is_given_to(self, function: FunctionNode, callees: frozenset[str]) -> bool:
        """Whether a function is the first argument of a call of one of these library functions."""
        values: list[ast.AST] = [function]
        if not isinstance(function, ast.Lambda):
            owner = self.scope_at[function].lookup(function.name)
            values = list(self.loads(owner, function.name)) if owner is not None else []
        parents = [(value, self.parent[value]) for value in values]
        return any(
            isinstance(call, ast.Call) and call.args[:1] == [value] and self.qualified(call.func) in callees
            for value, call in parents
        )

    def _column(self, node: FunctionNode) -> int:
        text = self.text_of[node]
        return text.start(node) - text.offset(node.lineno, 0)

    def _around(self, outer: ast.AST, inner: ast.AST) -> bool:
        node: ast.AST | None = inner
        while node is not None:
            if node is outer:
                return True
            node = self.parent.get(node)
        return False

    def _stands_at(self, node: FunctionNode, place: Place) -> bool:
        source = self.text_of[node].source
        same = source.file == place.file if place.cell is None else source.cell == place.cell
        return same and place.line in (node.lineno, first_line(node))

    def enclosing_function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function in whose body a node stands."""
        scope = self.scope_at[node].function()
        return scope.node if scope is not None else None  # type: ignore[return-value]

    def definition(self, expression: ast.expr) -> FunctionNode | ast.ClassDef | None:
        """The user's function or class that a name certainly means, or None."""
        if isinstance(expression, ast.Lambda):
            return expression
        if not isinstance(expression, ast.Name):
            return None
        owner = self.owner(expression)
        site = self.only_site(owner, expression.id) if owner is not None else None
        if site is None:
            return None
        if isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return site.node
        value = self.assigned_value(site)
        return self.definition(value) if isinstance(value, ast.Lambda) else None

    def is_librarys_object(self, expression: ast.expr) -> bool:
        """Whether a name certainly holds an instance of a library's class: it was found bound to one after the run."""
        if not isinstance(expression, ast.Name) or expression.id not in self.library_objects:
            return False
        owner = self.owner(expression)
        return owner is None or (owner.kind == "module" and self.only_site(owner, expression.id) is not None)

    def assigned_value(self, site: Site) -> ast.expr | None:
        """The right side of ``name = value``, or None where the site is anything else."""
        statement = self.parent.get(site.node)
        if site.kind == "assign" and isinstance(statement, ast.Assign) and site.node in statement.targets:
            return statement.value
        if site.kind == "assign" and isinstance(statement, ast.AnnAssign):
            return statement.value
        return None

    # -- full names -------------------------------------------------------------------------------------------------

    def qualified(self, expression: ast.expr) -> str | None:
        """Full name of the library object that an expression means (``"jax.numpy.sum"``), or None where unsure."""
        from jaxleak_magic.rewrite.call_sites import canonical

        name = self._qualified(expression, 8)
        return canonical(name) if name else None

    def _qualified(self, expression: ast.expr, depth: int) -> str | None:
        if depth == 0:
            return None
        if isinstance(expression, ast.Attribute):
            base = self._qualified(expression.value, depth)
            return f"{base}.{expression.attr}" if base else None
        if isinstance(expression, ast.Call):
            made = self._qualified(expression.func, depth - 1)
            return f"{made}()" if made and made.rpartition(".")[2][:1].isupper() else None
        if not isinstance(expression, ast.Name):
            return None
        owner = self.owner(expression)
        if owner is None:
            if expression.id in self.known_names:
                return self.known_names[expression.id]
            return f"builtins.{expression.id}" if hasattr(builtins, expression.id) else None
        meanings = {self._meaning(site, depth - 1) for site in self.sites(owner, expression.id)}
        return meanings.pop() if len(meanings) == 1 else None

    def _meaning(self, site: Site, depth: int) -> str | None:
        if site.kind == "import" and isinstance(site.node, ast.alias):
            statement = self.parent[site.node]
            if isinstance(statement, ast.Import):
                return site.node.name if site.node.asname else site.node.name.split(".")[0]
            if isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
                return f"{statement.module}.{site.node.name}"
            return None
        value = self.assigned_value(site)
        return self._qualified(value, depth) if value is not None else None

    def spelling(self, full_name: str, at: ast.AST) -> str | None:
        """How a library object can be written at a node with the names that are visible there, or None."""
        scope = self.scope_at[at]
        best: str | None = None
        candidates = {(id_, owner) for owner, id_ in self._visible_imports(scope)}
        for name, owner in candidates:
            meanings = {self._meaning(site, 4) for site in self.sites(owner, name)}
            if len(meanings) != 1 or (meaning := meanings.pop()) is None:
                continue
            text = self._through(name, meaning, full_name)
            if text and (best is None or (text.count("."), len(text), text) < (best.count("."), len(best), best)):
                best = text
        for name, meaning in self.known_names.items():
            if best is None and scope.lookup(name) is None:
                best = self._through(name, meaning, full_name)
        return best

    @staticmethod
    def _through(name: str, meaning: str, full_name: str) -> str | None:
        if meaning == full_name:
            return name
        return name + full_name[len(meaning) :] if full_name.startswith(meaning + ".") else None

    def _visible_imports(self, scope: Scope) -> Iterator[tuple[Scope, str]]:
        seen: set[str] = set()
        current: Scope | None = scope
        while current is not None:
            for name in list(current.sites):
                if name not in seen and scope.lookup(name) is current:
                    if any(site.kind == "import" for site in current.sites[name]):
                        yield current, name
                    seen.add(name)
            current = current.parent


def _latest(sources: Sequence[SourceText]) -> list[SourceText]:
    """The sources without texts of a cell that ran again later, and of equal texts only the last."""
    kept: dict[object, SourceText] = {}
    for number, source in enumerate(sources):
        if source.cell is not None and source.cell.id is not None:
            key: object = ("cell", source.cell.id)
        elif source.cell is not None:
            key = ("run", source.cell.execution_count) if source.cell.execution_count is not None else number
        else:
            key = ("file", source.file)
        kept.pop(key, None)
        kept[key] = source
    # The same text in another cell, or run anew where the front end gives no ids, binds the same names once more.
    of_text = {source.text.strip(): key for key, source in kept.items() if source.cell is not None}
    return [s for key, s in kept.items() if s.cell is None or of_text[s.text.strip()] == key]
