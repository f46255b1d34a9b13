"""A closed-over value becomes an argument of the function, passed wherever the function is called."""

from __future__ import annotations

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.rules import Example, Rule


def propose(case: Case) -> tuple[str, Draft] | None:
    """The lift, where nothing had to be bound."""
    if case.function is None or case.lifted.bound:
        return None
    return case.lift_title, case.lifted


_IMPORTS = "import jax\nimport jax.numpy as jnp\nimport jaxopt\nfrom jax.experimental.ode import odeint\n\n"

_SNAP = """\
def layer(width, x):
    @jax.custom_vjp
    def snap(v):
        return jnp.round(v / width) * width
    snap.defvjp(lambda v: (snap(v), None), lambda _, g: (g * width,))
    return snap(x)
"""

_POWER = """\
def energy(x, n):
    @jax.custom_vjp
    def power(v):
        return v ** n
    power.defvjp(lambda v: (power(v), v), lambda v, g: (g * n * v ** (n - 1),))
    return power(x)
"""

_CLIP = """\
def row(bound, x):
    @jax.custom_vjp
    def clip(v):
        return v ** 2
    def forward(v):
        return clip(v), v
    def backward(v, g):
        return (jnp.clip(2 * g, -bound, bound) * v,)
    clip.defvjp(forward, backward)
    return jax.grad(clip)(x)
"""

_TANGENT = """\
def run(stiff, x):
    @jax.custom_jvp
    def soft(v):
        return jnp.tanh(stiff * v)
    @soft.defjvp
    def rule(primals, tangents):
        (v,) = primals
        (dv,) = tangents
        return soft(v), stiff * dv
    return soft(x)
"""

EXAMPLES = (
    Example(
        "all of it inside of a function",
        """\
import jax
import jax.numpy as jnp
from jax.scipy.optimize import minimize

def main():
    landscape = {}

    @jax.jit
    def invert(traces):
        target = jnp.mean(traces, axis=0)
        def misfit(p):
            return jnp.sum((p - target) ** 2)
        landscape["misfit"] = misfit
        return minimize(misfit, jnp.zeros(2), method="BFGS").x

    best = invert(jnp.ones((2, 2)))
    return [landscape["misfit"](best + d) for d in (0.0, 1.0)]
""",
        """\
import jax
import jax.numpy as jnp
from jax.scipy.optimize import minimize

def main():
    landscape = {}

    @jax.jit
    def invert(traces):
        target = jnp.mean(traces, axis=0)
        def misfit(p, target):
            return jnp.sum((p - target) ** 2)
        landscape["misfit"] = misfit
        return minimize(misfit, jnp.zeros(2), args=(target,), method="BFGS").x, target

    best, target = invert(jnp.ones((2, 2)))
    return [landscape["misfit"](best + d, target) for d in (0.0, 1.0)]
""",
        function="misfit",
        variables=("target",),
    ),
    Example(
        "an object that a call may give again",
        """\
import jax
import jax.numpy as jnp

def main():
    shared = registry_of("optics")

    @jax.jit
    def invert(traces):
        target = jnp.mean(traces, axis=0)
        def misfit(p):
            return jnp.sum((p - target) ** 2)
        shared.misfit = misfit
        return target + 1

    best = invert(jnp.ones((2, 2)))
    return shared.misfit(best)
""",
        refusal="may be from an earlier run",
        function="misfit",
        variables=("target",),
    ),
    Example(
        "a container that outlives the function that reads it",
        """\
import jax
import jax.numpy as jnp

landscape = {}

def main():
    @jax.jit
    def invert(traces):
        target = jnp.mean(traces, axis=0)
        def misfit(p):
            return jnp.sum((p - target) ** 2)
        landscape["misfit"] = misfit
        return target + 1

    best = invert(jnp.ones((2, 2)))
    return landscape["misfit"](best)
""",
        refusal="may be from an earlier run",
        function="misfit",
        variables=("target",),
    ),
    Example(
        "the objective of a solver gets its data through run",
        _IMPORTS
        + """\
def adapt(start, features, labels):
    def error(weights, anchor):  # features and labels by closure
        return jnp.mean((features @ weights - labels) ** 2) + jnp.sum((weights - anchor) ** 2)

    solver = jaxopt.GradientDescent(error, maxiter=5)
    return solver.run(start, start).params
""",
        _IMPORTS
        + """\
def adapt(start, features, labels):
    def error(weights, anchor, features, labels):  # features and labels by closure
        return jnp.mean((features @ weights - labels) ** 2) + jnp.sum((weights - anchor) ** 2)

    solver = jaxopt.GradientDescent(error, maxiter=5)
    return solver.run(start, start, features, labels).params
""",
        function="error",
        variables=("labels", "features"),
    ),
    Example(
        "a host callback gets the value as an operand",
        _IMPORTS
        + """\
@jax.jit
def epoch(w):
    loss = jnp.mean(w ** 2)
    jax.debug.callback(lambda: log.append(loss))
    return w
""",
        _IMPORTS
        + """\
@jax.jit
def epoch(w):
    loss = jnp.mean(w ** 2)
    jax.debug.callback(lambda loss: log.append(loss), loss)
    return w
""",
        function="<lambda>",
        variables=("loss",),
    ),
    Example(
        "odeint hands its further arguments on; functions that JAX lifts itself may keep the value",
        _IMPORTS
        + """\
def loss(rate):
    def one(y0):
        return odeint(lambda y, t: -rate * y, y0, times)[-1]
    return jax.vmap(one)(starts).sum()
""",
        _IMPORTS
        + """\
def loss(rate):
    def one(y0):
        return odeint(lambda y, t, rate: -rate * y, y0, times, rate)[-1]
    return jax.vmap(one)(starts).sum()
""",
        function="<lambda>",
        variables=("rate",),
    ),
    Example(
        "a kept function takes the value at each call, which the cell returns for it",
        _IMPORTS
        + """\
plans = {}

def setup(k, m):
    stiffness = k / m
    def advance(x, dt=0.1):
        return x - dt * stiffness * x
    plans["euler"] = advance
    return advance(1.0)

moved = jax.jit(setup)(2.0, 4.0)
plans["euler"](moved)
""",
        _IMPORTS
        + """\
plans = {}

def setup(k, m):
    stiffness = k / m
    def advance(x, dt=0.1, *, stiffness):
        return x - dt * stiffness * x
    plans["euler"] = advance
    return advance(1.0, stiffness=stiffness), stiffness

moved, stiffness = jax.jit(setup)(2.0, 4.0)
plans["euler"](moved, stiffness=stiffness)
""",
        function="advance",
        variables=("stiffness",),
    ),
    Example(
        "a mapped function gets its in_axes entry, a transform its argument",
        _IMPORTS
        + """\
plans = {}

def outer(scale, rows):
    def one(
        row,
        shift,
    ):
        return jnp.sum(row * scale + shift)

    plans["slope"] = jax.grad(one)
    return jax.vmap(one, in_axes=(0, None))(rows, 0.5)
""",
        _IMPORTS
        + """\
plans = {}

def outer(scale, rows):
    def one(
        row,
        shift,
        scale,
    ):
        return jnp.sum(row * scale + shift)

    plans["slope"] = jax.grad(one)
    return jax.vmap(one, in_axes=(0, None, None))(rows, 0.5, scale)
""",
        function="one",
        variables=("scale",),
    ),
    Example(
        "an optax transformation takes the value at each update, after a vmap one for each row",
        _IMPORTS
        + """\
import optax

zoo = {}

def shrinking(radius):
    def update(updates, state, params=None):
        return updates * radius, state
    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

def trial(radius, g):
    zoo["tx"] = shrinking(radius)
    return zoo["tx"].update(g, zoo["tx"].init(g))[0]

radii = jnp.ones(2)
steps = jax.vmap(trial, in_axes=(0, None))(radii, radii)
zoo["tx"].update(radii, zoo["tx"].init(radii))[0]
""",
        _IMPORTS
        + """\
import optax

zoo = {}

def shrinking(radius):
    def update(updates, state, params=None, *, radius):
        return updates * radius, state
    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

def trial(radius, g):
    zoo["tx"] = shrinking(radius)
    return zoo["tx"].update(g, zoo["tx"].init(g), radius=radius)[0]

radii = jnp.ones(2)
steps = jax.vmap(trial, in_axes=(0, None))(radii, radii)
jax.vmap(lambda radius: zoo["tx"].update(radii, zoo["tx"].init(radii), radius=radius))(radii)[0]
""",
        function="update",
        variables=("radius",),
        transforms=("vmap",),
    ),
    Example(
        "the function inside is given to odeint, that around it only to grad",
        _IMPORTS
        + """\
def sensitivity(rate):
    def remaining(dose):
        def rhs(c, t):
            return -rate * c
        return odeint(rhs, dose, times)[-1]
    return jax.grad(remaining)(1.0)
""",
        _IMPORTS
        + """\
def sensitivity(rate):
    def remaining(dose):
        def rhs(c, t, rate):
            return -rate * c
        return odeint(rhs, dose, times, rate)[-1]
    return jax.grad(remaining)(1.0)
""",
        function="remaining",
        variables=("rate",),
    ),
    Example(
        "a function whose closure JAX lifts itself",
        _IMPORTS
        + """\
def outer(scale, x):
    def one(row):
        return row * scale
    return jax.vmap(one)(x)
""",
        refusal="not sure which function keeps `scale`",
        function="one",
        variables=("scale",),
    ),
    Example(
        "a call whose callee is not known",
        _IMPORTS
        + """\
def outer(scale, x):
    def one(row):
        return row * scale
    return apply_somehow(one, x)
""",
        refusal="`one` is given to `apply_somehow`, and how that calls it is not known",
        function="one",
        variables=("scale",),
    ),
    Example(
        "a value that is changed in place",
        _IMPORTS
        + """\
plans = {}

def outer(x):
    seen = []
    def one(row):
        seen.append(row)
        return row
    plans["one"] = one
""",
        refusal="changes `seen` in place",
        function="one",
        variables=("seen",),
    ),
    Example(
        "an integer that is only a number, for odeint, which differentiates its arguments: a float of its value",
        _IMPORTS
        + """\
def endpoint(y0, power):
    def rhs(y, t):
        return -y / (1 + power)
    return odeint(rhs, y0, times)[-1]
""",
        _IMPORTS
        + """\
def endpoint(y0, power):
    def rhs(y, t, power):
        return -y / (1 + power)
    return odeint(rhs, y0, times, jnp.asarray(power, float))[-1]
""",
        function="rhs",
        variables=("power",),
        dtype="int32",
    ),
    Example(
        "an index for odeint: the element that it picks is passed",
        _IMPORTS
        + """\
RATES = jnp.array([0.2, 0.5])

def endpoint(y0, species):
    def rhs(y, t):
        return -RATES[species] * y
    return odeint(rhs, y0, times)[-1]
""",
        _IMPORTS
        + """\
RATES = jnp.array([0.2, 0.5])

def endpoint(y0, species):
    def rhs(y, t, rate):
        return -rate * y
    return odeint(rhs, y0, times, RATES[species])[-1]
""",
        function="rhs",
        variables=("species",),
        dtype="int32",
    ),
    Example(
        "an integer power for odeint, which differentiates its arguments",
        _IMPORTS
        + """\
def endpoint(y0, power):
    def rhs(y, t):
        return -y ** power
    return odeint(rhs, y0, times)[-1]
""",
        refusal="`power` may be an integer",
        function="rhs",
        variables=("power",),
        dtype="int32",
    ),
    Example(
        "a custom derivative: the value becomes an argument and a residual where nothing is differentiated in it",
        _IMPORTS + _SNAP,
        _IMPORTS
        + _SNAP.replace("snap(v):", "snap(v, width):")
        .replace("lambda v: (snap(v), None)", "lambda v, width: (snap(v, width), width)")
        .replace("lambda _, g: (g * width,)", "lambda width, g: (g * width, None)")
        .replace("snap(x)", "snap(x, width)"),
        function="snap",
        variables=("width",),
    ),
    Example(
        "a custom derivative whose rule is a lambda that reads its residual",
        _IMPORTS + _POWER,
        _IMPORTS
        + _POWER.replace("power(v):", "power(v, n):")
        .replace("lambda v: (power(v), v)", "lambda v, n: (power(v, n), (v, n))")
        .replace(
            "lambda v, g: (g * n * v ** (n - 1),)",
            "lambda residuals, g: (g * residuals[1] * residuals[0] ** (residuals[1] - 1), None)",
        )
        .replace("power(x)", "power(x, n)"),
        function="power",
        variables=("n",),
        dtype="int32",
        transforms=("grad",),
    ),
    Example(
        "a custom derivative, whose rule would need a cotangent for the value",
        _IMPORTS + _SNAP,
        refusal="cotangent",
        function="snap",
        variables=("width",),
        transforms=("grad",),
    ),
    Example(
        "a value that only the derivative rule uses, whose own derivative is zero",
        _IMPORTS + _CLIP,
        _IMPORTS
        + _CLIP.replace("clip(v):", "clip(v, bound):")
        .replace("forward(v):", "forward(v, bound):")
        .replace("clip(v), v", "clip(v, bound), (v, bound)")
        .replace("backward(v, g):", "backward(residuals, g):\n        v, bound = residuals")
        .replace("-bound, bound) * v,)", "-bound, bound) * v, None)")
        .replace("clip)(x)", "clip)(x, bound)"),
        function="backward",
        variables=("bound",),
        transforms=("grad",),
    ),
    Example(
        "a custom tangent rule",
        _IMPORTS + _TANGENT,
        _IMPORTS
        + _TANGENT.replace("soft(v):", "soft(v, stiff):")
        .replace("(v,) = primals", "(v, stiff) = primals")
        .replace("(dv,) = tangents", "(dv, _) = tangents")
        .replace("return soft(v),", "return soft(v, stiff),")
        .replace("soft(x)", "soft(x, stiff)"),
        function="soft",
        variables=("stiff",),
    ),
    Example(
        "a stored function that may be an older one",
        _IMPORTS
        + """\
table = {}

def step(scale, x, fresh):
    if fresh:
        table["f"] = lambda v: v * scale
    return table["f"](x)
""",
        refusal="may be from an earlier run",
        function="<lambda>",
        variables=("scale",),
    ),
)


RULE = Rule("lift_closure_to_argument", propose, lambda case: case.lift_title, EXAMPLES)
