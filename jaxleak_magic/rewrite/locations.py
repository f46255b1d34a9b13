"""Places that keep a value beside names: an item of a module-level container, or an attribute of an object."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import Scope


@dataclass(frozen=True)
class Location:
    """One place.

    Attributes:
        program: all texts.
        root: the scope and name of the variable that holds the container or object.
        target: the assignment's left side.
    """

    program: Program
    root: tuple[Scope, str]
    target: ast.Attribute | ast.Subscript

    @property
    def text(self) -> str:
        """The place as the user wrote it."""
        return short_text(self.program, self.target)

    def loads(self) -> list[ast.expr]:
        """Every expression that reads the place.

        Raises:
            Refused: where another name may reach it, or something else is stored in it too.
        """
        return self._attribute_loads() if isinstance(self.target, ast.Attribute) else self._item_loads()

    def holds_another_at_first(self) -> bool:
        """Whether the place may hold something else that can be called before the assignment runs."""
        if isinstance(self.target, ast.Subscript):
            site = self.program.only_site(*self.root)
            value = self.program.assigned_value(site) if site else None
            keys = value.keys if isinstance(value, ast.Dict) else []
            if not isinstance(self.target.slice, ast.Constant):
                return bool(keys)
            return any(key is not None and _same_key(self.program, self.target.slice, key)[0] for key in keys)
        for node, scope in self.program.own_scope.items():
            if isinstance(node, ast.ClassDef):
                for site in scope.sites.get(self.target.attr, []):
                    value = self.program.assigned_value(site)
                    nothing = isinstance(value, ast.Constant) and value.value is None
                    if not nothing and site.kind != "annotation":
                        return True
        return False

    # -- attributes -------------------------------------------------------------------------------------------------

    def _attribute_loads(self) -> list[ast.expr]:
        assert isinstance(self.target, ast.Attribute)
        name = self.target.attr
        found: list[ast.expr] = []
        for node in self.program.scope_at:
            if isinstance(node, ast.Constant) and node.value == name:
                raise self._unsure(node)
            if not isinstance(node, ast.Attribute) or node.attr != name or node is self.target:
                continue
            if self.program.qualified(node) is not None:
                continue
            if not self._same_root(node.value):
                raise self._unsure(node)
            if not isinstance(node.ctx, ast.Load):
                raise self._twice(node)
            found.append(node)
        return found

    def _same_root(self, base: ast.expr) -> bool:
        if not isinstance(base, ast.Name):
            return False
        owner = self.program.owner(base)
        if (owner, base.id) == self.root:
            return True
        return (
            self._self_class(self.root) is not None
            and owner is not None
            and (self._self_class((owner, base.id)) is self._self_class(self.root))
        )

    def _self_class(self, root: tuple[Scope, str]) -> Scope | None:
        """The class scope of which a name is the ``self`` of a method, or None."""
        scope, name = root
        node = scope.node
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            return None
        around = self.program.scope_at[node]
        first = [*node.args.posonlyargs, *node.args.args][:1]
        return around if around.kind == "class" and first and first[0].arg == name else None

    # -- items ------------------------------------------------------------------------------------------------------

    def _item_loads(self) -> list[ast.expr]:
        assert isinstance(self.target, ast.Subscript)
        key = self.target.slice
        self._check_container(key)
        found: list[ast.expr] = []
        for load in self.program.loads(*self.root):
            parent = self.program.parent[load]
            if isinstance(parent, ast.Compare) and load in parent.comparators:
                continue
            if not isinstance(parent, ast.Subscript) or parent.value is not load:
                if self._is_harmless(load, parent):
                    continue
                raise self._unsure(load)
            if parent is self.target:
                continue
            same, sure = _same_key(self.program, key, parent.slice)
            if not isinstance(parent.ctx, ast.Load):
                if sure and not same:
                    continue
                raise self._twice(parent)
            if same or not isinstance(key, ast.Constant):
                found.append(parent)
            elif not sure:
                raise self._unsure(parent)
        return found

    @staticmethod
    def _is_harmless(load: ast.Name, parent: ast.AST) -> bool:
        return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in ("len", "print")

    def _check_container(self, key: ast.expr) -> None:
        """The container must start empty, or with nothing that could be called under this key."""
        site = self.program.only_site(*self.root)
        value = self.program.assigned_value(site) if site else None
        match value:
            case ast.Call(func=ast.Name(id="dict" | "list"), args=[], keywords=[]):
                return
            case ast.Dict():
                # What it holds at first is never read as the stored function: reads are checked to come after.
                for known in value.keys:
                    sure = known is not None and _same_key(self.program, key, known)[1]
                    if not sure:
                        raise self._twice(self.target)
            case _:
                raise self._unsure(self.target)

    # -- words ------------------------------------------------------------------------------------------------------

    def _unsure(self, node: ast.AST) -> Refused:
        line = getattr(node, "lineno", None)
        return Refused(
            f"`{self.text}` keeps the function, and it is not sure that all its uses are seen (line {line}). "
            f"Store a function that takes the value as an argument, and pass it at each call."
        )

    def _twice(self, node: ast.AST) -> Refused:
        return Refused(
            f"`{self.text}` is assigned in more than one place (line {getattr(node, 'lineno', None)}), so its calls "
            "may "
            f"mean another function. Store a function that takes the value as an argument, and pass it at each call."
        )


def location_of(program: Program, target: ast.expr) -> Location | None:
    """The place that an assignment's left side means, or None where it is not understood."""
    if not isinstance(target, ast.Attribute | ast.Subscript) or not isinstance(target.value, ast.Name):
        return None
    owner = program.owner(target.value)
    if owner is None or program.only_site(owner, target.value.id) is None:
        return None
    return Location(program, (owner, target.value.id), target)


def _same_key(program: Program, one: ast.expr, other: ast.expr) -> tuple[bool, bool]:
    """(whether two keys are the same, whether that is sure)."""
    if isinstance(one, ast.Constant) and isinstance(other, ast.Constant):
        return one.value == other.value, True
    if isinstance(one, ast.Name) and isinstance(other, ast.Name):
        same = one.id == other.id and program.owner(one) is program.owner(other)
        return same, same
    return False, False
