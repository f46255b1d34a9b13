"""A transform around a library's stateful calls becomes the library's own, which carries that state.

Haiku's modules, flax.linen's submodules and NumPyro's sample sites keep what they make (parameters, random keys)
outside of the function that calls them. ``jax.lax.scan`` traces its body anew, so what is made in there leaks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.imports import import_name
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.texts import TextEdit


@dataclass(frozen=True)
class Counterpart:
    """A library's own version of a transform of JAX.

    Attributes:
        library: the package whose calls need it.
        jax_name: full name of JAX's transform.
        module: module of the library's version.
        name: its name there.
        keywords: keywords that mean the same in both.
        arguments: the greatest number of positional arguments, or None where any number goes.
    """

    library: str
    jax_name: str
    module: str
    name: str
    keywords: tuple[str, ...] = ()
    arguments: int | None = None


_SCAN = ("length", "reverse")

COUNTERPARTS: tuple[Counterpart, ...] = (
    Counterpart("haiku", "jax.lax.scan", "haiku", "scan", (*_SCAN, "unroll")),
    Counterpart("haiku", "jax.lax.fori_loop", "haiku", "fori_loop"),
    Counterpart("haiku", "jax.lax.cond", "haiku", "cond"),
    Counterpart("haiku", "jax.lax.switch", "haiku", "switch"),
    Counterpart("haiku", "jax.lax.map", "haiku", "map"),
    Counterpart("haiku", "jax.checkpoint", "haiku", "remat"),
    Counterpart("haiku", "jax.grad", "haiku", "grad", ("argnums", "has_aux")),
    Counterpart("haiku", "jax.value_and_grad", "haiku", "value_and_grad", ("argnums", "has_aux")),
    Counterpart("numpyro", "jax.lax.scan", "numpyro.contrib.control_flow", "scan", _SCAN, 5),
    Counterpart("numpyro", "jax.lax.cond", "numpyro.contrib.control_flow", "cond", (), 4),
)
"""Signatures of dm-haiku 0.0.17 and numpyro 0.22. Haiku's ``while_loop`` cannot make parameters, so it is left out."""

_STATELESS = frozenset(("haiku.transform", "haiku.without_apply_rng", "haiku.running_init"))
_NUMPYRO_SITES = frozenset(f"numpyro.{name}" for name in ("sample", "param", "deterministic", "factor", "prng_key"))


def propose(case: Case) -> tuple[str, Draft] | None:
    """The library's version of the transform whose end the value outlived."""
    place = case.leak.escaped
    if place is None or case.leak.facts.captured:
        return None
    for call in _calls_on_line(case.program, place.line, (place.cell, place.file)):
        name = case.program.qualified(call.func)
        if name is None or not name.startswith("jax."):
            continue
        if name == "jax.lax.scan" and (made := _linen_scan(case.program, call)) is not None:
            return made
        library = _library_called(case.program, call, name)
        if library is not None:
            return _with_counterpart(case.program, call, name, library)
    return None


def _calls_on_line(program: Program, line: int, home: tuple[object, object]) -> Iterator[ast.Call]:
    for node, text in program.text_of.items():
        if not isinstance(node, ast.Call) or (text.source.cell, text.source.file) != home:
            continue
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node


def _functions_of(program: Program, call: ast.Call) -> list[FunctionNode]:
    """The user's functions that a call takes."""
    found = (program.definition(argument) for argument in call.args)
    return [each for each in found if isinstance(each, ast.FunctionDef | ast.Lambda)]


def _library_called(program: Program, call: ast.Call, name: str) -> str | None:
    """The library whose stateful calls stand in a function that this transform takes."""
    libraries = {each.library for each in COUNTERPARTS}
    for function in _functions_of(program, call):
        for node in ast.walk(function):
            called = program.qualified(node.func) if isinstance(node, ast.Call) else None
            library = (called or "").split(".")[0]
            if called is None or library not in libraries or called in _STATELESS:
                continue
            if library != "numpyro" or called in _NUMPYRO_SITES:
                return library
    return None


def _with_counterpart(program: Program, call: ast.Call, name: str, library: str) -> tuple[str, Draft]:
    rows = [each for each in COUNTERPARTS if (each.library, each.jax_name) == (library, name)]
    written = program.text_of[call].of(call.func)
    if not rows:
        raise Refused(
            f"`{written}` traces a function that uses {library}, which keeps state between calls, and {library} has no "
            f"version of it that is known here. Move the {library} calls out of that function."
        )
    row = rows[0]
    unknown = [keyword.arg or "**" for keyword in call.keywords if keyword.arg not in row.keywords]
    too_many = row.arguments is not None and len(call.args) > row.arguments
    if unknown or too_many or any(isinstance(argument, ast.Starred) for argument in call.args):
        raise Refused(
            f"`{written}` is called with {listed(unknown) if unknown else 'arguments'}, which "
            f"`{row.module}.{row.name}` may not take. Use `{row.module}.{row.name}` there by hand."
        )
    draft = Draft()
    spelled = program.spelling(f"{row.module}.{row.name}", call) if row.module == library else None
    spelled = spelled or import_name(program, draft, row.module, row.name, call)
    if spelled is None:
        raise Refused(f"Import `{row.name}` from `{row.module}`, and use it instead of `{written}`.")
    text = program.text_of[call]
    draft.add(text, insertions.replace(text, call.func, spelled))
    if library == "haiku":
        for function in _functions_of(program, call):
            _make_modules_before(program, draft, function)
    return f"Use {library}'s own `{row.name}` instead of `{written}`", draft


def _make_modules_before(program: Program, draft: Draft, function: FunctionNode) -> None:
    """Make haiku's modules once, before the function: each time that it is traced it would make new ones."""
    own = program.own_scope[function]
    for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
        made = (program.qualified(call.func) or "").rpartition(".")
        if made[0] != "haiku" or not made[2][:1].isupper() or made[2].endswith("()"):
            continue
        names = [node for node in ast.walk(call) if isinstance(node, ast.Name)]
        owners = [program.owner(name) for name in names]
        inside = any(owner is not None and owner.is_inside(own) for owner in owners)
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", made[2]).lower()
        taken = name in draft.new_parameters or any(name in scope.sites for scope in program.own_scope.values())
        text = program.text_of[function]
        plain = isinstance(function, ast.FunctionDef) and not function.decorator_list
        start = text.start(function)
        indent = text.indent_of_line(start)
        if inside or taken or not plain or indent is None:
            raise Refused(
                f"`{text.of(call)}` makes a new module each time that its function is traced. Make it once before the "
                f"function, call it there, and use haiku's own transform."
            )
        draft.add(text, [TextEdit(start, start, 0, f"{name} = {text.of(call)}{text.newline}{indent}")])
        draft.add(text, insertions.replace(text, call, name))
        draft.new_parameters.add(name)
        draft.kept_values.add(name)


# -- flax.linen ------------------------------------------------------------------------------------------------------


def _linen_scan(program: Program, call: ast.Call) -> tuple[str, Draft] | None:
    """``nn.scan`` over a function that takes the submodule as its first argument."""
    body = program.definition(call.args[0]) if call.args else None
    if not isinstance(body, ast.FunctionDef | ast.Lambda):
        return None
    module = _module_called(program, body)
    if module is None:
        return None
    written = program.text_of[call].of(call.func)
    nn_scan = program.spelling("flax.linen.scan", call)
    uses = program.loads(program.scope_at[body], body.name) if isinstance(body, ast.FunctionDef) else []
    plain = isinstance(body, ast.Lambda) or (len(uses) == 1 and not body.decorator_list)
    known = all(keyword.arg in ("length", "reverse", "unroll") for keyword in call.keywords)
    if nn_scan is None or not plain or not known or len(call.args) != 3 or _has_randomness(program, body):
        raise Refused(
            f"`{written}` traces a function that calls `{module}`, a flax module. Use `flax.linen.scan` there, over a "
            f"function that takes `{module}` as its first argument, and pass `{module}` before the carry."
        )
    function, init, xs = call.args
    text, home = program.text_of[call], program.text_of[body]
    separator = text.text[text.stop(function) : text.start(init)]
    if not isinstance(function, ast.Name) or separator.strip() != ",":
        raise Refused(f"Give the function of `{written}` a name, let it take `{module}` first, and use `nn.scan`.")
    options = ['variable_broadcast="params"', 'split_rngs={"params": False}', *map(text.of, call.keywords)]
    draft = Draft(lifted=[body], variables=[module])
    draft.add(home, insertions.prepend_parameters(home, body, [module]))
    draft.add(text, insertions.replace(text, call.func, nn_scan))
    between = f", {', '.join(options)})({module}, "
    draft.add(text, [TextEdit(text.stop(function), text.start(init), 0, between)])
    if call.keywords:
        end = text.after_parentheses(text.stop(xs), text.stop(call) - 1)
        draft.add(text, [TextEdit(end, text.stop(call) - 1, 0, "")])
    return f"Use flax's own `scan`, with `{module}` as an argument of `{function.id}`", draft


def _module_called(program: Program, body: FunctionNode) -> str | None:
    """The name of the one flax module that a function closes over and calls: a local ``nn.Dense(...)``, or ``self``."""
    found: set[str] = set()
    for name in program.free_names(body):
        owner = program.own_scope[body].lookup(name)
        site = program.only_site(owner, name) if owner is not None else None
        if site is None:
            continue
        value = program.assigned_value(site)
        made = program.qualified(value.func) if isinstance(value, ast.Call) else None
        if (made or "").startswith("flax.linen.") or (site.kind == "parameter" and _is_self(program, site.node)):
            found.add(name)
    return found.pop() if len(found) == 1 else None


def _is_self(program: Program, parameter: ast.AST) -> bool:
    """Whether a parameter is the ``self`` of a method of a flax module."""
    method = program.parent[program.parent[parameter]]
    around = program.scope_at[method]
    if not isinstance(method, ast.FunctionDef) or not isinstance(around.node, ast.ClassDef):
        return False
    bases = {program.qualified(base) for base in around.node.bases}
    return "flax.linen.Module" in bases and method.args.args[:1] == [parameter]


def _has_randomness(program: Program, body: FunctionNode) -> bool:
    """Whether a function may draw random numbers or update other collections, which ``nn.scan`` must be told of."""
    risky = ("Dropout", "BatchNorm", "make_rng", "variable", "sow")
    return any(
        (isinstance(node, ast.Attribute) and node.attr in risky) or (isinstance(node, ast.Name) and node.id in risky)
        for node in ast.walk(body)
    )


_HAIKU = """\
import haiku as hk
import jax
import jax.numpy as jnp

def unrolled(xs):
    def cell(h, x):
        h = jnp.tanh(hk.Linear(2, name="cell")(jnp.concatenate([h, x])))
        return h, h
    return jax.lax.scan(cell, jnp.zeros(2), xs)[1]
"""

_NUMPYRO = """\
import jax
import numpyro
import numpyro.distributions as dist

def walk(n):
    def move(pos, _):
        pos = numpyro.sample("pos", dist.Normal(pos, 1.0))
        return pos, pos
    return jax.lax.scan(move, 0.0, None, length=n)
"""

_LINEN = """\
import jax
import flax.linen as nn

class Flow(nn.Module):
    @nn.compact
    def __call__(self, y0, ts):
        field = nn.Dense(2)
        def euler(y, t):
            y = y + 0.1 * field(y)
            return y, y
        return jax.lax.scan(euler, y0, ts, reverse=True)[1]
"""

EXAMPLES = (
    Example(
        "haiku parameters made in the body of a scan",
        _HAIKU,
        _HAIKU.replace("jax.lax.scan", "hk.scan")
        .replace("    def cell", '    linear = hk.Linear(2, name="cell")\n    def cell')
        .replace('jnp.tanh(hk.Linear(2, name="cell")', "jnp.tanh(linear"),
        transforms=("scan",),
        escaped_line=9,
    ),
    Example(
        "NumPyro sample sites in the body of a scan",
        _NUMPYRO,
        _NUMPYRO.replace(
            "import numpyro.distributions as dist\n",
            "import numpyro.distributions as dist\nfrom numpyro.contrib.control_flow import scan\n",
        ).replace("jax.lax.scan", "scan"),
        transforms=("scan",),
        escaped_line=9,
    ),
    Example(
        "a flax submodule called in the body of a scan",
        _LINEN,
        _LINEN.replace("euler(y, t)", "euler(field, y, t)").replace(
            "jax.lax.scan(euler, y0, ts, reverse=True)",
            'nn.scan(euler, variable_broadcast="params", split_rngs={"params": False}, reverse=True)(field, y0, ts)',
        ),
        transforms=("scan",),
        escaped_line=11,
    ),
    Example(
        "a haiku module that depends on a value of the body",
        _HAIKU.replace("Linear(2,", "Linear(h.size,"),
        refusal="makes a new module each time",
        transforms=("scan",),
        escaped_line=9,
    ),
    Example(
        "a transform of which the library has no version",
        _NUMPYRO.replace("jax.lax.scan(move, 0.0, None, length=n)", "jax.vmap(move)(n, n)"),
        refusal="Move the numpyro calls out of that function",
        transforms=("vmap",),
        escaped_line=9,
    ),
)

RULE = Rule("use_library_transform", propose, lambda case: "Use the library's own transform", EXAMPLES)
