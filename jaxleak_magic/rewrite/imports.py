"""A new import beside the user's others, where a rewrite needs a name that no import gives yet."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxleak_magic.rewrite.insertions import delete_statement
from jaxleak_magic.rewrite.texts import TextEdit

if TYPE_CHECKING:
    from jaxleak_magic.rewrite.draft import Draft
    from jaxleak_magic.rewrite.program import Program


def import_module(program: Program, draft: Draft, module: str, at: ast.AST) -> str | None:
    """Add ``import module`` to the text of a node, in alphabetical order where it can be.

    Returns:
        How the module is written from then on; None where its first name is taken, or where no import stands.
    """
    name = module.split(".")[0]
    return _add(program, draft, name, f"import {module}", module, at, plain=True) and module


def import_name(program: Program, draft: Draft, module: str, name: str, at: ast.AST) -> str | None:
    """Add ``from module import name`` to the text of a node; gives the name, or None where it cannot be added."""
    return _add(program, draft, name, f"from {module} import {name}", module, at, plain=False)


def drop_unused_import(program: Program, draft: Draft, gone: ast.AST) -> None:
    """Take out imports of which the only use stands in code that the rewrite takes out.

    Args:
        program: all texts.
        draft: takes the edits.
        gone: the code that is taken out.
    """
    for name in {node.id: node for node in ast.walk(gone) if isinstance(node, ast.Name)}.values():
        owner = program.owner(name)
        site = program.only_site(owner, name.id) if owner is not None else None
        if owner is None or site is None or site.kind != "import" or program.is_called_in_magic(name.id):
            continue
        statement = program.parent[site.node]
        inside = all(any(load is node for node in ast.walk(gone)) for load in program.loads(owner, name.id))
        if inside and isinstance(statement, ast.Import | ast.ImportFrom) and len(statement.names) == 1:
            text = program.text_of[statement]
            draft.add(text, [delete_statement(text, statement)])


def _add(
    program: Program, draft: Draft, name: str, statement: str, module: str, at: ast.AST, plain: bool
) -> str | None:
    text = program.text_of[at]
    if name in program.known_names or any(name in scope.sites for scope in program.own_scope.values()):
        return None
    if name in program.scope_at[text.tree].sites:
        return None
    imports = [s for s in text.tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    imports = [s for s in imports if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]
    if not imports:
        return None
    later = [s for s in imports if isinstance(s, ast.Import) is plain and _module_of(s) > module] if plain else []
    if later or plain:
        start = text.start(later[0] if later else imports[0])
        if text.indent_of_line(start) != "":
            return None
        draft.add(text, [TextEdit(start, start, 0, statement + text.newline)])
        return name
    stop = text.stop(imports[-1])
    draft.add(text, [TextEdit(stop, stop, 0, text.newline + statement)])
    return name


def _module_of(statement: ast.Import | ast.ImportFrom) -> str:
    return statement.module or "" if isinstance(statement, ast.ImportFrom) else statement.names[0].name
