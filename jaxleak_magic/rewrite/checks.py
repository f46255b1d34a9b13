"""Static checks of a finished draft: it compiles, and only the names that it was to change mean something else."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence

from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.texts import Shift, Text, TextEdit, apply_edits


def check(program: Program, draft: Draft, variables: Sequence[str]) -> None:
    """Compare the rewritten program with the old one.

    Raises:
        Refused: where a rewritten text does not compile; a lifted function still closes over a value; a function closes
            over a name that it did not before (but for functions that may keep the values); or a name of the old text
            means another binding.
    """
    for text, edits in draft.edits.items():
        _refuse_inside_strings(program, text, edits)
    sources = [_rewritten(text, draft.edits.get(text, [])) for text in program.texts]
    after = Program(sources, program.known_names, program.library_objects)
    if after.unreadable or len(after.texts) != len(program.texts):
        raise Refused("The rewritten code would not be valid Python, so it is not offered.")
    pairs: dict[Scope, Scope] = {}
    for old, new in zip(program.texts, after.texts, strict=True):
        _pair_scopes(program, old, after, new, draft.edits.get(old, []), pairs)
    for function in program.functions():
        _check_function(program, after, function, pairs, draft, frozenset(variables))
    for old, new in zip(program.texts, after.texts, strict=True):
        _check_names(program, old, after, new, draft, pairs, frozenset(variables))


def _rewritten(text: Text, edits: list[TextEdit]) -> SourceText:
    return dataclasses.replace(text.source, text=apply_edits(text.text, edits))


def _refuse_inside_strings(program: Program, text: Text, edits: list[TextEdit]) -> None:
    """Positions inside f-strings are wrong before Python 3.12, and ``{x=}`` shows the code itself."""
    for node, home in program.text_of.items():
        if home is text and isinstance(node, ast.JoinedStr):
            start, stop = text.start(node), text.stop(node)
            if any(start < edit.start < stop for edit in edits):
                raise Refused("A call inside an f-string would have to change. Take it out of the string first.")
    for start, stop in text.masked_spans:
        if any(start < edit.start < stop for edit in edits):
            raise Refused("A magic or shell line would have to change, which is not rewritten.")


def _pair_scopes(
    program: Program, old: Text, after: Program, new: Text, edits: list[TextEdit], pairs: dict[Scope, Scope]
) -> None:
    shift = Shift(edits)
    pairs[program.scope_at[old.tree]] = after.scope_at[new.tree]
    # An edit that wraps or extends stands before or after a node; its first character names it safely.
    found = {
        (type(node), _anchor(new, node)): scope for node, scope in after.own_scope.items() if after.text_of[node] is new
    }
    for node, scope in program.own_scope.items():
        if program.text_of[node] is not old:
            continue
        anchor = shift(_anchor(old, node))
        partner = found.get((type(node), anchor)) if anchor is not None else None
        if partner is not None:
            pairs[scope] = partner
        elif not _is_replaced(old, node, edits):
            raise Refused("The rewritten code could not be compared with the old one, so it is not offered.")


def _anchor(text: Text, node: ast.AST) -> int:
    """An index that belongs to one scope node alone."""
    match node:
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return text.start(node.generators[0].target)
        case ast.Lambda():
            return text.start(node)
        case ast.ClassDef():
            # a decorator may be put before it
            return text.start(node.body[0])
        case _:
            return text.start(node)


def _is_replaced(text: Text, node: ast.AST, edits: list[TextEdit]) -> bool:
    start, stop = text.start(node), text.stop(node)
    return any(edit.start <= start and stop <= edit.stop for edit in edits)


def _check_function(
    program: Program,
    after: Program,
    function: FunctionNode,
    pairs: dict[Scope, Scope],
    draft: Draft,
    variables: frozenset[str],
) -> None:
    scope = program.own_scope[function]
    if scope not in pairs:
        return
    partner = pairs[scope].node
    assert isinstance(partner, FunctionNode)
    before, now = program.free_names(function), after.free_names(partner)
    name = function_name(program, function)
    if not after.scopes_agree(partner) and program.scopes_agree(function):
        raise Refused("The rewritten code would not compile, so it is not offered.")
    if function in draft.lifted:
        if now & variables:
            raise Refused(f"`{name}` would still close over a value after the rewrite, so it is not offered.")
        if now - before:
            raise Refused(f"`{name}` would close over something new after the rewrite, so it is not offered.")
    elif now - before - variables - draft.kept_values or before - now - variables:
        raise Refused(f"`{name}` would close over other values after the rewrite, so it is not offered.")
    elif (now & variables) - before and function not in draft.kept and not _inside_kept(program, function, draft):
        raise Refused(f"`{name}` would close over a value that it did not hold before, so it is not offered.")
    added = set(pairs[scope].sites) - set(scope.sites)
    allowed = variables if function in draft.lifted else frozenset[str]()
    if function in draft.renamed_parameters:
        allowed = allowed | variables
    if added - allowed - draft.new_parameters:
        raise Refused(f"`{name}` would bind a new name, so the rewrite is not offered.")


def _inside_kept(program: Program, function: FunctionNode, draft: Draft) -> bool:
    own = program.own_scope[function]
    return any(own.is_inside(program.own_scope[each]) for each in (*draft.kept, *draft.lifted))


def _check_names(
    program: Program,
    old: Text,
    after: Program,
    new: Text,
    draft: Draft,
    pairs: dict[Scope, Scope],
    variables: frozenset[str],
) -> None:
    """Each name of the old text that still stands must mean the binding that it meant."""
    shift = Shift(draft.edits.get(old, []))
    standing = {
        new.start(node): node for node, text in after.text_of.items() if text is new and isinstance(node, ast.Name)
    }
    lifted = [program.own_scope[function] for function in draft.lifted]
    for node, text in program.text_of.items():
        if text is not old or not isinstance(node, ast.Name):
            continue
        place = shift(old.start(node))
        partner = standing.get(place) if place is not None else None
        if partner is None or partner.id != node.id:
            if _is_replaced(old, node, draft.edits.get(old, [])):
                continue
            raise Refused(f"`{node.id}` on line {node.lineno} would be moved, so the rewrite is not offered.")
        owner, now = program.owner(node), after.owner(partner)
        if node in draft.rows:
            if now is None or not isinstance(now.node, FunctionNode) or now in pairs.values():
                raise Refused(f"`{node.id}` on line {node.lineno} could not be mapped, so the rewrite is not offered.")
            continue
        if owner is None or owner not in pairs:
            same = now is None or (node.id in variables and now.kind == "function")
        else:
            same = pairs[owner] is now
        if not same and node.id in variables and any(program.scope_at[node].is_inside(scope) for scope in lifted):
            # The lifted value itself: now the function's own parameter.
            same = now is not None and any(now is pairs.get(scope) for scope in lifted)
        if not same:
            raise Refused(
                f"`{node.id}` on line {node.lineno} would mean something else, so the rewrite is not offered."
            )
