"""Functions with their own derivative rules: one more argument for the function, for its rules and the residuals.

The derivative for the new argument is never guessed. It is left out (``None``, which JAX takes as zero) only where it
is zero for sure: the function itself does not use the value, or nothing is differentiated with respect to it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.texts import TextEdit

_KINDS = {"jax.custom_vjp": "defvjp", "jax.custom_jvp": "defjvp"}

NodeEdit = tuple[ast.AST, TextEdit]


@dataclass(frozen=True)
class CustomRule:
    """A function under ``custom_vjp`` or ``custom_jvp``, and its rules.

    Attributes:
        primal: the function.
        rules: the functions of the rules: forward and backward, or the one of ``custom_jvp``.
        decorator: the decorator of the function.
        nondiff: the decorator's ``nondiff_argnums``.
        reverse: whether it is ``custom_vjp``.
    """

    primal: ast.FunctionDef
    rules: tuple[FunctionNode, ...]
    decorator: ast.expr
    nondiff: tuple[int, ...]
    reverse: bool

    @property
    def functions(self) -> tuple[FunctionNode, ...]:
        """All functions that get the argument."""
        return (self.primal, *self.rules)


def custom_rule_of(program: Program, function: FunctionNode) -> CustomRule | None:
    """The rule to which a function belongs, as its primal or as one of its rules; None where it is none for sure."""
    for primal in program.functions():
        if isinstance(primal, ast.FunctionDef) and primal.decorator_list:
            rule = _rule(program, primal)
            if rule is not None and function in rule.functions:
                return rule
    return None


def _rule(program: Program, primal: ast.FunctionDef) -> CustomRule | None:
    decorator = primal.decorator_list[0]
    kind, numbers = _kind(program, decorator)
    if kind is None or numbers is None or len(primal.decorator_list) != 1:
        return None
    owner = program.scope_at[primal].lookup(primal.name)
    if owner is None or program.only_site(owner, primal.name) is None:
        return None
    for load in program.loads(owner, primal.name):
        attribute = program.parent[load]
        if not isinstance(attribute, ast.Attribute) or attribute.attr != _KINDS[kind]:
            continue
        rules = _defined(program, attribute, 2 if kind == "jax.custom_vjp" else 1)
        return CustomRule(primal, rules, decorator, numbers, kind == "jax.custom_vjp") if rules else None
    return None


def _kind(program: Program, decorator: ast.expr) -> tuple[str | None, tuple[int, ...] | None]:
    """(full name of the transform, its nondiff_argnums); the numbers are None where they are not written out."""
    name = program.qualified(decorator)
    if name in _KINDS:
        return name, ()
    if not isinstance(decorator, ast.Call):
        return None, None
    partial = program.qualified(decorator.func) == "functools.partial" and len(decorator.args) == 1
    name = program.qualified(decorator.args[0] if partial else decorator.func)
    if name not in _KINDS or (not partial and decorator.args):
        return None, None
    numbers: tuple[int, ...] = ()
    for keyword in decorator.keywords:
        written = keyword.value.elts if isinstance(keyword.value, ast.Tuple | ast.List) else [keyword.value]
        values = [item.value for item in written if isinstance(item, ast.Constant) and type(item.value) is int]
        if keyword.arg != "nondiff_argnums" or len(values) != len(written):
            return name, None
        numbers = tuple(values)
    return name, numbers


def _defined(program: Program, attribute: ast.Attribute, count: int) -> tuple[FunctionNode, ...]:
    """The functions given to ``f.defvjp``, or decorated with ``@f.defjvp``; empty where they are used elsewhere too."""
    above = program.parent[attribute]
    if isinstance(above, ast.FunctionDef) and attribute in above.decorator_list:
        alone = len(above.decorator_list) == 1 and not _loads_of(program, above)
        return (above,) if alone and count == 1 else ()
    if not isinstance(above, ast.Call) or above.func is not attribute or len(above.args) != count or above.keywords:
        return ()
    found: list[FunctionNode] = []
    for argument in above.args:
        function = program.definition(argument)
        used_once = isinstance(argument, ast.Lambda) or (
            isinstance(function, ast.FunctionDef)
            and not function.decorator_list
            and _loads_of(program, function) == [argument]
        )
        if not isinstance(function, ast.FunctionDef | ast.Lambda) or not used_once:
            return ()
        found.append(function)
    return tuple(found)


def _loads_of(program: Program, function: ast.FunctionDef) -> list[ast.Name]:
    owner = program.scope_at[function].lookup(function.name)
    return list(program.loads(owner, function.name)) if owner is not None else []


# -- edits -----------------------------------------------------------------------------------------------------------


@dataclass
class RuleEdits:
    """Edits that give the rules of a function one more argument.

    Args:
        program: all texts.
        rule: the rules.
        variables: the names that become arguments.
    """

    program: Program
    rule: CustomRule
    variables: Sequence[str]

    def lifted(self, needed: Sequence[str]) -> list[NodeEdit]:
        """The variables as last arguments.

        Args:
            needed: those of them that the backward rule needs, or the rule of ``custom_jvp``.
        """
        if not self.rule.reverse:
            return self._jvp(self.rule.rules[0], needed)
        forward, backward = self.rule.rules
        edits = self._with_parameters(forward)
        edits += self._residuals(forward, backward, needed)
        edits += self._cotangents(backward, None)
        return edits

    def differentiable(self, number: int, needed: bool) -> list[NodeEdit]:
        """The one variable, which is argument ``number`` among the ``nondiff_argnums``, as an ordinary argument."""
        forward, backward = self.rule.rules
        (variable,) = self.variables
        others = tuple(n for n in self.rule.nondiff if n != number)
        edits = self._decorator(others)
        text, parameters = self.program.text_of[backward], backward.args.args
        position = sorted(self.rule.nondiff).index(number)
        if len(parameters) != len(self.rule.nondiff) + 2 or parameters[position].arg != variable:
            raise self._refused("its backward rule takes other arguments than expected")
        start, stop = text.start(parameters[position]), text.start(parameters[position + 1])
        edits.append((backward, TextEdit(start, stop, 0, "")))
        if needed:
            edits += self._residuals(forward, backward, [variable])
        edits += self._cotangents(backward, sum(n not in others for n in range(number)))
        return edits

    def _decorator(self, numbers: tuple[int, ...]) -> list[NodeEdit]:
        decorator = self.rule.decorator
        assert isinstance(decorator, ast.Call)
        text = self.program.text_of[decorator]
        if numbers:
            written = "(" + ", ".join(map(str, numbers)) + ("," if len(numbers) == 1 else "") + ")"
            return [(decorator, edit) for edit in insertions.replace(text, decorator.keywords[0].value, written)]
        inner = decorator.args[0] if decorator.args else decorator.func
        return [(decorator, edit) for edit in insertions.replace(text, decorator, text.of(inner))]

    def _with_parameters(self, function: FunctionNode) -> list[NodeEdit]:
        arguments = function.args
        if arguments.defaults or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            raise self._refused("a rule has defaults or `*` parameters")
        text = self.program.text_of[function]
        return [(function, e) for e in insertions.append_parameters(text, function, self.variables)]

    # -- residuals ----------------------------------------------------------------------------------------------------

    def _residuals(self, forward: FunctionNode, backward: FunctionNode, needed: Sequence[str]) -> list[NodeEdit]:
        """The variables travel from the forward to the backward rule."""
        if not needed:
            return []
        result = _only_result(self.program, forward)
        if not isinstance(result, ast.Tuple) or len(result.elts) != 2:
            raise self._refused("what its forward rule returns is not written out as `value, residuals`")
        kept, parameter = result.elts[1], backward.args.args[-2]
        text, names = self.program.text_of[forward], ", ".join(needed)
        scope = self.program.own_scope[backward]
        loads = self.program.loads(scope, parameter.arg)
        if not loads:
            new = names if len(needed) == 1 else f"({names})"
            edits: list[NodeEdit] = [(forward, edit) for edit in insertions.replace(text, kept, new)]
            return edits + self._received(backward, parameter, needed)
        unpacked = self._unpacking(loads)
        if unpacked is not None and isinstance(kept, ast.Tuple) and len(kept.elts) == len(unpacked.elts):
            home = self.program.text_of[backward]
            return [
                (forward, insertions.extend_tuple(text, kept, needed)),
                (backward, insertions.extend_tuple(home, unpacked, needed)),
            ]
        if "residuals" in scope.sites:
            raise self._refused("its backward rule uses the residuals in a way that leaves no room for one more")
        edits = [(forward, edit) for edit in insertions.wrap(text, kept, "(", f", {names})")]
        home = self.program.text_of[backward]
        edits += [(backward, edit) for edit in insertions.replace(home, parameter, "residuals")]
        if isinstance(backward, ast.Lambda):
            return edits + self._read_by_number(backward, [parameter.arg, *needed])
        return [*edits, (backward, self._first_statement(backward, f"{parameter.arg}, {names} = residuals"))]

    def _read_by_number(self, backward: ast.Lambda, names: Sequence[str]) -> list[NodeEdit]:
        """A lambda cannot unpack: what it reads by these names stands in the residuals, in this order."""
        own = self.program.own_scope[backward]
        edits: list[NodeEdit] = []
        for number, name in enumerate(names):
            owner = own.lookup(name)
            loads = self.program.loads(owner, name) if owner is not None else []
            for load in (each for each in loads if self.program.scope_at[each].is_inside(own)):
                new = insertions.replace(self.program.text_of[load], load, f"residuals[{number}]")
                edits += [(load, edit) for edit in new]
        return edits

    def _received(self, backward: FunctionNode, parameter: ast.arg, needed: Sequence[str]) -> list[NodeEdit]:
        """The backward rule's unused parameter takes the variables."""
        text = self.program.text_of[backward]
        if len(needed) == 1:
            return [(backward, edit) for edit in insertions.replace(text, parameter, needed[0])]
        if isinstance(backward, ast.Lambda):
            raise self._refused("its backward rule is a lambda, which cannot unpack several residuals")
        name = "residuals" if parameter.arg.strip("_") == "" else parameter.arg
        edits = [(backward, edit) for edit in insertions.replace(text, parameter, name)]
        return [*edits, (backward, self._first_statement(backward, f"{', '.join(needed)} = {name}"))]

    def _unpacking(self, loads: Sequence[ast.Name]) -> ast.Tuple | None:
        statement = self.program.parent[loads[0]]
        if len(loads) != 1 or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target = statement.targets[0]
        return target if isinstance(target, ast.Tuple) and target.elts else None

    def _first_statement(self, function: FunctionNode, statement: str) -> TextEdit:
        assert isinstance(function, ast.FunctionDef)
        text = self.program.text_of[function]
        start = text.start(function.body[0])
        indent = text.indent_of_line(start)
        if indent is None:
            raise self._refused("its backward rule stands on one line")
        return TextEdit(start, start, 0, f"{statement}{text.newline}{indent}")

    # -- derivatives --------------------------------------------------------------------------------------------------

    def _cotangents(self, backward: FunctionNode, position: int | None) -> list[NodeEdit]:
        """``None`` for the new arguments in what the backward rule returns."""
        result = _only_result(self.program, backward)
        if not isinstance(result, ast.Tuple) or not result.elts:
            raise self._refused("what its backward rule returns is not written out as a tuple")
        text = self.program.text_of[backward]
        if position is None or position >= len(result.elts):
            return [(backward, insertions.extend_tuple(text, result, ["None"] * len(self.variables)))]
        start = text.start(result.elts[position])
        edits: list[NodeEdit] = [(backward, TextEdit(start, start, 0, "None, "))]
        end = text.stop(result.elts[-1])
        if len(result.elts) == 1 and text.masked[end : text.stop(result)] == ",)":
            edits.append((backward, TextEdit(end, end + 1, 0, "")))  # the comma of a tuple of one
        return edits

    def _jvp(self, rule: FunctionNode, needed: Sequence[str]) -> list[NodeEdit]:
        """The rule gets the variables among its primals; their tangents are zero, and stay unread."""
        if self.rule.nondiff or len(rule.args.args) != 2 or isinstance(rule, ast.Lambda):
            raise self._refused("its rule takes other arguments than `primals` and `tangents`")
        primals, tangents = rule.args.args
        count = len(self.rule.primal.args.args)
        unpacked = self._extended_unpacking(rule, primals, count, self.variables)
        edits = unpacked + self._extended_unpacking(rule, tangents, count, ["_"] * len(self.variables))
        if not unpacked and needed:
            numbers = [count + list(self.variables).index(name) for name in needed]
            read = [f"{name} = {primals.arg}[{n}]" for name, n in zip(needed, numbers, strict=True)]
            text = self.program.text_of[rule]
            indent = text.newline + (text.indent_of_line(text.start(rule.body[0])) or "")
            edits.append((rule, self._first_statement(rule, indent.join(read))))
        return edits

    def _extended_unpacking(
        self, rule: ast.FunctionDef | ast.AsyncFunctionDef, parameter: ast.arg, count: int, names: Sequence[str]
    ) -> list[NodeEdit]:
        """More names in ``x, y = primals``; nothing where the parameter is only read by number."""
        edits: list[NodeEdit] = []
        for load in self.program.loads(self.program.own_scope[rule], parameter.arg):
            match self.program.parent[load]:
                case ast.Subscript(slice=ast.Constant(value=int(index))) if 0 <= index < count:
                    continue
                case ast.Assign(targets=[ast.Tuple(elts=elements) as target]) if len(elements) == count:
                    edits.append((rule, insertions.extend_tuple(self.program.text_of[rule], target, names)))
                case _:
                    raise self._refused("its rule reads `primals` and `tangents` in a way that is not understood")
        return edits

    def _refused(self, why: str) -> Refused:
        return Refused(
            f"`{self.rule.primal.name}` has its own derivative rule, and {why}. Make {listed(self.variables)} an "
            f"argument of `{self.rule.primal.name}` and of its rules by hand, and return its derivative there."
        )


def _only_result(program: Program, function: FunctionNode) -> ast.expr | None:
    """The one expression that a function returns, at its end."""
    if isinstance(function, ast.Lambda):
        return function.body
    own = program.own_scope[function]
    returns = [n for n, scope in program.scope_at.items() if scope is own and isinstance(n, ast.Return)]
    last = function.body[-1]
    return last.value if isinstance(last, ast.Return) and returns == [last] else None
