"""Random programs whose functions write outside of themselves: globals, attributes, items, lists, keys, loop state."""

from __future__ import annotations

import random
from dataclasses import dataclass

HEADER = """\
import jax
import jax.numpy as jnp

total = jnp.float32(0.5)
key = jax.random.key(3)
log = []
store = {"k": jnp.float32(0.25), "other": 1.0}

class Box:
    last = jnp.float32(0.0)

class Meter:
    def __init__(self):
        self.level = jnp.float32(1.0)
        self.name = "m"

    def peek(self):
        return self.level * 2.0

box = Box()
box.kept = []
meter = Meter()
values = []
"""

STATES = {
    "global": ("total", "total"),
    "attribute": ("box.last", "box.last"),
    "item": ('store["k"]', 'store["k"]'),
}


@dataclass
class Stateful:
    """A program.

    Attributes:
        text: its source, which leaves ``values`` and the states.
        line: the line that stores the value.
        variable: the local name that holds it.
    """

    text: str
    line: int
    variable: str


class StatefulGenerator:
    """Makes programs from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines = HEADER.splitlines()
        self.line = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def emit(self, depth: int, *lines: str) -> None:
        for line in lines:
            if line.endswith("#!"):
                self.line = len(self.lines) + 1
                line = line[:-2].rstrip()
            self.lines.append("    " * depth + line)

    def program(self) -> Stateful:
        """One program."""
        kind = self.pick("global", "attribute", "item", "list", "key", "method", "loop", "loop", "nonlocal")
        if kind == "loop":
            self.loop()
        elif kind == "nonlocal":
            self.nonlocal_state()
        else:
            name, result = self.writer(kind)
            name = self.around(name, result, kind)
            self.calls(name, kind)
        self.emit(0, "values += [total, box.last, store['k'], meter.level, jax.random.uniform(key)]")
        self.emit(0, "values += [sum(log) * 1.0, sum(box.kept) * 1.0]")
        if kind == "method":
            self.emit(0, "values += [sum(gauge.kept) * 1.0]")
        return Stateful("\n".join(self.lines) + "\n", self.line, "y")

    # -- the function that writes -----------------------------------------------------------------------------------

    def writer(self, kind: str) -> tuple[str, str]:
        result = self.pick("y * 2.0", "y", "(y + x)", "x, y", "y if True else x")
        if kind == "method":
            return self.method(result)
        self.emit(0, self.pick("", "@jax.jit", "@jax.jit", "@jax.checkpoint"), "def f(x):")
        if kind == "global":
            self.emit(1, self.pick("global total", "global total, key"))
        if kind == "key":
            self.emit(1, "global key", "key, now = jax.random.split(key) #!", "y = x + jax.random.uniform(now)")
        else:
            self.emit(1, f"y = {self.pick('jnp.sin(x)', 'x * 0.5 + jnp.cos(x)', 'jnp.abs(x)')}")
        if kind == "list":
            stored = self.pick("y", "y", "y * 3.0", "jnp.tanh(y)")
            kept = self.pick("log", "log", "box.kept")
            match self.pick("plain", "plain", "for", "if", "both"):
                case "for":
                    self.emit(1, "for turn in range(3):", "    y = y * 0.5 + turn", f"    {kept}.append({stored}) #!")
                case "if":
                    self.emit(1, f"if {self.pick('x is not None', 'y is None')}:", f"    {kept}.append({stored}) #!")
                case "both":
                    self.emit(1, f"{kept}.append(y * 0.5)", "for turn in range(2):", f"    {kept}.append({stored}) #!")
                case _:
                    self.emit(1, f"{kept}.append({stored}) #!")
        elif kind != "key":
            place = STATES[kind][0]
            before = self.pick("", "", f"y = y + {place} * 0.5")
            if before:
                self.emit(1, before)
            style = self.pick("plain", "plain", "update", "augmented", "if", "twice", "early", "for")
            new = self.pick("y", "y", "y * 0.5", f"{place} * 0.25 + y")
            match style:
                case "update":
                    self.emit(1, f"{place} = {place} * 0.5 + y #!")
                case "augmented":
                    self.emit(1, f"{place} += y #!")
                case "if":
                    self.emit(1, f"if {self.pick('x is not None', 'y is None')}:", f"    {place} = {new} #!")
                case "twice":
                    self.emit(1, f"{place} = y * 4.0 #!", f"{place} = {new}")
                case "early":
                    self.emit(1, f"if {self.pick('x is None', 'y is not None')}:", f"    return {result}")
                    self.emit(1, f"{place} = {new} #!")
                case "for":
                    self.emit(1, "for turn in range(2):", f"    {place} = {place} * 0.5 + turn * y #!")
                case _:
                    self.emit(1, f"{place} = {new} #!")
            if self.chance(0.3):
                self.emit(1, f"y = y + {place}")
        if kind == "list" and self.chance(0.15):
            self.emit(1, "y = y + len(log)")
        if self.chance(0.1):
            result = ""
        self.emit(1, f"return {result}".rstrip())
        return "f", result

    def method(self, result: str) -> tuple[str, str]:
        jitted = self.chance(0.3)
        self.emit(0, "class Gauge:")
        self.emit(1, "def __init__(self):", "    self.level = jnp.float32(0.75)", "    self.kept = []", "")
        name = self.pick("feed", "__call__")
        if jitted:
            self.emit(1, "@__import__('functools').partial(jax.jit, static_argnums=0)" if False else "")
        self.emit(1, f"def {name}(self, x):")
        self.emit(2, self.pick("y = jnp.sin(x)", "y = jnp.sin(x) + self.level"))
        match self.pick("level", "level", "list", "loop"):
            case "list":
                self.emit(2, "self.kept.append(y * 0.5) #!")
            case "loop":
                self.emit(2, "for turn in range(2):", "    y = y * 0.5 + turn", "    self.kept.append(y) #!")
            case _:
                self.emit(
                    2, self.pick("self.level = y #!", "self.level = self.level * 0.5 + y #!", "self.level += y #!")
                )
        self.emit(2, f"return {result}")
        if self.chance(0.5):
            self.emit(1, "", "def peek(self):", "    return self.level * 3.0")
            self.emit(0, "gauge = Gauge()")
            call = "gauge(x)" if name == "__call__" else "gauge.feed(x)"
            first = f"r = {call}" if "," not in result else f"r, _ = {call}"
            order = (first, "s = gauge.peek()") if self.chance(0.6) else ("s = gauge.peek()", first)
            self.emit(0, "def through(x):", f"    {order[0]}", f"    {order[1]}", "    return r + s")
            return "through", "r"
        self.emit(0, "gauge = Gauge()")
        return ("gauge" if name == "__call__" else "gauge.feed"), result

    # -- functions around it ----------------------------------------------------------------------------------------

    def around(self, name: str, result: str, kind: str) -> str:
        pair = "," in result
        if pair or not result:
            self.emit(0, "def g(x):")
            if pair:
                self.emit(1, f"one, two = {name}(x)", self.pick("return one + two", "return one * two"))
            else:
                self.emit(1, f"{name}(x)", "return x * 2.0")
            name = "g"
        for number in range(self.random.randint(0, 2)):
            outer = f"h{number}"
            self.emit(0, self.pick("", "", "@jax.jit"), f"def {outer}(x):")
            match self.pick("pass", "more", "named", "twice", "loop", "arguments", "branch", "read", "unused"):
                case "pass":
                    self.emit(1, f"return {name}(x)")
                case "more":
                    self.emit(1, f"return {name}(x * 0.5) + jnp.cos(x)")
                case "named":
                    self.emit(1, f"z = {name}(x)", "return z * z")
                case "twice":
                    self.emit(1, f"return {name}(x) + {name}(x + 1.0) * 2.0")
                case "loop":
                    self.emit(1, "for _ in range(2):", f"    x = {name}(x)", "return x")
                case "arguments":
                    self.emit(1, f"return jnp.maximum({name}({name}(x)), 0.1)")
                case "branch":
                    self.emit(1, "if x is not None:", f"    x = {name}(x)", "return x + 0.5")
                case "read":
                    self.emit(1, f"before = {self.state(kind)}", f"return {name}(x) + before * 0.5")
                case _:
                    self.emit(1, f"{name}(x)", "return x - 1.0")
            name = outer
        return name

    def state(self, kind: str) -> str:
        return {"key": "jax.random.uniform(key)", "list": "1.0", "method": "gauge.level"}.get(
            kind, STATES.get(kind, ("", "2.0"))[1]
        )

    # -- calls ------------------------------------------------------------------------------------------------------

    def calls(self, name: str, kind: str) -> None:
        for number in range(self.random.randint(1, 3)):
            x = self.pick("0.7", "jnp.float32(1.25)", "0.3")
            jitted = f"jax.jit({name})"
            match self.pick("jit", "jit", "jit", "grad", "value", "vmap", "named", "expression", "loop", "function",
                            "scan", "vjp", "unused", "list"):  # fmt: skip
                case "jit":
                    self.emit(0, f"r{number} = {jitted}({x})")
                case "grad":
                    self.emit(0, f"r{number} = jax.grad({name})({x})")
                case "value":
                    self.emit(0, f"v{number}, r{number} = jax.value_and_grad({name})({x})", f"r{number} += v{number}")
                case "vmap":
                    self.emit(0, f"r{number} = jax.vmap({name})(jnp.arange(3.0)).sum()")
                case "named":
                    self.emit(0, f"fast{number} = {jitted}", f"r{number} = fast{number}({x})")
                    self.emit(0, f"r{number} = r{number} + fast{number}({x})")
                case "expression":
                    self.emit(0, f"r{number} = {jitted}({x}) * 2.0 - {jitted}(0.1)")
                case "loop":
                    self.emit(0, f"r{number} = {x}", "for _ in range(2):", f"    r{number} = {jitted}(r{number})")
                case "function":
                    self.emit(0, f"def run{number}(x):")
                    if self.chance(0.5):
                        self.emit(1, f"s = {jitted}(x)", f"return s + {self.state(kind)}")
                    else:
                        self.emit(1, self.pick(f"return {jitted}(x)", f"return {jitted}(x) * 2.0"))
                    self.emit(0, f"r{number} = run{number}({x})")
                case "scan":
                    self.emit(0, f"def body{number}(c, x):", f"    c = {name}(c * 0.5) + x", "    return c, None")
                    self.emit(0, f"r{number}, _ = jax.lax.scan(body{number}, jnp.float32(0.2), jnp.arange(3.0))")
                case "vjp":
                    self.emit(0, f"p{number}, back{number} = jax.vjp({name}, {x})", f"r{number} = back{number}(1.0)[0]")
                case "list":
                    self.emit(0, f"r{number} = sum([{jitted}({x}), 1.0])")
                case _:
                    self.emit(0, f"{jitted}({x})", f"r{number} = 0.0")
            self.emit(0, f"values.append(r{number})")
            if self.chance(0.3):
                self.emit(0, f"values.append({self.state(kind)})")

    # -- loops ------------------------------------------------------------------------------------------------------

    def loop(self) -> None:
        how = self.pick("scan", "scan", "scan list", "scan both", "fori", "while", "map")
        place = "total"
        update = self.pick(f"{place} = {place} * 0.5 + y #!", f"{place} = jnp.maximum({place}, y) #!")
        match how:
            case "scan":
                given = self.pick("None", "y", "c + 1.0")
                last = self.pick(update, update, f"{place} = y #!")
                self.emit(0, "def body(c, x):", "    global total", "    y = jnp.sin(c) + x", f"    {last}")
                self.emit(1, self.pick("c = y", f"c = y + {place}"), f"return c, {given}")
                self.scan_call(given)
            case "scan list":
                given = self.pick("None", "y")
                self.emit(
                    0, "def body(c, x):", "    y = jnp.sin(c) + x", f"    log.append({self.pick('y', 'y * 2.0')}) #!"
                )
                self.emit(1, f"return y, {given}")
                self.scan_call(given)
            case "scan both":
                self.emit(0, "def body(c, x):", "    global total", "    a, b = c", "    y = jnp.sin(a) + b * x")
                self.emit(1, update, "return (y, a), y")
                self.emit(0, "(a, b), r = jax.lax.scan(body, (jnp.float32(0.1), jnp.float32(0.2)), jnp.arange(3.0))")
                self.emit(0, "values += [a, b, r.sum()]")
            case "fori":
                self.emit(0, "def body(i, c):", "    global total", "    y = jnp.sin(c) + 0.5", f"    {update}")
                self.emit(1, "return y")
                call = "jax.lax.fori_loop(0, 3, body, jnp.float32(0.4))"
                self.emit(0, self.pick(f"r = {call}", f"r = {call} * 2.0"), "values.append(r)")
            case "while":
                self.emit(
                    0, "def body(c):", "    global total", "    y = c * 2.0", f"    {update}", "    return c + 1.0"
                )
                test = self.pick("lambda c: c < 3.0", "enough")
                if test == "enough":
                    self.emit(0, "def enough(c):", "    return c < 3.0")
                self.emit(0, f"r = jax.lax.while_loop({test}, body, jnp.float32(0.0))", "values.append(r)")
            case _:
                self.emit(
                    0, "def one(x):", "    global total", "    y = jnp.sin(x)", "    total = y #!", "    return y * 2.0"
                )
                self.emit(0, "r = jax.lax.map(one, jnp.arange(3.0)).sum()", "values.append(r)")

    def scan_call(self, given: str) -> None:
        call = "jax.lax.scan(body, jnp.float32(0.3), jnp.arange(3.0))"
        if given == "None":
            forms = (f"end, _ = {call}", f"end = {call}[0]")
        else:
            forms = (f"end, out = {call}", f"end = {call}[1].sum()", f"end = {call}[0]")
        text = self.pick(*forms)
        wrapped = self.chance(0.3)
        if wrapped:
            self.emit(0, "def run():", f"    {text}", "    return end")
            self.emit(0, self.pick("end = run()", "end = jax.jit(run)()"))
        else:
            self.emit(0, text)
        self.emit(0, "values.append(end)")

    def nonlocal_state(self) -> None:
        start = self.pick("jnp.float32(0.0)", "None", "x * 0.0")
        self.emit(0, self.pick("", "@jax.jit"), "def outer(x):", f"    peak = {start}", "    def inner(r):")
        self.emit(2, "nonlocal peak", "y = jnp.sin(r)")
        self.emit(2, self.pick("peak = y #!", "peak = jnp.maximum(peak, y) #!", "peak = r.max() + y #!"))
        self.emit(2, self.pick("return y * 2.0", "return r"))
        how = self.pick("jax.vmap(inner)(jnp.arange(3.0) * x).sum()", "jax.jit(inner)(x)",
                        "jax.grad(lambda r: inner(r))(x)", "jax.grad(inner)(x)", "inner(x)",
                        "jax.lax.map(inner, jnp.arange(3.0) + x).sum()")  # fmt: skip
        self.emit(1, f"s = {how}", self.pick("return s + jnp.sum(peak)", "return s, jnp.sum(peak)", "return s"))
        self.emit(0, "r = outer(0.8)", "values += list(r) if isinstance(r, tuple) else [r]")
