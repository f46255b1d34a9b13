"""A value that a function stores outside of itself becomes one of its results, bound at each call."""

from __future__ import annotations

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.state_case import threaded, title_of


def propose(case: Case) -> tuple[str, Draft] | None:
    """The threading, where no old value has to come in."""
    found = threaded(case)
    if found is None or found.comes_in:
        return None
    return found.title, found.draft


_IMPORTS = "import jax\nimport jax.numpy as jnp\n\n"

EXAMPLES = (
    Example(
        "a global that a compiled function assigns",
        _IMPORTS
        + """\
flow = None

@jax.jit
def pump(q):
    global flow
    flow = jnp.sqrt(q)  # kept for the plot
    return flow * 2

result = pump(4.0)
""",
        _IMPORTS
        + """\
flow = None

@jax.jit
def pump(q):
    flow = jnp.sqrt(q)  # kept for the plot
    return flow * 2, flow

result, flow = pump(4.0)
""",
        stored_line=9,
        variable="flow",
    ),
    Example(
        "a list that a function under value_and_grad appends to",
        _IMPORTS
        + """\
seen = []

def loss(w, x):
    h = jnp.tanh(w * x)
    seen.append({"h": h, "final": False})
    return h.sum()

value, grads = jax.value_and_grad(loss)(0.5, jnp.ones(3))
print(value)
""",
        _IMPORTS
        + """\
seen = []

def loss(w, x):
    h = jnp.tanh(w * x)
    return h.sum(), h

(value, h), grads = jax.value_and_grad(loss, has_aux=True)(0.5, jnp.ones(3))
seen.append({"h": h, "final": False})
print(value)
""",
        stored_line=8,
        variable="h",
    ),
    Example(
        "a list that a loop in a compiled function appends to",
        _IMPORTS
        + """\
hidden = []

@jax.jit
def forward(weights, x):
    for number, w in enumerate(weights):
        x = jnp.tanh(w * x)
        if number:
            hidden.append(x)  # for the plot
    return x

y = forward([0.5, 2.0], jnp.ones(3))
print(len(hidden))
""",
        _IMPORTS
        + """\
hidden = []

@jax.jit
def forward(weights, x):
    hidden = []
    for number, w in enumerate(weights):
        x = jnp.tanh(w * x)
        if number:
            hidden.append(x)  # for the plot
    return x, hidden

y, new_hidden = forward([0.5, 2.0], jnp.ones(3))
hidden.extend(new_hidden)
print(len(hidden))
""",
        stored_line=11,
        variable="x",
    ),
    Example(
        "a list of an object that a loop in its method appends to",
        _IMPORTS
        + """\
class Net:
    def __init__(self):
        self.hidden = []

    def __call__(self, weights, x):
        for w in weights:
            x = jnp.tanh(w * x)
            self.hidden.append(x)
        return x

net = Net()

@jax.jit
def predict(weights, x):
    return net(weights, x)

y = predict([0.5, 2.0], jnp.ones(3))
print(len(net.hidden))
""",
        _IMPORTS
        + """\
class Net:
    def __init__(self):
        self.hidden = []

    def __call__(self, weights, x):
        hidden = []
        for w in weights:
            x = jnp.tanh(w * x)
            hidden.append(x)
        return x, hidden

net = Net()

@jax.jit
def predict(weights, x):
    return net(weights, x)

y, hidden = predict([0.5, 2.0], jnp.ones(3))
net.hidden.extend(hidden)
print(len(net.hidden))
""",
        stored_line=11,
        variable="x",
    ),
    Example(
        "a list to which several calls of a function append, each in a loop",
        _IMPORTS
        + """\
hidden = []

def block(x):
    for scale in (0.5, 2.0):
        x = jnp.tanh(scale * x)
        hidden.append(x)
    return x

@jax.jit
def forward(x):
    return block(block(x))

y = forward(jnp.ones(3))
print(len(hidden))
""",
        _IMPORTS
        + """\
hidden = []

def block(x):
    hidden = []
    for scale in (0.5, 2.0):
        x = jnp.tanh(scale * x)
        hidden.append(x)
    return x, hidden

@jax.jit
def forward(x):
    hidden = []
    value, new_hidden = block(x)
    hidden.extend(new_hidden)
    result, hidden_2 = block(value)
    hidden.extend(hidden_2)
    return result, hidden

y, new_hidden = forward(jnp.ones(3))
hidden.extend(new_hidden)
print(len(hidden))
""",
        stored_line=9,
        variable="x",
    ),
    Example(
        "a list of an object to which each layer appends",
        _IMPORTS
        + """\
class Net:
    def __init__(self):
        self.hidden = []

    def layer(self, w, x):
        h = jnp.tanh(w * x)
        self.hidden.append(h)
        return h

    def __call__(self, weights, x):
        for w in weights:
            x = self.layer(w, x)
        return x

net = Net()

@jax.jit
def predict(weights, x):
    return net(weights, x)

y = predict([0.5, 2.0], jnp.ones(3))
print(len(net.hidden))
""",
        _IMPORTS
        + """\
class Net:
    def __init__(self):
        self.hidden = []

    def layer(self, w, x):
        h = jnp.tanh(w * x)
        return h, h

    def __call__(self, weights, x):
        hidden = []
        for w in weights:
            x, h = self.layer(w, x)
            hidden.append(h)
        return x, hidden

net = Net()

@jax.jit
def predict(weights, x):
    return net(weights, x)

y, hidden = predict([0.5, 2.0], jnp.ones(3))
net.hidden.extend(hidden)
print(len(net.hidden))
""",
        stored_line=10,
        variable="h",
    ),
    Example(
        "a list of a loop that another function reads meanwhile",
        _IMPORTS
        + """\
hidden = []

def so_far():
    return sum(hidden)

@jax.jit
def forward(weights, x):
    for w in weights:
        x = jnp.tanh(w * x) + so_far()
        hidden.append(x)
    return x

y = forward([0.5, 2.0], jnp.ones(3))
""",
        refusal="stores a value under a condition or in a loop",
        stored_line=13,
        variable="x",
    ),
    Example(
        "a list of a loop that has another name too",
        _IMPORTS
        + """\
hidden = []
view = hidden

def latest():
    return view[-1]

@jax.jit
def forward(weights, x):
    for w in weights:
        x = jnp.tanh(w * x)
        hidden.append(x)
    return latest()

y = forward([0.5, 2.0], jnp.ones(3))
""",
        refusal="stores a value under a condition or in a loop",
        stored_line=14,
        variable="x",
    ),
    Example(
        "what a scan body collects comes back as ys",
        _IMPORTS
        + """\
path = []

def hop(x, dx):
    x = x + dx
    path.append(x)
    return x, None

end, _ = jax.lax.scan(hop, 0.0, jnp.arange(3.0))
jnp.stack(path)
""",
        _IMPORTS
        + """\
path = []

def hop(x, dx):
    x = x + dx
    return x, x

end, xs = jax.lax.scan(hop, 0.0, jnp.arange(3.0))
path.extend(xs)
jnp.stack(path)
""",
        stored_line=8,
        variable="x",
    ),
    Example(
        "an attribute of a mapped object, for each row",
        _IMPORTS
        + """\
class Norm:
    mean = None

    def __call__(self, x):
        self.mean = x.mean()
        return x - self.mean

norm = Norm()
step = jax.jit(jax.vmap(norm))
out = step(jnp.ones((3, 4)))
""",
        _IMPORTS
        + """\
class Norm:
    mean = None

    def __call__(self, x):
        mean = x.mean()
        return x - mean, mean

norm = Norm()
step = jax.jit(jax.vmap(norm))
out, norm.mean = step(jnp.ones((3, 4)))
""",
        stored_line=8,
        variable="mean",
    ),
    Example(
        "a schedule made of a traced value moves out with it",
        _IMPORTS
        + """\
import optax

made = {}

@jax.jit
def plan(batches):
    warm = 4.0 * jnp.max(batches)
    def ramp(count):
        return jnp.minimum(1.0, count / warm)
    made["tx"] = optax.scale_by_schedule(ramp)
    return warm

warm = plan(jnp.ones(2))
print(warm)
""",
        _IMPORTS
        + """\
import optax

made = {}

@jax.jit
def plan(batches):
    warm = 4.0 * jnp.max(batches)
    return warm

warm = plan(jnp.ones(2))

def ramp(count):
    return jnp.minimum(1.0, count / warm)

made["tx"] = optax.scale_by_schedule(ramp)
print(warm)
""",
        stored_line=13,
        variable="warm",
    ),
    Example(
        "two calls, each of which stores a value: the caller has a list of its own",
        _IMPORTS
        + """\
seen = []

def layer(x):
    h = jnp.tanh(x)
    seen.append(h)
    return h

@jax.jit
def net(x):
    return layer(layer(x))

y = net(1.0)
print(y)
""",
        _IMPORTS
        + """\
seen = []

def layer(x):
    h = jnp.tanh(x)
    return h, h

@jax.jit
def net(x):
    seen = []
    value, h = layer(x)
    seen.append(h)
    result, new_h = layer(value)
    seen.append(new_h)
    return result, seen

y, new_seen = net(1.0)
seen.extend(new_seen)
print(y)
""",
        stored_line=8,
        variable="h",
    ),
    Example(
        "a list that a function called in a loop reads too",
        _IMPORTS
        + """\
seen = []

def layer(x):
    h = jnp.tanh(x)
    seen.append(h)
    return h

def net(x):
    for _ in range(2):
        x = layer(x)
    return x + sum(seen)

for x in (1.0, 2.0):
    jax.jit(net)(x)
""",
        refusal="may hold values of earlier calls",
        stored_line=8,
        variable="h",
    ),
    Example(
        "a mapped function whose value another function reads as one",
        _IMPORTS
        + """\
replay = []

def rollout(start):
    obs = jnp.tanh(start)
    replay.append(obs)
    return obs * 2

jax.vmap(rollout)(jnp.arange(3.0))
jax.vmap(lambda s: s + replay[0])(jnp.arange(3.0))
""",
        refusal="may want only one",
        stored_line=8,
        variable="obs",
    ),
    Example(
        "one of several ways to return, and a way that falls off the end",
        _IMPORTS
        + """\
flow = None

@jax.jit
def pump(q):
    global flow
    flow = jnp.sqrt(q)
    if q.ndim:
        return flow * 2

result = pump(4.0)
""",
        refusal="can end without a return statement",
        stored_line=9,
        variable="flow",
    ),
    Example(
        "an object that goes on changing after it is stored",
        _IMPORTS
        + """\
table = {}

def steps(x):
    while True:
        x = x + 1
        yield x

@jax.jit
def first(x):
    table["steps"] = steps(x)
    return next(table["steps"])

first(1.0)
""",
        stored_line=13,
        variable="x",
        refusal="made anew, without what happened to it in",
    ),
    Example(
        "a function that did not run is left as it is",
        _IMPORTS
        + """\
notes = {}

@jax.jit
def other(x):
    notes["other"] = x + 1
    return x

@jax.jit
def double(x):
    notes["double"] = x
    return 2 * x

result = double(1.0)
""",
        _IMPORTS
        + """\
notes = {}

@jax.jit
def other(x):
    notes["other"] = x + 1
    return x

@jax.jit
def double(x):
    return 2 * x, x

result, notes["double"] = double(1.0)
""",
        stored_line=13,
        variable="x",
    ),
)

RULE = Rule("return_instead_of_write", propose, title_of, EXAMPLES)
