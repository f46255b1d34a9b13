"""Programs that leak nothing, as notebooks have them: name, libraries that it needs, setup cell and checked cell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CleanProgram:
    """An earlier cell and the cell that is checked."""

    name: str
    setup: str
    cell: str
    needs: tuple[str, ...] = ()


PROGRAMS = [
    CleanProgram(
        "equinox train step",
        """
import equinox as eqx, jax, jax.numpy as jnp, optax
model = eqx.nn.MLP(2, "scalar", 8, 2, key=jax.random.key(0))
opt = optax.adam(1e-2)
state = opt.init(eqx.filter(model, eqx.is_array))
x, y = jnp.ones((4, 2)), jnp.ones(4)
@eqx.filter_jit
def step(model, state, x, y):
    @eqx.filter_value_and_grad
    def loss(m):
        return jnp.mean((jax.vmap(m)(x) - y) ** 2)
    value, grads = loss(model)
    updates, state = opt.update(grads, state, model)
    return eqx.apply_updates(model, updates), state, value
""",
        "for _ in range(3):\n    model, state, value = step(model, state, x, y)\nvalue",
        ("equinox", "optax"),
    ),
    CleanProgram(
        "flax linen train step",
        """
import flax.linen as nn, jax, jax.numpy as jnp, optax
from flax.training.train_state import TrainState
class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(8)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(1)(nn.relu(x))
x, y = jnp.ones((4, 2)), jnp.ones((4, 1))
variables = Net().init(jax.random.key(0), x)
state = TrainState.create(apply_fn=Net().apply, params=variables["params"], tx=optax.sgd(0.1, momentum=0.9))
stats = variables["batch_stats"]
@jax.jit
def step(state, stats, x, y):
    def loss(params):
        out, new = state.apply_fn({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
        return jnp.mean((out - y) ** 2), new["batch_stats"]
    (value, stats2), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), stats2, value
""",
        "for _ in range(3):\n    state, stats, value = step(state, stats, x, y)\nvalue",
        ("flax", "optax"),
    ),
    CleanProgram(
        "flax nnx train step",
        """
from flax import nnx
import jax.numpy as jnp, optax
class Net(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(2, 8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.b = nnx.Linear(8, 1, rngs=rngs)
    def __call__(self, x):
        return self.b(self.drop(nnx.relu(self.a(x))))
net = Net(nnx.Rngs(0))
opt = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
x, y = jnp.ones((4, 2)), jnp.ones((4, 1))
@nnx.jit
def step(net, opt, x, y):
    value, grads = nnx.value_and_grad(lambda n: jnp.mean((n(x) - y) ** 2))(net)
    opt.update(net, grads)
    return value
""",
        "for _ in range(3):\n    value = step(net, opt, x, y)\nvalue",
        ("flax", "optax"),
    ),
    CleanProgram(
        "haiku train step",
        """
import haiku as hk, jax, jax.numpy as jnp, optax
net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 1])(x)))
x, y = jnp.ones((4, 2)), jnp.ones((4, 1))
params = net.init(jax.random.PRNGKey(0), x)
opt = optax.sgd(0.1)
state = opt.init(params)
@jax.jit
def step(params, state, x, y):
    grads = jax.grad(lambda p: jnp.mean((net.apply(p, x) - y) ** 2))(params)
    updates, state = opt.update(grads, state)
    return optax.apply_updates(params, updates), state
""",
        "for _ in range(3):\n    params, state = step(params, state, x, y)",
        ("haiku", "optax"),
    ),
    CleanProgram(
        "odeint and its gradient",
        """
import jax, jax.numpy as jnp
from jax.experimental.ode import odeint
def field(y, t, k):
    return -k * y
""",
        "jax.jit(jax.grad(lambda k: odeint(field, jnp.ones(2), jnp.linspace(0.0, 1.0, 4), k).sum()))(0.5)",
    ),
    CleanProgram(
        "BFGS",
        "import jax, jax.numpy as jnp\nfrom jax.scipy.optimize import minimize\n",
        "jax.jit(lambda s: minimize(lambda v: jnp.sum((v - 1.0) ** 2), s, method='BFGS').x)(jnp.zeros(3))",
    ),
    CleanProgram(
        "custom_root, custom_linear_solve, cg",
        """
import jax, jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
def root(a):
    f = lambda x: x**3 - a
    newton = lambda f, x0: jax.lax.fori_loop(0, 30, lambda _, x: x - f(x) / jax.grad(f)(x), x0)
    return jax.lax.custom_root(f, 1.0, newton, lambda g, y: y / g(1.0))
""",
        "jax.vmap(jax.grad(root))(jnp.array([2.0, 3.0]))\n"
        "jax.grad(lambda b: cg(lambda v: 3.0 * v, b)[0].sum())(jnp.ones(3))",
    ),
    CleanProgram(
        "custom rules",
        """
import jax, jax.numpy as jnp
@jax.custom_vjp
def clip(x, low):
    return jnp.maximum(x, low)
clip.defvjp(lambda x, low: (clip(x, low), (x, low)), lambda r, g: (jnp.where(r[0] > r[1], g, 0.0), None))
@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))
soft.defjvp(lambda p, t: (soft(*p), jax.nn.sigmoid(p[0]) * t[0]))
@jax.custom_batching.custom_vmap
def twice(x):
    return 2 * x
@twice.def_vmap
def _(size, batched, x):
    return 2 * x, batched[0]
""",
        "jax.jit(jax.vmap(jax.grad(lambda x: clip(soft(x), 0.1) ** 2)))(jnp.arange(3.0))\n"
        "jax.vmap(twice)(jnp.arange(3.0))",
    ),
    CleanProgram(
        "callbacks",
        """
import jax, jax.numpy as jnp, numpy as np
@jax.jit
def f(x):
    y = jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    jax.debug.callback(lambda v: None, y)
    jax.debug.print("{}", y, ordered=True)
    return jax.experimental.io_callback(lambda v: np.float32(v.sum()), jax.ShapeDtypeStruct((), jnp.float32), y)
import jax.experimental
""",
        "f(jnp.ones(3)).block_until_ready(); jax.effects_barrier()",
    ),
    CleanProgram(
        "pallas",
        """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0
double = lambda x: pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
""",
        "jax.jit(double)(jnp.arange(8.0))",
    ),
    CleanProgram(
        "checkify",
        """
import jax, jax.numpy as jnp
from jax.experimental import checkify
def f(x):
    checkify.check(x > 0, "must be positive: {x}", x=x)
    return jnp.log(x)
""",
        "error, value = jax.jit(checkify.checkify(f))(2.0)\nerror.throw()\nvalue",
    ),
    CleanProgram(
        "shard_map on 8 devices",
        """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
try:
    shard_map = jax.shard_map
except AttributeError:
    from jax.experimental.shard_map import shard_map
mesh = Mesh(np.array(jax.devices()), ("i",))
@functools.partial(shard_map, mesh=mesh, in_specs=P("i"), out_specs=P())
def total(x):
    return jax.lax.psum(jnp.sin(x).sum(), "i")
""",
        "assert len(jax.devices()) == 8\ntotal(jnp.arange(16.0)), jax.jit(total)(jnp.arange(16.0)), "
        "jax.grad(lambda x: total(x * 2.0))(jnp.arange(16.0))",
    ),
    CleanProgram(
        "loops, remat, aot, vjp kept and called",
        """
import jax, jax.numpy as jnp
def body(c, x):
    return jax.checkpoint(jnp.tanh)(c + x), c
def f(x):
    c, ys = jax.lax.scan(body, x, jnp.arange(4.0))
    c = jax.lax.while_loop(lambda v: v < 3.0, lambda v: v + 1.0, c)
    return jax.lax.cond(c > 0, lambda v: v, lambda v: -v, c) + ys.sum()
""",
        "compiled = jax.jit(f).lower(1.0).compile()\nvalue, pullback = jax.vjp(lambda x: jnp.sin(x) * x, 2.0)\n"
        "_, push = jax.linearize(jnp.sin, 1.0)\n"
        "compiled(1.0), pullback(1.0), push(1.0)\n"
        "jax.hessian(lambda x: jnp.sum(x**3))(jnp.ones(2)), jax.make_jaxpr(f)(1.0)",
    ),
    CleanProgram(
        "diffrax and optimistix",
        """
import diffrax, jax, jax.numpy as jnp, optimistix as optx
def solve(k):
    term = diffrax.ODETerm(lambda t, y, args: -args * y)
    return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, jnp.ones(2), args=k).ys.sum()
""",
        "jax.jit(jax.grad(solve))(0.5)\nnewton = optx.Newton(1e-5, 1e-5)\n"
        "jax.grad(lambda a: optx.root_find(lambda y, a: y**2 - a, newton, 1.0, a).value)(2.0)",
        ("diffrax", "optimistix"),
    ),
    CleanProgram(
        "jaxopt",
        """
import jax, jax.numpy as jnp, jaxopt
solver = jaxopt.GradientDescent(lambda w, b: jnp.sum((w - b) ** 2), maxiter=5)
""",
        "jax.jit(jax.grad(lambda b: solver.run(jnp.zeros(2), b).params.sum()))(jnp.ones(2))",
        ("jaxopt",),
    ),
    CleanProgram(
        "numpyro",
        """
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("n", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
""",
        "mcmc = MCMC(NUTS(model), num_warmup=3, num_samples=3, progress_bar=False)\n"
        "mcmc.run(jax.random.PRNGKey(0), jnp.ones(4))",
        ("numpyro",),
    ),
    CleanProgram(
        "errors that are caught",
        "import jax, jax.numpy as jnp\n",
        "for f in (lambda x: 1 / 0, lambda x: bool(x), lambda x: jnp.ones(3) @ jnp.ones(4)):\n    try:\n"
        "        jax.jit(jax.grad(f))(1.0)\n    except Exception:\n        pass",
    ),
]
