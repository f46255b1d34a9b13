"""Settings: a place that one function writes and others read, where an argument would do.

A context variable, an attribute of a module or of an object that only carries values, a thread's local storage.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.scopes import Scope

_CARRIERS = ("types.SimpleNamespace", "threading.local", "types.ModuleType")


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        program: all texts.
        root: scope and name of the variable through which it is reached.
        attribute: the attribute, or None for a context variable.
        written: the statement that writes it with the leaked value.
        value: the name that is written.
    """

    program: Program
    root: tuple[Scope, str]
    attribute: str | None
    written: ast.Assign | ast.Expr
    value: ast.Name

    def reads(self) -> list[ast.expr]:
        """Every expression that reads the setting.

        Raises:
            Refused: where something else is done with it, or it is written in more than one function.
        """
        found: list[ast.expr] = []
        for load in self.program.loads(*self.root):
            used = self.program.parent[load]
            if not isinstance(used, ast.Attribute):
                raise self._unsure(load)
            if self.attribute is None:
                call = self.program.parent[used]
                if not isinstance(call, ast.Call) or call.func is not used:
                    raise self._unsure(load)
                if used.attr == "get" and not call.keywords and len(call.args) <= 1:
                    found.append(call)
                elif self.program.parent[call] is not self.written:
                    raise self._unsure(load)
            elif used.attr == self.attribute:
                if isinstance(used.ctx, ast.Load):
                    found.append(used)
                elif self.program.parent[used] is not self.written and self.program.scope_at[used].kind != "module":
                    raise self._unsure(load)
        return found

    def definition(self) -> ast.Assign | None:
        """The statement that makes a context variable, which nothing needs any more once it is an argument."""
        site = self.program.only_site(*self.root)
        statement = self.program.parent.get(site.node) if site is not None else None
        return statement if self.attribute is None and isinstance(statement, ast.Assign) else None

    def _unsure(self, node: ast.AST) -> Refused:
        line = getattr(node, "lineno", None)
        return Refused(
            f"`{self.text}` is used in a way that is not understood well enough (line {line}). "
            f"Let the functions that read it take its value as an argument."
        )

    @property
    def text(self) -> str:
        """The setting as the user writes it."""
        return self.root[1] if self.attribute is None else f"{self.root[1]}.{self.attribute}"


def setting_written_at(program: Program, place: Place) -> Setting | None:
    """The setting that the statement at a place writes, or None where that is anything else."""
    for node, text in program.text_of.items():
        if (text.source.cell, text.source.file) != (place.cell, place.file):
            continue
        if not isinstance(node, ast.Assign | ast.Expr) or node.lineno != place.line:
            continue
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name() as base, attr=attribute)], value=ast.Name() as value
            ):
                owner = _owner_of_setting(program, base)
                return Setting(program, (owner, base.id), attribute, node, value) if owner is not None else None
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name() as base, attr="set"), args=[ast.Name() as value])
            ):
                owner = program.owner(base)
                made = _made_by(program, owner, base.id) if owner is not None else None
                if owner is None or made != "contextvars.ContextVar":
                    return None
                return Setting(program, (owner, base.id), None, node, value)
            case _:
                continue
    return None


def _owner_of_setting(program: Program, base: ast.Name) -> Scope | None:
    """The module scope that binds a module or an object that only carries values under this name."""
    owner = program.owner(base)
    site = program.only_site(owner, base.id) if owner is not None else None
    if owner is None or owner.kind != "module" or site is None:
        return None
    carries = site.kind == "import" or _made_by(program, owner, base.id) in _CARRIERS
    return owner if carries else None


def _made_by(program: Program, owner: Scope, name: str) -> str | None:
    site = program.only_site(owner, name)
    value = program.assigned_value(site) if site is not None else None
    return program.qualified(value.func) if isinstance(value, ast.Call) else None
