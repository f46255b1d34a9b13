"""A Python loop that a trace unrolled becomes ``jax.lax.fori_loop``, which JAX runs as a scan: one copy of its body."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite.array_shapes import ArrayShapes, Names, NotKnown, Value
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.imports import import_module
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed, short_text
from jaxleak_magic.rewrite.rules import Example
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.texts import Text, TextEdit

ID = "loop_to_scan"
TITLE = "Let JAX run the loop: `jax.lax.fori_loop`"
_BODY_NAMES = ("step", "body", "loop_step", "loop_body")
_SETTINGS_OF_DTYPES = ("numpy_dtype_promotion", "numpy_rank_promotion", "x64", "default_dtype_bits")
"""Parts of names of JAX's settings under which an operation of floats may give another dtype, or none."""


def propose(program: Program, text: Text, line: int) -> tuple[str, Draft] | None:
    """The loop on a line as a function that ``fori_loop`` calls; None where no loop stands there.

    Raises:
        Refused: where it is not certain that what the loop changes keeps its shape and dtype, or does nothing else.
    """
    found = [n for n, home in program.text_of.items() if home is text and isinstance(n, ast.For | ast.While)]
    found = [node for node in found if node.lineno == line]
    if len(found) != 1:
        return None
    loop = _Loop.of(program, found[0])
    loop.check()
    return f"Run the loop on line {line} with `jax.lax.fori_loop`", loop.draft()


@dataclass
class _Loop:
    """A loop over ``range`` that stands in a function's own body.

    Attributes:
        node: the loop.
        function: around it.
        index: its variable.
        bounds: the arguments of ``range``.
        carried: names that one step hands to the next or to the code after the loop, in the order in which they
            are first assigned.
    """

    program: Program
    node: ast.For
    function: ast.FunctionDef
    index: ast.Name
    bounds: Sequence[ast.expr]
    carried: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: Program, node: ast.For | ast.While) -> _Loop:
        """The parts of a loop.

        Raises:
            Refused: where it is of another form.
        """
        function = program.parent[node]
        other_form = _by_hand(node, "only a loop over `range(stop)` or `range(start, stop)` is rewritten")
        if not isinstance(node, ast.For) or node.orelse:
            raise other_form
        match node.target, node.iter:
            case ast.Name() as index, ast.Call(func=called, args=[_] | [_, _] as bounds, keywords=[]):
                if program.qualified(called) != "builtins.range":
                    raise other_form
            case _:
                raise other_form
        if not isinstance(function, ast.FunctionDef):
            raise _by_hand(node, "it stands inside of another block")
        if node.body[0].lineno == node.lineno:
            raise _by_hand(node, "its body stands on the line of the loop")
        loop = cls(program, node, function, index, bounds)
        loop.carried = tuple(loop._find_carried())
        return loop

    # -- what is certain ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See that every step keeps shapes and dtypes, whatever arguments the function was called with.

        Raises:
            Refused: where that does not follow from the text.
        """
        if any(word in text.text for text in self.program.texts for word in _SETTINGS_OF_DTYPES):
            raise _by_hand(self.node, "a setting of JAX for dtypes or their promotion is named in the code")
        if not self.carried:
            raise _by_hand(self.node, "it changes no variable that is read later")
        calls = list(self._calls_of(self.function, self.function.name))
        if not calls:
            raise _by_hand(self.node, f"no call of `{self.function.name}` shows what it is given")
        try:
            shapes = ArrayShapes(self.program)
            steps = range(*[shapes.integer(bound) for bound in self.bounds])
            for call in calls:
                self._check_call(shapes, steps, call)
        except NotKnown as part:
            raise self._not_known(part.node) from None

    def _check_call(self, shapes: ArrayShapes, steps: range, call: ast.Call) -> None:
        names = self._arguments(shapes, call)
        before = self.function.body[: self.function.body.index(self.node)]
        shapes.run(before, names)
        follow = ArrayShapes(self.program, {(self._scope, self.index.id): steps})
        first = self._states(names)
        # Twice: a Python number that goes in comes out of the first step as an array.
        follow.run(self.node.body, names)
        second = self._states(names)
        follow.run(self.node.body, names)
        third = self._states(names)
        for name, old, new, last in zip(self.carried, first, second, third, strict=True):
            if new != last or new.kind != "array" or not old.is_floating or old.shape != new.shape:
                raise _by_hand(self.node, f"`{name}` does not certainly keep its shape and dtype")

    def _arguments(self, shapes: ArrayShapes, call: ast.Call) -> Names:
        arguments = self.function.args
        given = [*arguments.posonlyargs, *arguments.args]
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults or call.keywords:
            raise NotKnown(call)
        if len(given) != len(call.args) or any(isinstance(a, ast.Starred) for a in call.args):
            raise NotKnown(call)
        names: Names = {}
        for argument, node in zip(given, call.args, strict=True):
            try:
                value = shapes.of(node, {})
            except NotKnown:
                continue  # only what the loop needs must be known
            if value.is_floating:
                names[self._scope, argument.arg] = Value("array", value.shape)
        return names

    def _states(self, names: Names) -> list[Value]:
        for name in self.carried:
            if (self._scope, name) not in names:
                raise _by_hand(self.node, f"the shape and dtype of `{name}` before the loop are not known")
        return [names[self._scope, name] for name in self.carried]

    def _calls_of(self, function: FunctionNode, name: str) -> Iterator[ast.Call]:
        """The calls of a function that is only ever called through ``jax.jit``, at top level."""
        program, scope = self.program, self.program.scope_at[function]
        decorators = function.decorator_list if isinstance(function, ast.FunctionDef) else []
        compiled = [program.qualified(decorator) == "jax.jit" for decorator in decorators]
        if scope.kind != "module" or not all(compiled) or program.is_called_in_magic(name):
            raise _by_hand(self.node, f"not every call of `{name}` is seen")
        yield from self._calls_of_name(scope, name, bool(compiled))

    def _calls_of_name(self, scope: Scope, name: str, compiled: bool) -> Iterator[ast.Call]:
        program = self.program
        if program.only_site(scope, name) is None or program.is_called_in_magic(name):
            raise _by_hand(self.node, f"not every call of `{name}` is seen")
        for load in program.loads(scope, name):
            above = program.parent[load]
            if not isinstance(above, ast.Call) or program.scope_at[load] is not scope:
                raise _by_hand(self.node, f"not every call of `{name}` is seen")
            if above.func is load:
                if not compiled:
                    raise _by_hand(self.node, f"`{name}` is also called without `jax.jit`")
                yield above
                continue
            around = program.parent[above]
            if program.qualified(above.func) != "jax.jit" or above.args != [load] or above.keywords:
                raise _by_hand(self.node, f"not every call of `{name}` is seen")
            if isinstance(around, ast.Call) and around.func is above:
                yield around
            elif isinstance(around, ast.Assign) and [type(t) for t in around.targets] == [ast.Name]:
                target = around.targets[0]
                assert isinstance(target, ast.Name)
                yield from self._calls_of_name(scope, target.id, True)
            else:
                raise _by_hand(self.node, f"not every call of `{name}` is seen")

    def _not_known(self, node: ast.AST) -> Refused:
        if isinstance(node, ast.stmt) and not isinstance(node, ast.AugAssign):
            return _by_hand(self.node, f"line {node.lineno} does more than to assign a variable")
        return _by_hand(self.node, f"shape and dtype of `{short_text(self.program, node)}` do not follow from the text")

    # -- names --------------------------------------------------------------------------------------------------------

    @property
    def _scope(self) -> Scope:
        return self.program.own_scope[self.function]

    def _find_carried(self) -> Iterator[str]:
        """Names that a step needs from the one before it, or that are read after the loop.

        Raises:
            Refused: where a name of the loop is read by another function, or its index after the loop.
        """
        assigned: list[str] = []
        needed: set[str] = set()
        for name, is_read in _uses(self.node.body):
            if self.program.owner(name) is not self._scope:
                continue
            if is_read and name.id not in assigned:
                needed.add(name.id)
            elif not is_read and name.id not in assigned:
                assigned.append(name.id)
        inside = {id(node) for node in ast.walk(self.node)}
        for name in (self.index.id, *assigned):
            loads = self.program.loads(self._scope, name)
            if any(self.program.scope_at[load] is not self._scope for load in loads):
                raise _by_hand(self.node, f"another function reads `{name}`")
            outside = [load for load in loads if id(load) not in inside]
            after = [load for load in outside if load.lineno > (self.node.end_lineno or self.node.lineno)]
            if name == self.index.id:
                if after or name in assigned:
                    raise _by_hand(self.node, f"`{name}` is assigned in it or read after it")
            elif name in needed or after:
                yield name

    # -- the edits ----------------------------------------------------------------------------------------------------

    def draft(self) -> Draft:
        """The loop's head becomes that of a function, and its call follows; the body's lines stay as they are."""
        program, node = self.program, self.node
        text = program.text_of[node]
        draft = Draft()
        spelled = program.spelling("jax.lax.fori_loop", node)
        if spelled is None:
            module = import_module(program, draft, "jax", node)
            if module is None:
                raise _by_hand(node, "`jax` is not imported")
            spelled = f"{module}.lax.fori_loop"
        body = self._body_name()
        outer, inner = text.indent_of_line(text.start(node)), text.indent_of_line(text.start(node.body[0]))
        if outer is None or inner is None:
            raise _by_hand(node, "another statement stands on its line")
        one = len(self.carried) == 1
        names = ", ".join(self.carried)
        carry = names if one else self._unused("carry", "state", "carried")
        start, stop = ["0", *[text.of(bound) for bound in self.bounds]][-2:]
        end = text.newline
        head = f"def {body}({self.index.id}, {carry}):" + ("" if one else f"{end}{inner}{names} = {carry}")
        colon = text.masked.index(":", text.after_parentheses(text.stop(node.iter), len(text.masked)))
        draft.add(text, [TextEdit(text.start(node), colon + 1, 0, head)])
        after = f"{inner}return {names}{end}{end}{outer}{names} = {spelled}({start}, {stop}, {body}, "
        after += f"{names if one else f'({names})'})"
        place = text.stop(node)
        rest = (text.masked[place:].splitlines() or [""])[0]
        if rest.strip() and not rest.strip().startswith("#"):
            raise _by_hand(node, "another statement stands on its last line")
        place += len(rest)
        draft.add(text, [TextEdit(place, place, 0, end + after)])
        draft.new_parameters.add(body)
        local = {self.index.id, *self.carried, *(name.id for name, is_read in _uses(node.body) if not is_read)}
        draft.rows += [n for n, _ in _uses(node.body) if n.id in local and program.owner(n) is self._scope]
        return draft

    def _body_name(self) -> str:
        return self._unused(*_BODY_NAMES)

    def _unused(self, *names: str) -> str:
        """The first of some names that stands nowhere in the function, and is no global of the user's."""
        taken = {node.id for node in ast.walk(self.function) if isinstance(node, ast.Name)}
        taken |= {node.arg for node in ast.walk(self.function) if isinstance(node, ast.arg)}
        free = [name for name in names if name not in taken and self._scope.lookup(name) is None]
        if not free:
            raise _by_hand(self.node, f"the names {listed(names)} are taken")
        return free[0]


def _uses(statements: Sequence[ast.stmt]) -> Iterator[tuple[ast.Name, bool]]:
    """The names of assignments in the order in which they are evaluated, each with whether it is read there."""
    for statement in statements:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
            targets = [statement.target]
        found = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        below = {id(node) for node in found}
        yield from ((n, True) for n in ast.walk(statement) if isinstance(n, ast.Name) and id(n) not in below)
        if isinstance(statement, ast.AugAssign):
            yield from ((node, True) for node in found)
        yield from ((node, False) for node in found)


def _by_hand(node: ast.stmt, why: str) -> Refused:
    return Refused(
        f"The loop on line {node.lineno} was not rewritten: {why}. By hand: make its body a function `step(i, carry)` "
        "that returns the new carry, each part with the shape and dtype that it came with, and call "
        "`jax.lax.fori_loop(start, stop, step, carry)`."
    )


_IMPORTS = "import jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "one variable that keeps its shape",
        _IMPORTS
        + """\
STEPS = 100

@jax.jit
def relax(x):
    for _ in range(STEPS):  # explicit Euler
        slope = jnp.sin(x)  # of the field
        x = x - 0.01 * slope
    return x

relax(jnp.ones(3))
""",
        _IMPORTS
        + """\
STEPS = 100

@jax.jit
def relax(x):
    def step(_, x):  # explicit Euler
        slope = jnp.sin(x)  # of the field
        x = x - 0.01 * slope
        return x

    x = jax.lax.fori_loop(0, STEPS, step, x)
    return x

relax(jnp.ones(3))
""",
        stored_line=8,
    ),
    Example(
        "several variables, the index, and a function of the user's",
        _IMPORTS
        + """\
def force(x):
    return -jnp.sin(x)

def swing(x, v, drive):
    total = 0.0
    for i in range(1, 40):
        v = v + 0.1 * (force(x) + drive[i])
        x, total = x + 0.1 * v, total + jnp.sum(v * v)
    return x, total

fast = jax.jit(swing)
fast(jnp.zeros(4), jnp.ones(4), jnp.linspace(0, 1, 50))
""",
        _IMPORTS
        + """\
def force(x):
    return -jnp.sin(x)

def swing(x, v, drive):
    total = 0.0
    def step(i, carry):
        v, x, total = carry
        v = v + 0.1 * (force(x) + drive[i])
        x, total = x + 0.1 * v, total + jnp.sum(v * v)
        return v, x, total

    v, x, total = jax.lax.fori_loop(1, 40, step, (v, x, total))
    return x, total

fast = jax.jit(swing)
fast(jnp.zeros(4), jnp.ones(4), jnp.linspace(0, 1, 50))
""",
        stored_line=9,
    ),
    Example(
        "gradient descent",
        _IMPORTS
        + """\
def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)

@jax.jit
def fit(w, x, y):
    for _ in range(50):
        w -= 0.1 * jax.grad(loss)(w, x, y)
    return w

fit(jnp.zeros(3), jnp.ones((8, 3)), jnp.ones(8))
""",
        _IMPORTS
        + """\
def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)

@jax.jit
def fit(w, x, y):
    def step(_, w):
        w -= 0.1 * jax.grad(loss)(w, x, y)
        return w

    w = jax.lax.fori_loop(0, 50, step, w)
    return w

fit(jnp.zeros(3), jnp.ones((8, 3)), jnp.ones(8))
""",
        stored_line=9,
    ),
    Example(
        "a variable that becomes larger",
        _IMPORTS
        + """\
@jax.jit
def grow(x):
    for _ in range(40):
        x = x + jnp.ones((2, 3))
    return x

grow(jnp.ones(3))
""",
        refusal="`x` does not certainly keep its shape and dtype",
        stored_line=6,
    ),
    Example(
        "a loop that prints",
        _IMPORTS
        + """\
@jax.jit
def noisy(x):
    for i in range(40):
        x = jnp.sin(x)
        print(i)
    return x

noisy(1.0)
""",
        refusal="line 8 does more than to assign a variable",
        stored_line=6,
    ),
    Example(
        "an argument that is not known",
        _IMPORTS
        + """\
@jax.jit
def smooth(x):
    for _ in range(40):
        x = jnp.tanh(x)
    return x

smooth(load("points.npy"))
""",
        refusal="the shape and dtype of `x` before the loop are not known",
        stored_line=6,
    ),
)
