"""Branches of ``cond`` or ``switch`` that disagree: a constant takes shape and dtype of what the others return."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed, short_text
from jaxleak_magic.rewrite.rules import Example
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.texts import Text

ID = "like_branches"
TITLE = "Let all branches return the same shape and dtype"
_LIKE = {"jax.numpy.ones": "ones_like", "jax.numpy.zeros": "zeros_like", "jax.numpy.full": "full_like"}


def propose(program: Program, text: Text, line: int) -> tuple[str, Draft] | None:
    """The branches of the call on a line, made alike; None where no such call stands there.

    Raises:
        Refused: where it is not sure what they should return.
    """
    call = _call_at(program, text, line)
    if call is None:
        return None
    branches = [_Branch.of(program, node) for node in _branches(program, call)]
    found = [branch for branch in branches if branch is not None]
    patterns = {branch.parameter for branch in found if branch.parameter is not None}
    constants = [branch for branch in found if branch.constant is not None]
    if len(found) != len(branches) or len(patterns) != 1 or not constants:
        raise _by_hand(program, call)
    if len([b for b in found if b.parameter is not None]) + len(constants) != len(found):
        raise _by_hand(program, call)
    draft = Draft()
    for branch in constants:
        branch.make_like(program, draft, patterns.copy().pop(), call)
    names = listed([function_name(program, branch.function) for branch in constants])
    return f"Give the result of {names} the shape and dtype of the other branch", draft


def _by_hand(program: Program, call: ast.Call) -> Refused:
    return Refused(
        f"The branches of `{short_text(program, call.func)}` on line {call.lineno} return results of different "
        "shape or dtype, and it is not sure which one is meant. Let all of them return the same, for instance with "
        "`jnp.zeros_like(x)` or `y.astype(x.dtype)`."
    )


def _call_at(program: Program, text: Text, line: int) -> ast.Call | None:
    found = [
        node
        for node, home in program.text_of.items()
        if home is text
        and isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and program.qualified(node.func) in ("jax.lax.cond", "jax.lax.switch")
    ]
    return found[0] if len(found) == 1 else None


def _branches(program: Program, call: ast.Call) -> list[ast.expr]:
    if program.qualified(call.func) == "jax.lax.cond" and len(call.args) > 3:
        return call.args[1:3]
    if len(call.args) > 2 and isinstance(call.args[1], ast.List | ast.Tuple):
        return call.args[1].elts
    raise _by_hand(program, call)


class _Branch:
    """A branch that returns one parameter as it is, or a constant.

    Attributes:
        function: the branch.
        result: the expression that it returns.
        parameter: number of the parameter whose shape and dtype the result has, or None.
        constant: full name of the function that makes the constant, the number itself, or None.
    """

    def __init__(self, function: FunctionNode, result: ast.expr) -> None:
        self.function = function
        self.result = result
        self.parameter: int | None = None
        self.constant: str | int | float | None = None

    @classmethod
    def of(cls, program: Program, node: ast.expr) -> _Branch | None:
        """The branch that an expression means, or None where it is of another form."""
        function = program.definition(node)
        if not isinstance(function, ast.Lambda | ast.FunctionDef):
            return None
        if isinstance(function, ast.Lambda):
            result: ast.expr | None = function.body
        else:
            body = function.body[1:] if isinstance(function.body[0], ast.Expr) else function.body
            owner = program.scope_at[function].lookup(function.name)
            used_once = owner is not None and len(program.loads(owner, function.name)) == 1
            alone = len(body) == 1 and isinstance(body[0], ast.Return) and not function.decorator_list and used_once
            result = body[0].value if alone else None  # type: ignore[union-attr]
        if result is None:
            return None
        branch = cls(function, result)
        branch.parameter = branch._pattern(result)
        branch.constant = branch._made_by(program, result)
        return branch

    def _parameters(self) -> list[str]:
        return [a.arg for a in (*self.function.args.posonlyargs, *self.function.args.args)]

    def _pattern(self, node: ast.expr) -> int | None:
        """The parameter that an expression keeps the shape and dtype of."""
        match node:
            case ast.Name(id=name) if name in self._parameters():
                return self._parameters().index(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._pattern(operand)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=ast.Constant(value=int())):
                return self._pattern(left)
            case _:
                return None

    def _made_by(self, program: Program, node: ast.expr) -> str | int | float | None:
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Call():
                name = program.qualified(node.func)
                return name if name in _LIKE and not node.keywords else None
            case _:
                return None

    def make_like(self, program: Program, draft: Draft, number: int, call: ast.Call) -> None:
        """Write the constant with shape and dtype of a parameter."""
        text = program.text_of[self.result]
        if number >= len(self._parameters()):
            raise _by_hand(program, call)
        like = self._parameters()[number]
        if isinstance(self.constant, str):
            stem = _LIKE[self.constant]
            value = text.of(self.result.args[1]) if stem == "full_like" else None  # type: ignore[attr-defined]
        else:
            stem = {0: "zeros_like", 1: "ones_like"}.get(self.constant or 0, "full_like")  # type: ignore[arg-type]
            value = text.of(self.result) if stem == "full_like" else None
        spelled = program.spelling(f"jax.numpy.{stem}", self.result)
        if spelled is None:
            raise _by_hand(program, call)
        arguments = like if value is None else f"{like}, {value}"
        draft.add(text, insertions.replace(text, self.result, f"{spelled}({arguments})"))


_IMPORTS = "import jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "a constant of another shape",
        _IMPORTS
        + """\
def choose(x):
    def fresh(x):
        return jnp.ones((3,))  # a new start

    def keep(x):
        return x

    return jax.lax.cond(x.sum() > 0, fresh, keep, x)
""",
        _IMPORTS
        + """\
def choose(x):
    def fresh(x):
        return jnp.ones_like(x)  # a new start

    def keep(x):
        return x

    return jax.lax.cond(x.sum() > 0, fresh, keep, x)
""",
        stored_line=11,
    ),
    Example(
        "a number among the branches of a switch",
        _IMPORTS
        + """\
def choose(i, x):
    return jax.lax.switch(i, [lambda v: 0.0, lambda v: -v, lambda v: 2.5], x)
""",
        _IMPORTS
        + """\
def choose(i, x):
    return jax.lax.switch(i, [lambda v: jnp.zeros_like(v), lambda v: -v, lambda v: jnp.full_like(v, 2.5)], x)
""",
        stored_line=5,
    ),
    Example(
        "two results of which either may be meant",
        _IMPORTS
        + """\
def choose(x):
    return jax.lax.cond(x.sum() > 0, lambda v: v[:2], lambda v: v[1:], x)
""",
        refusal="it is not sure which one is meant",
        stored_line=5,
    ),
)
