"""What a computation inside a function depends on: whether anything that may be traced goes into it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from jaxleak_magic.rewrite.call_paths import self_parameter
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope, Site
from jaxleak_magic.rewrite.state_writes import writes_in


class TracedInputs:
    """What the code of a function depends on.

    Args:
        program: all texts.
        function: the function in which the code stands.
        known_calls: whether a parameter counts as known where every call that the texts show passes what is known.
    """

    def __init__(self, program: Program, function: FunctionNode, *, known_calls: bool = False) -> None:
        self.program = program
        self.function = function
        self.known_calls = known_calls
        self._asked: set[str] = set()

    def traced_name(self, nodes: Sequence[ast.stmt | ast.expr]) -> str | None:
        """A name in some code that may stand for a traced value, or None where it certainly has none."""
        for node in nodes:
            for each in _values_in(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and self._may_be_traced(each):
                    return each.id
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and self._is_traced_field(each):
                    return self.program.text_of[each].of(each)
        return None

    def _may_be_traced(self, name: ast.Name) -> bool:
        owner = self.program.owner(name)
        own = self.program.own_scope[self.function]
        if owner is None or owner.kind == "module":
            return False
        if owner is not own:
            return not owner.is_inside(own)
        parameter = self._self_parameter()
        if parameter is not None and parameter.arg == name.id:
            return False
        if name.id in self._asked:
            return False
        self._asked.add(name.id)
        if any(self._binds_traced(owner, name.id, site) for site in self.program.sites(owner, name.id)):
            return True
        self._asked.discard(name.id)
        return False

    def _binds_traced(self, owner: Scope, name: str, site: Site) -> bool:
        if site.kind == "parameter":
            return not (self.known_calls and self._is_known_at_each_call(name))
        origins = self._origins(site)
        return origins is None or self.traced_name(origins) is not None

    def _origins(self, site: Site) -> list[ast.stmt | ast.expr] | None:
        """The code that a binding's value comes from, or None where it is not known."""
        node: ast.AST | None = site.node
        if site.kind in ("import", "delete", "annotation"):
            return []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return list(node.body)
        while node is not None and not isinstance(node, ast.stmt):
            match node:
                case ast.comprehension(iter=source) | ast.withitem(context_expr=source) | ast.NamedExpr(value=source):
                    return [source]
                case _:
                    node = self.program.parent.get(node)
        match node:
            case ast.Assign(value=source) | ast.AugAssign(value=source) | ast.For(iter=source):
                return [source]
            case ast.AnnAssign(value=ast.expr() as source):
                return [source]
            case _:
                return None

    def _is_known_at_each_call(self, name: str) -> bool:
        """Whether every use of the function is a call that passes something known for a parameter."""
        function, program = self.function, self.program
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return False
        arguments = function.args
        positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        owner = program.scope_at[function].lookup(function.name)
        if owner is None or owner.kind == "class" or program.only_site(owner, function.name) is None:
            return False
        calls = program.loads(owner, function.name)
        for load in calls:
            call = program.parent[load]
            if not isinstance(call, ast.Call) or call.func is not load:
                return False
            if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
                return False
            given = next((k.value for k in call.keywords if k.arg == name), None)
            if given is None and name in positional and positional.index(name) < len(call.args):
                given = call.args[positional.index(name)]
            around = program.enclosing_function(call)
            if given is not None and around is not None and around is not function:
                inside = TracedInputs(program, around, known_calls=False)
                if inside.traced_name([given]) is not None:
                    return False
        return bool(calls)

    def _is_traced_field(self, attribute: ast.Attribute) -> bool:
        """An attribute of the object that a method writes with something that may be traced."""
        parameter = self._self_parameter()
        if parameter is None or not isinstance(attribute.value, ast.Name) or attribute.value.id != parameter.arg:
            return False
        around = self.program.scope_at[self.function]
        for method in around.node.body if isinstance(around.node, ast.ClassDef) else []:
            if not isinstance(method, ast.FunctionDef) or method is self.function or method.name == "__init__":
                continue
            for write in writes_in(self.program, method):
                if isinstance(write.target, ast.Attribute) and write.target.attr == attribute.attr:
                    return True
        return False

    def _self_parameter(self) -> ast.arg | None:
        return None if isinstance(self.function, ast.Lambda) else self_parameter(self.program, self.function)


_KNOWN_PARTS = ("shape", "ndim", "dtype", "size", "itemsize")
"""Attributes of a traced array that are known while it is traced."""


def _values_in(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of some code, without the expressions of which only the shape, the dtype or the type counts."""
    yield node
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Attribute(attr=name) if name in _KNOWN_PARTS and isinstance(child.ctx, ast.Load):
                continue
            case ast.Call(func=ast.Name(id="len" | "isinstance" | "type"), args=[_, *_]):
                continue
            case _:
                yield from _values_in(child)
