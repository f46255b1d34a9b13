"""A field that sits in the aux data of a pytree, or is declared static, becomes one of its children."""

from __future__ import annotations

from jaxleak_magic.rewrite.aux_data import check_new_axis, children_of_case
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.pytree_classes import class_named
from jaxleak_magic.rewrite.refusing import listed
from jaxleak_magic.rewrite.rules import Example, Rule


def propose(case: Case) -> tuple[str, Draft] | None:
    """Fields that hold arrays; or a function that holds them, lifted and bound first."""
    if case.function is not None:
        in_users_class = any(class_named(case.program, name) is not None for name, _ in case.fields)
        if not case.leak.facts.in_aux_data or not in_users_class:
            return None
        if not case.lifted.children:
            return None
        check_new_axis(case, case.lifted.children[0])
        fields = listed([f"{owner}.{attribute}" for owner, attribute in case.lifted.children])
        title = f"{case.lift_title}, bound with `jax.tree_util.Partial`, and make {fields} a pytree child"
        return title, case.lifted
    draft = children_of_case(case)
    if draft is None:
        return None
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

EXAMPLES = (
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
        "a field of register_dataclass among meta_fields",
        _TREE,
        _TREE.replace('["mean"]', '["mean", "scale"]').replace('["scale", "name"]', '["name"]'),
        fields=(("Normal", "scale"),),
    ),
    Example(
        "a child that would come out of scan with one more axis",
        _SCAN,
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
