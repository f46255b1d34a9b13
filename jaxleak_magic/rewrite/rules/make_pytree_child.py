"""A field that sits in the aux data of a pytree, or is declared static, becomes one of its children."""

from __future__ import annotations

from jaxleak_magic.rewrite.aux_data import children_of_case
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.pytree_classes import class_named
from jaxleak_magic.rewrite.refusing import listed
from jaxleak_magic.rewrite.rows import map_uses
from jaxleak_magic.rewrite.rules import Example, Rule


def propose(case: Case) -> tuple[str, Draft] | None:
    """Fields that hold arrays; or a function that holds them, lifted and bound first."""
    if case.function is not None:
        in_users_class = any(class_named(case.program, name) is not None for name, _ in case.fields)
        if not case.leak.facts.in_aux_data or not in_users_class:
            return None
        if not case.lifted.children:
            return None
        case.require_values()
        map_uses(case, case.lifted, case.lifted.children[0])
        fields = listed([f"{owner}.{attribute}" for owner, attribute in case.lifted.children])
        title = f"{case.lift_title}, bound with `jax.tree_util.Partial`, and make {fields} a pytree child"
        return title, case.lifted
    draft = children_of_case(case)
    if draft is None:
        return None
    case.require_values()
    return _title(draft.children), draft


def _title(fields: list[tuple[str, str]]) -> str:
    return f"Make {listed([f'{owner}.{attribute}' for owner, attribute in fields])} a pytree child"


def _refused_title(case: Case) -> str:
    return (
        case.lift_title
        if case.function is not None
        else _title([(a.name, a.attribute) for a in case.leak.facts.attributes])
    )


_BEFORE = """\
import dataclasses
import jax

@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Lifted:
    call: object

    def tree_flatten(self):
        return (), (self.call,)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*aux)

def build(scale):
    def apply(x):
        return scale * x

    return Lifted(apply)

lifted = jax.jit(build)(2.0)
"""

_KERNEL = """\
import jax

class Kernel:
    def __init__(self, width):
        self.width = width

@jax.tree_util.register_pytree_node_class
class Process:
    def __init__(self, xs, kernel):
        self.xs, self.kernel = xs, kernel

    def tree_flatten(self):
        return (self.xs,), self.kernel

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children[0], aux)

@jax.jit
def fit(width, xs):
    return Process(xs, Kernel(2.0 * width))
"""

_POLICY = """\
import jax
from flax import struct

@struct.dataclass
class Policy:
    logits: jax.Array
    temperature: float = struct.field(pytree_node=False)  # {}

@jax.jit
def train(logits, heat):
    return Policy(logits, heat * 2.0)
"""

_TREE = """\
import functools
import jax

@functools.partial(jax.tree_util.register_dataclass, data_fields=["mean"], meta_fields=["scale", "name"])
class Normal:
    mean: jax.Array
    scale: jax.Array
    name: str

@jax.jit
def fit(xs):
    return Normal(xs.mean(), xs.std(), "height")
"""

_SCAN = """\
import jax

@jax.tree_util.register_pytree_node_class
class Posterior:
    def __init__(self, logits, logz):
        self.logits, self.logz = logits, logz

    def tree_flatten(self):
        return (self.logits,), self.logz

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children[0], aux)

def step(logits, obs):
    return logits, Posterior(logits + obs, jax.nn.logsumexp(logits + obs))

_, path = jax.lax.scan(step, start, observations)
path.logits - path.logz
"""

_VARS = """\
import jax

class Normalish:
    def __init__(self, loc, scale=None):
        self.loc = loc
        self.scale = jax.numpy.ones_like(loc) if scale is None else scale

def flat(d):
    extra = {k: v for k, v in vars(d).items() if k != "loc"}
    return (d.loc,), tuple(extra.items())

def unflat(aux, children):
    d = object.__new__(Normalish)
    d.loc = children[0]
    d.__dict__.update(dict(aux))
    return d

jax.tree_util.register_pytree_node(Normalish, flat, unflat)
policy = jax.jit(lambda obs: Normalish(0.1 * obs))(2.0)
"""

_DICT = """\
import jax

@jax.tree_util.register_pytree_node_class
class Beam:
    def __init__(self, x, label, gain):
        self.x, self.label, self.gain = x, label, gain

    def tree_flatten(self):
        children = (self.x,)
        aux_data = {"label": self.label, "gain": self.gain}
        return children, aux_data

    @classmethod
    def tree_unflatten(cls, aux_data, children):
        return cls(*children, **aux_data)

beam = jax.jit(lambda x: Beam(x, "a", 2 * x))(1.0)
"""

_UNPACKED = """\
import jax

class Beam:
    def __init__(self, x, label, gain):
        self.x, self.label, self.gain = x, label, gain

def flatten(beam):
    return (beam.x,), (beam.gain, beam.label)

def unflatten(aux, children):
    (x,) = children
    gain, label = aux
    return Beam(x, label, gain)

jax.tree_util.register_pytree_node(Beam, flatten, unflatten)
beam = jax.jit(lambda x: Beam(x, "a", 2 * x))(1.0)
"""

_KEYS = """\
import jax

@jax.tree_util.register_pytree_with_keys_class
class Beam:
    def __init__(self, x, gain):
        self.x, self.gain = x, gain

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("x"), self.x),), (self.gain,)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children[0], aux[0])

beam = jax.jit(lambda x: Beam(x, 2 * x))(1.0)
"""

EXAMPLES = (
    Example(
        "a function from a factory, kept in a static field",
        """\
import equinox as eqx
import jax
import jax.numpy as jnp

class System(eqx.Module):
    masses: jax.Array
    potential: object = eqx.field(static=True)

def double_well(depth, width):
    def potential(q):
        return depth * jnp.sum((q**2 / width**2 - 1.0) ** 2)

    return potential

@eqx.filter_jit
def build(masses, temperature):
    return System(masses, double_well(3.0 * temperature, 1.5))
""",
        """\
import equinox as eqx
import jax
import jax.numpy as jnp

class System(eqx.Module):
    masses: jax.Array
    potential: object

def double_well(depth, width):
    def potential(depth, q):
        return depth * jnp.sum((q**2 / width**2 - 1.0) ** 2)

    return jax.tree_util.Partial(potential, depth)

@eqx.filter_jit
def build(masses, temperature):
    return System(masses, double_well(3.0 * temperature, 1.5))
""",
        function="potential",
        variables=("depth",),
        fields=(("System", "potential"),),
    ),
    Example(
        "children with keys",
        _KEYS,
        _KEYS.replace("self.x),)", 'self.x), (jax.tree_util.GetAttrKey("gain"), self.gain))')
        .replace("(self.gain,)\n", "None\n")
        .replace("aux[0]", "children[1]"),
        fields=(("Beam", "gain"),),
    ),
    Example(
        "aux data that is all of vars but some names",
        _VARS,
        _VARS.replace('k != "loc"', 'k not in ("loc", "scale")')
        .replace("(d.loc,)", "(d.loc, d.scale)")
        .replace("    d.__dict__", "    d.scale = children[1]\n    d.__dict__"),
        fields=(("Normalish", "scale"),),
    ),
    Example(
        "aux data in a dict, given to the constructor by name",
        _DICT,
        _DICT.replace("(self.x,)", "(self.x, self.gain)")
        .replace(', "gain": self.gain', "")
        .replace("cls(*children, **aux_data)", "cls(*children[:-1], gain=children[-1], **aux_data)"),
        fields=(("Beam", "gain"),),
    ),
    Example(
        "children and aux data that are unpacked",
        _UNPACKED,
        _UNPACKED.replace("(beam.x,), (beam.gain, beam.label)", "(beam.x, beam.gain), (beam.label,)")
        .replace("(x,) = children", "x, gain = children")
        .replace("gain, label = aux", "(label,) = aux"),
        fields=(("Beam", "gain"),),
    ),
    Example(
        "an unflatten function that does something else",
        _UNPACKED.replace("gain, label = aux", "gain, label = sorted(aux)"),
        refusal="is not understood well enough",
        fields=(("Beam", "gain"),),
    ),
    Example(
        "an object of a plain class in aux data: its class is registered, and it becomes a child",
        _KERNEL,
        _KERNEL.replace("class Kernel", "@jax.tree_util.register_pytree_node_class\nclass Kernel")
        .replace(
            "self.width = width\n",
            """self.width = width

    def tree_flatten(self):
        return (self.width,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)
""",
        )
        .replace("(self.xs,), self.kernel", "(self.xs, self.kernel), None")
        .replace("cls(children[0], aux)", "cls(*children)"),
        fields=(("Kernel", "width"), ("Process", "kernel")),
    ),
    Example(
        "a field of flax.struct that is declared static",
        _POLICY,
        _POLICY.replace(" = struct.field(pytree_node=False)", ""),
        fields=(("Policy", "temperature"),),
    ),
    Example(
        "a field of an object of which only the shapes are computed",
        _POLICY.replace("@jax.jit\n", "") + "\nshapes = jax.eval_shape(train, 1.0, 2.0)\n",
        refusal="`eval_shape` computes no values",
        fields=(("Policy", "temperature"),),
        transforms=("eval_shape",),
    ),
    Example(
        "a field of register_dataclass among meta_fields",
        _TREE,
        _TREE.replace('["mean"]', '["mean", "scale"]').replace('["scale", "name"]', '["name"]'),
        fields=(("Normal", "scale"),),
    ),
    Example(
        "a child that comes out of scan with one more axis, used with another field: mapped over the rows",
        _SCAN,
        _SCAN.replace("(self.logits,), self.logz", "(self.logits, self.logz), None")
        .replace("cls(children[0], aux)", "cls(*children)")
        .replace("path.logits - path.logz", "jax.vmap(lambda path: path.logits - path.logz)(path)"),
        fields=(("Posterior", "logz"),),
        transforms=("scan",),
        escaped_line=18,
    ),
    Example(
        "a child that comes out of scan with one more axis, and a use that may mean anything",
        _SCAN.replace("path.logits - path.logz", "jax.numpy.dot(path.logits, path.logz)"),
        refusal="one more axis",
        fields=(("Posterior", "logz"),),
        transforms=("scan",),
        escaped_line=18,
    ),
    Example(
        "a function in aux data: lifted, bound, and its field a child",
        _BEFORE,
        _BEFORE.replace("(), (self.call,)", "(self.call,), None")
        .replace("cls(*aux)", "cls(*children)")
        .replace("apply(x)", "apply(scale, x)")
        .replace("Lifted(apply)", "Lifted(jax.tree_util.Partial(apply, scale))"),
        function="apply",
        variables=("scale",),
        fields=(("Lifted", "call"),),
    ),
    Example(
        "another object of the class holds a plain function",
        _BEFORE + "other = Lifted(abs)\n",
        refusal="Another `Lifted` is made on line 23",
        function="apply",
        variables=("scale",),
        fields=(("Lifted", "call"),),
    ),
)

RULE = Rule("make_pytree_child", propose, _refused_title, EXAMPLES)
