"""A function that leaves its scope is bound with ``jax.tree_util.Partial``, so that what it captured becomes leaves."""

from __future__ import annotations

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.rules import Example, Rule


def propose(case: Case) -> tuple[str, Draft] | None:
    """The lift, where the function had to be bound but no class had to change."""
    if case.function is None or not case.lifted.bound or case.lifted.children:
        return None
    case.require_values()
    return case.lift_title + ", bound with `jax.tree_util.Partial`", case.lifted


EXAMPLES = (
    Example(
        "a function that is bound already",
        """\
import jax
from jax.tree_util import Partial

@jax.jit
def fit(x, y, knots):
    coeffs = solve(design(x, knots), y)
    return Partial(lambda scale, q: design(scale * q, knots) @ coeffs, 2.0)
""",
        """\
import jax
from jax.tree_util import Partial

@jax.jit
def fit(x, y, knots):
    coeffs = solve(design(x, knots), y)
    return Partial(lambda knots, coeffs, scale, q: design(scale * q, knots) @ coeffs, knots, coeffs, 2.0)
""",
        function="<lambda>",
        variables=("knots", "coeffs"),
    ),
    Example(
        "a layer of a network",
        """\
import equinox as eqx
import jax

@eqx.filter_jit
def build(xs):
    spread = jax.numpy.ptp(xs)
    return eqx.nn.Lambda(lambda h: h / spread)
""",
        """\
import equinox as eqx
import jax

@eqx.filter_jit
def build(xs):
    spread = jax.numpy.ptp(xs)
    return eqx.nn.Lambda(jax.tree_util.Partial(lambda spread, h: h / spread, spread))
""",
        function="<lambda>",
        variables=("spread",),
    ),
    Example(
        "a memo keeps the bare function, and each caller gets it bound to the value of now",
        """\
import jax

bodies = {}

def body_for(kind, gain):
    if kind not in bodies:
        def smooth(level, drive):
            level = level + gain * (drive - level)
            return level, level
        bodies[kind] = smooth
    return bodies[kind]

@jax.jit
def filtered(gain, drive):
    return jax.lax.scan(body_for("rc", gain), 0.0, drive)[1]
""",
        """\
import jax

bodies = {}

def body_for(kind, gain):
    if kind not in bodies:
        def smooth(gain, level, drive):
            level = level + gain * (drive - level)
            return level, level
        bodies[kind] = smooth
    return jax.tree_util.Partial(bodies[kind], gain)

@jax.jit
def filtered(gain, drive):
    return jax.lax.scan(body_for("rc", gain), 0.0, drive)[1]
""",
        function="smooth",
        variables=("gain",),
    ),
    Example(
        "a function that a flax.nnx module keeps, where only nnx.data is no static attribute",
        """\
import jax
from flax import nnx

class Unit(nnx.Module):
    def __init__(self, act):
        self.w = nnx.Param(jax.numpy.float32(2.0))
        self.act = act

@nnx.vmap
def build(slope):
    return Unit(act=lambda v: slope * v)
""",
        """\
import jax
from flax import nnx

class Unit(nnx.Module):
    def __init__(self, act):
        self.w = nnx.Param(jax.numpy.float32(2.0))
        self.act = act

@nnx.vmap
def build(slope):
    return Unit(act=nnx.data(jax.tree_util.Partial(lambda slope, v: slope * v, slope)))
""",
        function="<lambda>",
        variables=("slope",),
    ),
    Example(
        "a field of an equinox module, which is a child already",
        """\
import equinox as eqx
import jax

class Layer(eqx.Module):
    act: object

@eqx.filter_jit
def build(slope):
    def act(v):
        return slope * v
    return Layer(act)
""",
        """\
import equinox as eqx
import jax

class Layer(eqx.Module):
    act: object

@eqx.filter_jit
def build(slope):
    def act(slope, v):
        return slope * v
    return Layer(jax.tree_util.Partial(act, slope))
""",
        function="act",
        variables=("slope",),
        fields=(("Layer", "act"),),
    ),
    Example(
        "a function that is kept in a global",
        """\
import jax

step = None

@jax.jit
def filtered(k, xs):
    global step
    a = 0.5 * k
    def step(c, x):
        return a * c + x, c
    return jax.lax.scan(step, 0.0, xs)[1], a

ys, a = filtered(1.0, jax.numpy.ones(3))
jax.lax.scan(step, 0.0, jax.numpy.ones(2))[0]
""",
        """\
import jax

step = None

@jax.jit
def filtered(k, xs):
    global step
    a = 0.5 * k
    def step(a, c, x):
        return a * c + x, c
    return jax.lax.scan(jax.tree_util.Partial(step, a), 0.0, xs)[1], a

ys, a = filtered(1.0, jax.numpy.ones(3))
jax.lax.scan(jax.tree_util.Partial(step, a), 0.0, jax.numpy.ones(2))[0]
""",
        function="step",
        variables=("a",),
    ),
    Example(
        "a value that changes after the function was made",
        """\
import equinox as eqx
import jax

def build(xs):
    spread = xs[0]
    layer = eqx.nn.Lambda(lambda h: h / spread)
    spread = xs[1]
    return layer
""",
        refusal="`spread` is assigned more than once",
        function="<lambda>",
        variables=("spread",),
    ),
)

RULE = Rule("use_partial", propose, lambda case: case.lift_title + ", bound with `jax.tree_util.Partial`", EXAMPLES)
