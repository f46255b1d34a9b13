"""Random programs with nested functions that close over values, and uses of them of every kind."""

from __future__ import annotations

import random
from dataclasses import dataclass

HEADER = """\
import functools
import jax
import jax.numpy as jnp
import numpy as np

table = {}
kept = {"other": None}

class Box:
    slot = None

box = Box()
"""


@dataclass
class Generated:
    """A program.

    Attributes:
        text: its source; ``entry(a, b, x)`` is its entry, or ``values`` its results where it calls that itself.
        function: name of the function to lift from, ``"<lambda>"`` for a lambda.
        line: its line.
        captured: free variables to lift.
        calls_itself: whether the program runs on its own and leaves ``values``.
    """

    text: str
    function: str
    line: int
    captured: tuple[str, ...]
    calls_itself: bool


class Generator:
    """Makes programs from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def emit(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line if line else "" for line in lines]

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def program(self) -> Generated:
        """One program."""
        self.lines = HEADER.splitlines()
        calls_itself = self.chance(0.25)
        captured = self.random.sample(["a", "b", "c", "d"], self.random.randint(1, 3))
        self.emit(0, "", "@jax.jit" if calls_itself and self.chance(0.5) else "", "def entry(a, b, x):")
        self.emit(1, f"c = {self.pick('a * b', f'{0.5!r} + a', 'jnp.sin(a)')}", "d = {'k': a, 'm': b}")
        self.emit(1, "total = x * 0.0")
        if self.chance(0.15):
            self.emit(1, f"{self.pick('b', 'c')} = a + 0.25")
        function, line, signature = self.function(1, captured)
        for _ in range(self.random.randint(1, 4)):
            self.use(1, function, signature, captured)
        if calls_itself:
            self.stored_for_later(function, signature, captured)
        else:
            self.emit(1, "return total")
        if function == "anonymous":
            function = "<lambda>"
        return Generated("\n".join(self.lines) + "\n", function, line, tuple(captured), calls_itself)

    # -- the function -----------------------------------------------------------------------------------------------

    def value(self, captured: list[str]) -> str:
        parts = [f"{name}['k']" if name == "d" else name for name in captured]
        return self.pick(" + ", " * ").join(parts)

    def function(self, depth: int, captured: list[str]) -> tuple[str, int, str]:
        value = self.value(captured)
        signature = self.pick("t", "t", "t", "t, u", "t, u=1.5", "t, *rest", "t, *, w=2.0", "t, **extra", "t, /", "")
        if self.chance(0.2):
            signature = self.pick("t", "t, u")
            self.emit(depth, f"fun = lambda {signature}: {self.body(signature, value)}{self.comment()}")
            return "anonymous", len(self.lines), signature
        if signature == "t" and self.chance(0.12):
            return self.custom_rule(depth, value)
        decorator = self.pick("", "", "", "", "@jax.jit", "@jax.checkpoint", "@functools.partial(jax.jit, inline=True)")
        if signature in ("", "t, **extra", "t, *rest") or "=" in signature:
            decorator = ""
        if decorator:
            self.emit(depth, decorator)
        line = len(self.lines) + 1 - bool(decorator)
        shown = signature.replace(", ", " ,  ") if self.chance(0.1) else signature
        if self.chance(0.1) and "," in signature:
            self.emit(depth, "def fun(", *("    " + part + "," for part in signature.split(", ") if part != "/"), "):")
            signature = signature.replace(", /", "")
        else:
            self.emit(depth, f"def fun({shown}):{self.comment()}")
        style = self.random.random()
        if style < 0.2:
            self.emit(depth + 1, f"inner = lambda s: s * ({value})", f"return inner({self.body(signature, '1.0')})")
        elif style < 0.3 and signature.startswith("t"):
            self.emit(depth + 1, f"def deep(s):  # {captured[0]} in a comment", f"    return jnp.cos(s) * ({value})")
            self.emit(depth + 1, "return deep(t) + t")
        elif style < 0.36 and signature == "t, u":
            self.emit(depth + 1, "if u > 3.0:", "    return t", f"return fun(t * ({value}) * 0.1, u + 1.0)")
        elif style < 0.4:
            self.emit(
                depth + 1,
                f"parts = [s * ({value}) for s in (1.0, 2.0)]",
                f"return sum(parts) + {self.body(signature, '1.0')}",
            )
        else:
            self.emit(depth + 1, f"return {self.body(signature, value)}")
        return "fun", line, signature

    def custom_rule(self, depth: int, value: str) -> tuple[str, int, str]:
        """``fun`` has a derivative rule of its own, which is scaled by the captured values."""
        if self.chance(0.4):
            self.emit(depth, "@jax.custom_jvp", "def fun(t):", "    return jnp.sin(t) * 2.0", "@fun.defjvp")
            self.emit(depth, "def rule(primals, tangents):")
            line = len(self.lines) - 1  # its decorator counts
            if self.chance(0.5):
                self.emit(depth + 1, "(t,), (dt,) = primals, tangents" if self.chance(0.2) else "t, = primals")
                self.emit(depth + 1, "dt, = tangents", f"return fun(t), jnp.cos(t) * dt * ({value})")
            else:
                self.emit(depth + 1, f"return fun(primals[0]), jnp.cos(primals[0]) * tangents[0] * ({value})")
            return "rule", line, "t"
        kept = self.pick("t", "(t, t * 2.0)", "None")
        self.emit(depth, "@jax.custom_vjp", "def fun(t):", "    return jnp.sin(t) * 2.0", "def fwd(t):")
        self.emit(depth + 1, f"return {self.pick('fun(t)', 'jnp.sin(t) * 2.0')}, {kept}")
        self.emit(depth, f"def bwd({'_' if kept == 'None' else 'res'}, g):")
        line = len(self.lines)
        if kept == "(t, t * 2.0)" and self.chance(0.5):
            self.emit(depth + 1, "t, twice = res", f"return (g * jnp.cos(t) * twice * ({value}),)")
        else:
            residual = {"t": "jnp.cos(res)", "(t, t * 2.0)": "jnp.cos(res[0]) * res[1]", "None": "0.5"}[kept]
            self.emit(depth + 1, f"return (g * {residual} * ({value}),)")
        self.emit(depth, "fun.defvjp(fwd, bwd)")
        return "bwd", line, "t"

    def body(self, signature: str, value: str) -> str:
        names = [part.split("=")[0] for part in signature.split(", ") if part and part[0] not in "*/"]
        first = names[0] if names else "2.0"
        rest = "".join(f" + {name} * 0.5" for name in names[1:])
        return f"jnp.sin({first}) * ({value}){rest}"

    def comment(self) -> str:
        return self.pick("", "", "  # a, b: by closure")

    # -- uses -------------------------------------------------------------------------------------------------------

    def arguments(self, signature: str, first: str = "x") -> str:
        match signature:
            case "":
                return ""
            case "t, u":
                return self.pick(f"{first}, 0.5", f"{first}, u=0.5", f"*({first}, 0.5)", f"{first}, 0.5,")
            case "t, u=1.5":
                return self.pick(first, f"{first}, 0.25", f"{first}, u=0.75")
            case "t, *rest":
                return self.pick(first, f"{first}, 1.0, 2.0")
            case "t, *, w=2.0":
                return self.pick(first, f"{first}, w=0.5", f"w=1.0, t={first}")
            case "t, **extra":
                return self.pick(first, f"{first}, z=1.0")
            case _:
                return first

    def use(self, depth: int, function: str, signature: str, captured: list[str]) -> None:
        name = "fun"
        call = f"{name}({self.arguments(signature)})"
        one = signature in ("t", "t, /", "t, u=1.5", "t, *, w=2.0", "t, *rest", "t, **extra")
        kinds = ["direct", "direct", "helper", "lambda", "comprehension", "alias", "conditional", "shadow", "loop"]
        kinds += ["store", "attribute", "factory", "partial", "string", "nested", "twice", "default"]
        if one:
            kinds += [
                "grad",
                "value_and_grad",
                "vmap",
                "jit",
                "checkpoint",
                "scan",
                "scan_named",
                "fori",
                "cond",
                "while",
            ]
            kinds += ["vjp", "jvp", "map", "grad_of_helper", "vmap_axes", "jacfwd", "hessian", "bound"]
            kinds += ["switch", "own_function", "factory_of_factory", "eval_shape"]
        if signature == "t, u":
            kinds += ["partial_first", "partial_named"]
            kinds += ["grad_two", "vmap_two", "vmap_two", "static"]
        add = "total = total + "
        match self.random.choice(kinds):
            case "direct":
                self.emit(depth, f"{add}{call}")
            case "helper":
                helper = self.fresh("helper")
                self.emit(depth, f"def {helper}(s):", f"    return {name}({self.arguments(signature, 's')}) + s")
                self.emit(depth, f"{add}{self.pick(f'{helper}(x)', f'jax.vmap({helper})(jnp.ones(2) * x).sum()')}")
            case "nested":
                helper = self.fresh("outer")
                self.emit(
                    depth,
                    f"def {helper}(s):",
                    "    def within(r):",
                    f"        return {name}({self.arguments(signature, 'r')})",
                )
                self.emit(
                    depth,
                    "    return within(s) * 2.0",
                    f"{add}{self.pick('', 'jax.grad(')}{helper}(x)".replace(
                        f"jax.grad({helper}(x)", f"jax.grad({helper})(x)"
                    ),
                )
            case "lambda":
                self.emit(depth, f"{add}(lambda s: {name}({self.arguments(signature, 's')}))(x)")
            case "comprehension":
                self.emit(depth, f"{add}sum([{name}({self.arguments(signature, 's')}) for s in (x, 0.5)])")
            case "alias":
                alias = self.fresh("alias")
                self.emit(depth, f"{alias} = {name}", f"{add}{alias}({self.arguments(signature)})")
            case "conditional":
                self.emit(depth, f"{add}({call} if True else 0.0)")
            case "shadow":
                helper = self.fresh("shadowing")
                self.emit(depth, f"def {helper}({captured[0]}):", f"    return {call}", f"{add}{helper}(x)")
            case "loop":
                changed = self.pick("a", "b", "e")
                self.emit(depth, "for turn in range(2):", f"    {changed} = turn * 0.5 + x", f"    {add}{call}")
            case "store":
                key = self.pick("'f'", "'other'", "'g'")
                where = self.pick("table", "kept")
                self.emit(depth, f"{where}[{key}] = {name}", f"{add}{where}[{key}]({self.arguments(signature)})")
            case "attribute":
                self.emit(depth, f"box.slot = {name}", f"{add}box.slot({self.arguments(signature)})")
            case "factory":
                helper = self.fresh("make")
                self.emit(
                    depth, f"def {helper}():", f"    return {name}", f"{add}{helper}()({self.arguments(signature)})"
                )
            case "partial":
                self.emit(depth, f"{add}functools.partial({name})({self.arguments(signature)})")
            case "string":
                self.emit(depth, f"text = f'{{{call.replace(chr(39), chr(34))}}}'", f"{add}len(text) * 0.0")
            case "twice":
                self.emit(depth, f"{add}{call} * {name}({self.arguments(signature)})")
            case "default":
                helper = self.fresh("with_default")
                self.emit(
                    depth,
                    f"def {helper}(s, g={name}):",
                    f"    return g({self.arguments(signature, 's')})",
                    f"{add}{helper}(x)",
                )
            case "grad":
                self.emit(
                    depth,
                    f"{add}{self.pick(f'jax.grad({name})(x)', f'jax.grad({name}, argnums=0)(x)', f'jax.grad({name}, 0)(x)')}",  # noqa: E501
                )
            case "value_and_grad":
                self.emit(depth, f"value, slope = jax.value_and_grad({name})(x)", f"{add}value * slope")
            case "vmap":
                self.emit(depth, f"{add}jax.vmap({name})(jnp.array([1.0, 2.0]) * x).sum()")
            case "vmap_axes":
                axes = self.pick("0", "(0,)", "-1", "[0]")
                self.emit(depth, f"{add}jax.vmap({name}, in_axes={axes})(jnp.array([1.0, 2.0]) * x).sum()")
            case "jit":
                jitted = self.fresh("jitted")
                self.emit(depth, f"{jitted} = jax.jit({name})", f"{add}{jitted}(x) + {jitted}(x * 2.0)")
            case "checkpoint":
                self.emit(depth, f"{add}jax.checkpoint({name})(x)")
            case "scan":
                self.emit(depth, f"{add}jax.lax.scan(lambda s, _: ({name}(s), s), x * 1.0, None, length=2)[0]")
            case "scan_named":
                body = self.fresh("body")
                self.emit(depth, f"def {body}(s, _):", f"    s = {name}(s)", "    return s, s")
                self.emit(depth, f"{add}jax.lax.scan({body}, x * 1.0, None, length=2)[1].sum()")
            case "fori":
                self.emit(depth, f"{add}jax.lax.fori_loop(0, 2, lambda i, s: {name}(s), x * 1.0)")
            case "while":
                self.emit(
                    depth,
                    f"{add}jax.lax.while_loop(lambda s: s[1] < 2, lambda s: ({name}(s[0]), s[1] + 1), (x * 1.0, "
                    "0))[0] * 0.0",
                )
            case "cond":
                self.emit(depth, f"{add}jax.lax.cond(x > 0, {name}, lambda s: s * 1.0, x * 1.0)")
            case "vjp":
                self.emit(depth, f"value, back = jax.vjp({name}, x)", f"{add}value + back(jnp.ones_like(value))[0]")
            case "jvp":
                self.emit(depth, f"{add}jax.jvp({name}, (x,), (x,))[1]")
            case "map":
                self.emit(depth, f"{add}jax.lax.map({name}, jnp.ones(2) * x).sum()")
            case "grad_of_helper":
                self.emit(depth, f"{add}jax.grad(lambda s: {name}(s) ** 2)(x)")
            case "jacfwd":
                self.emit(depth, f"{add}jax.jacfwd({name})(x)")
            case "hessian":
                self.emit(depth, f"{add}jax.hessian({name})(x)")
            case "bound":
                self.emit(depth, f"{add}jax.tree_util.Partial({name})(x)")
            case "grad_two":
                argnums = self.pick("", ", argnums=1", ", argnums=(0, 1)", ", argnums=-1")
                pick = "[0]" if "(0" in argnums else ""
                self.emit(depth, f"{add}jax.grad({name}{argnums})(x, 0.5){pick}")
            case "vmap_two":
                axes = self.pick("", ", in_axes=(0, None)", ", (None, 0)", ", in_axes=(0, None,)")
                first, second = ("jnp.ones(2) * x", "jnp.ones(2)")
                if "None, 0" in axes:
                    first = "x"
                elif "0, None" in axes:
                    second = "0.5"
                self.emit(depth, f"{add}jax.vmap({name}{axes})({first}, {second}).sum()")
            case "switch":
                self.emit(depth, f"{add}jax.lax.switch(1, [lambda s: s * 2.0, {name}], x * 1.0)")
            case "eval_shape":
                self.emit(depth, f"{add}jax.eval_shape({name}, x * 1.0).ndim")
            case "own_function":
                helper = self.fresh("apply")
                how = self.pick("g(s) * 2.0", "jax.grad(g)(s)", "jax.lax.fori_loop(0, 2, lambda i, r: g(r), s * 1.0)")
                self.emit(depth, f"def {helper}(g, s):", f"    return {how}", f"{add}{helper}({name}, x)")
            case "factory_of_factory":
                one, two = self.fresh("make"), self.fresh("make")
                self.emit(depth, f"def {one}():", f"    def {two}(k):", f"        return {name}", f"    return {two}")
                self.emit(depth, f"{add}{one}()(1)(x) + {one}()(2)(x * 2.0)")
            case "partial_first":
                self.emit(depth, f"{add}functools.partial({name}, x)(0.5)")
                self.emit(depth, f"{add}jax.vmap(functools.partial({name}, x))(jnp.ones(2)).sum()")
            case "partial_named":
                self.emit(depth, f"{add}functools.partial({name}, u=0.5)(x)")
            case "static":
                self.emit(depth, f"{add}jax.jit({name}, static_argnums={self.pick('1', '(1,)', '-1')})(x, 0.5)")
            case _:
                self.emit(depth, f"{add}{call}")
        if self.chance(0.1):
            self.emit(depth, self.pick("", "# between", "pass;  # a b c d"))

    def stored_for_later(self, function: str, signature: str, captured: list[str]) -> None:
        """The function is kept by the run and called afterwards at module level."""
        where = self.pick("table['later']", "box.slot", "kept['later']")
        self.emit(1, f"{where} = {self.pick('fun', 'fun', 'jax.jit(fun)') if signature in ('t', 't, u') else 'fun'}")
        result = self.pick(
            "total", "total, x", captured[0] if captured[0] in ("a", "b", "c") else "total", "total * 2.0"
        )
        self.emit(1, f"return {result}")
        target = "out, again" if result == "total, x" else "out"
        start = self.pick("0.5, 0.25, 1.5", "first, 0.25, 1.5", "a=0.5, b=first, x=1.5")
        self.emit(0, "", "first = 0.75", f"{target} = entry({start})")
        later = f"{where}({self.arguments(signature, '0.3')})"
        self.emit(
            0,
            "values = [out, "
            f"{self.pick(later, f'sum([{where}({self.arguments(signature, chr(115))}) for s in (0.1, 0.2)])')}]",
        )
