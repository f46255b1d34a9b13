"""Every call of a function, with the transforms through which it goes: the way on which a result comes back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, short_text
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope

RESULTS_PASS = frozenset(
    ("jax.jit", "equinox.filter_jit", "flax.nnx.jit", "jax.checkpoint", "equinox.filter_checkpoint", "jax.named_call")
)
"""Wrappers that hand the callable's result back as it is."""
MAPS = frozenset(("jax.vmap",))
"""Wrappers that stack the results along a leading axis."""
TAKES_AUX = frozenset(
    ("jax.grad", "jax.value_and_grad", "jax.jacfwd", "jax.jacrev", "jax.hessian",
     "equinox.filter_grad", "equinox.filter_value_and_grad")
)  # fmt: skip
"""Wrappers that give a further result back with ``has_aux=True``."""
VALUE_AND_GRAD = frozenset(("jax.value_and_grad", "equinox.filter_value_and_grad"))
BINDS = frozenset(("functools.partial", "jax.tree_util.Partial"))
CONSUMERS = {
    "jax.lax.scan": (0,),
    "jax.lax.while_loop": (0, 1),
    "jax.lax.fori_loop": (2,),
    "jax.vjp": (0,),
    "jax.jvp": (0,),
    "jax.linearize": (0,),
    "jax.eval_shape": (0,),
}
"""Calls that call a function given to them and hand its results on; the positions of the callable."""


@dataclass(frozen=True)
class Wrapper:
    """A transform around a function: its full name, and its call or bare decorator."""

    name: str
    node: ast.expr

    @property
    def call(self) -> ast.Call | None:
        """The call that made it, where options can be added; None for a bare decorator."""
        return self.node if isinstance(self.node, ast.Call) else None


@dataclass(frozen=True)
class Site:
    """One call of a function.

    Attributes:
        call: the call, whose value is the function's result as the wrappers give it.
        wrappers: transforms around the function, innermost first.
        consumer: full name of the call where it takes the function as an operand (``jax.lax.scan``), or None.
        operand: position of the function among a consumer's arguments.
        receiver: for a method, the expression before the dot; None where the object itself is called or for functions.
    """

    call: ast.Call
    wrappers: tuple[Wrapper, ...] = ()
    consumer: str | None = None
    operand: int = 0
    receiver: ast.expr | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the function is called directly, under no transform of this call."""
        return self.consumer is None and all(w.name in BINDS for w in self.wrappers)

    @property
    def is_mapped(self) -> bool:
        """Whether results come back stacked."""
        return any(w.name in MAPS for w in self.wrappers)


@dataclass
class CallPaths:
    """Finds the calls of functions.

    Args:
        program: all texts.
    """

    program: Program
    _known: dict[FunctionNode, tuple[Site, ...]] = field(default_factory=dict)

    def of(self, function: FunctionNode) -> tuple[Site, ...]:
        """All calls of a function.

        Raises:
            Refused: where it is used in a way whose calls are not all seen.
        """
        if function not in self._known:
            self._known[function] = tuple(self._find(function))
        return self._known[function]

    def class_of_method(self, function: FunctionNode) -> ast.ClassDef | None:
        """The class in whose body a function is defined, or None."""
        scope = self.program.scope_at[function]
        return scope.node if isinstance(scope.node, ast.ClassDef) and scope.kind == "class" else None

    def instance_class(self, expression: ast.expr) -> ast.ClassDef | None:
        """The user's class of which a name certainly holds an instance, or None."""
        if isinstance(expression, ast.Call):
            found = self.program.definition(expression.func)
            return found if isinstance(found, ast.ClassDef) else None
        if not isinstance(expression, ast.Name):
            return None
        owner = self.program.owner(expression)
        if owner is None:
            return None
        site = self.program.only_site(owner, expression.id)
        if site is None:
            return None
        if site.kind == "parameter":
            return self._class_of_self(site.node, owner)
        value = self.program.assigned_value(site)
        return self.instance_class(value) if isinstance(value, ast.Call | ast.Name) else None

    def _class_of_self(self, parameter: ast.AST, owner: Scope) -> ast.ClassDef | None:
        function = owner.node
        if not isinstance(function, ast.FunctionDef) or self_parameter(self.program, function) is not parameter:
            return None
        return self.class_of_method(function)

    # -- uses -------------------------------------------------------------------------------------------------------

    def _find(self, function: FunctionNode) -> Iterator[Site]:
        if isinstance(function, ast.Lambda):
            yield from self._value(function, function, ())
            return
        wrappers: tuple[Wrapper, ...] = ()
        for decorator in reversed(function.decorator_list):
            wrappers = (*wrappers, self._decorated(function, decorator))
        scope = self.program.scope_at[function]
        if scope.kind == "class":
            yield from self._method(function, wrappers)
            return
        yield from self._name(function, scope, function.name, wrappers)

    def _decorated(self, function: ast.FunctionDef | ast.AsyncFunctionDef, decorator: ast.expr) -> Wrapper:
        name = self.program.qualified(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if isinstance(decorator, ast.Call):
            if name in BINDS and len(decorator.args) == 1:
                name = self.program.qualified(decorator.args[0])
            elif decorator.args:
                name = None
        if name is None or name not in RESULTS_PASS | MAPS | TAKES_AUX:
            raise Refused(
                f"`{function.name}` is decorated with `{short_text(self.program, decorator)}`, and what that does with "
                f"a further result is not known. Return the value from `{function.name}` and bind it at each call."
            )
        return Wrapper(name, decorator)

    def _name(
        self,
        function: FunctionNode,
        scope: Scope,
        name: str,
        wrappers: tuple[Wrapper, ...],
        receiver: ast.expr | None = None,
    ) -> Iterator[Site]:
        owner = scope.lookup(name)
        if owner is None or self.program.only_site(owner, name) is None:
            raise Refused(
                f"`{name}` is bound in more than one place, so it is not sure which function is called. Rename one of "
                "them first."
            )
        if self.program.is_called_in_magic(name):
            raise Refused(f"`{name}` is used in a magic or shell line, which is not rewritten.")
        for load in self.program.loads(owner, name):
            yield from self._value(function, load, wrappers, receiver)

    def _value(
        self,
        function: FunctionNode,
        node: ast.expr,
        wrappers: tuple[Wrapper, ...],
        receiver: ast.expr | None = None,
    ) -> Iterator[Site]:
        """Calls of what ``node`` evaluates to."""
        parent = self.program.parent[node]
        match parent:
            case ast.Call(func=func) if func is node:
                yield Site(parent, wrappers, receiver=receiver)
            case ast.Call() if node in parent.args:
                yield from self._argument(function, parent, node, wrappers, receiver)
            case ast.Assign(targets=[ast.Name(id=name) as target]) if parent.value is node:
                scope = self.program.scope_at[target]
                owner = scope.lookup(name)
                if owner is not None and self.program.only_site(owner, name) is None:
                    raise self._unknown(function, node)
                if owner is None:
                    raise self._unknown(function, node)
                yield from self._name(function, scope, name, wrappers, receiver)
            case ast.Expr():
                return
            case _:
                raise self._unknown(function, node)

    def _argument(
        self,
        function: FunctionNode,
        call: ast.Call,
        node: ast.expr,
        wrappers: tuple[Wrapper, ...],
        receiver: ast.expr | None,
    ) -> Iterator[Site]:
        name = self.program.qualified(call.func) or ""
        place = call.args.index(node)
        if any(isinstance(a, ast.Starred) for a in call.args[: place + 1]):
            raise self._unknown(function, node)
        if place == 0 and name in RESULTS_PASS | MAPS | TAKES_AUX | BINDS:
            yield from self._value(function, call, (*wrappers, Wrapper(name, call)), receiver)
        elif place in CONSUMERS.get(name, ()):
            yield Site(call, wrappers, name, place, receiver)
        elif name == "builtins.print":
            return
        else:
            raise self._unknown(function, node)

    def _unknown(self, function: FunctionNode, node: ast.expr) -> Refused:
        from jaxleak_magic.rewrite.flow import function_name

        name = function_name(self.program, function)
        return Refused(
            f"On line {node.lineno}, `{name}` is used in a way in which a further result does not certainly come back. "
            f"Return the value from `{name}` by hand, and bind it where `{name}` is called."
        )

    # -- methods ----------------------------------------------------------------------------------------------------

    def _method(self, function: FunctionNode, wrappers: tuple[Wrapper, ...]) -> Iterator[Site]:
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        own = self.class_of_method(function)
        assert own is not None
        name = function.name
        if name.startswith("__") and name != "__call__":
            raise Refused(
                f"`{own.name}.{name}` is called by Python itself, so its result cannot carry the value back. Move the "
                "write into a method that is called by name."
            )
        if sum(isinstance(n, ast.FunctionDef) and n.name == name for n in own.body) != 1:
            raise Refused(f"`{own.name}.{name}` is defined more than once.")
        if name == "__call__":
            yield from self._calls_of_instances(function, own, wrappers)
        for node in list(self.program.scope_at):
            if isinstance(node, ast.Constant) and node.value == name:
                raise self._unknown(function, node)
            if not isinstance(node, ast.Attribute) or node.attr != name or not isinstance(node.ctx, ast.Load):
                continue
            if self.program.qualified(node) is not None:
                continue
            found = self.instance_class(node.value)
            if found is None and self.program.is_librarys_object(node.value):
                continue
            if found is None:
                raise Refused(
                    f"It is not sure that `{short_text(self.program, node)}` on line {node.lineno} is "
                    f"`{own.name}.{name}`. Return the value from that method by hand, and bind it at each call."
                )
            if found is own:
                yield from self._value(function, node, wrappers, node.value)
            elif any(isinstance(b, ast.Name) and self.program.definition(b) is own for b in found.bases):
                raise Refused(f"`{found.name}` inherits `{name}`. Return the value from it by hand.")

    def _calls_of_instances(
        self, function: FunctionNode, own: ast.ClassDef, wrappers: tuple[Wrapper, ...]
    ) -> Iterator[Site]:
        for node in list(self.program.scope_at):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if self.instance_class(node) is not own:
                continue
            parent = self.program.parent[node]
            if isinstance(parent, ast.Attribute | ast.Expr):
                continue
            if isinstance(parent, ast.Subscript) and parent.slice is node:
                continue  # the object as a key
            yield from self._value(function, node, wrappers, node)


def self_parameter(program: Program, function: FunctionNode) -> ast.arg | None:
    """The parameter of a method that takes the object, or None where there is none for sure."""
    if not isinstance(function, ast.FunctionDef) or program.scope_at[function].kind != "class":
        return None
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod"):
            return None
    first = [*function.args.posonlyargs, *function.args.args][:1]
    return first[0] if first else None
