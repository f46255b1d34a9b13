"""Leaks in code inside of functions, and values that reach the failing line in roundabout ways."""

from __future__ import annotations

import textwrap

import jax
import pytest

from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.diagnose.model import Report, SourceText
from jaxleak_magic.diagnose.sources import SourceBook

HEAD = "import jax, jax.numpy as jnp\n"

CASES = {
    "a list of the calling function": (
        """\
        def main():
            hidden = []
            @jax.jit
            def encode(token):
                hid = jnp.tanh(token)
                hidden.append(hid)
                return hid
            encode(1.0)
            return sum(h + 1 for h in hidden)
        main()
        """,
        ("container_append", "hid", 7),
        "hidden",
    ),
    "an object of the calling function": (
        """\
        @jax.tree_util.register_pytree_node_class
        class Process:
            def __init__(self, xs, width):
                self.xs, self.width = xs, width
            def tree_flatten(self):
                return (self.xs,), self.width
            @classmethod
            def tree_unflatten(cls, aux, children):
                return cls(*children, aux)
        def use(process):
            return process.width + 1
        def main():
            @jax.jit
            def fit(x):
                width = 2.0 * x
                return Process(x, width)
            fitted = fit(0.5)
            return use(fitted)
        main()
        """,
        ("pytree_static_field", "width", 7),
        "fitted",
    ),
    "a nonlocal variable of an earlier turn": (
        """\
        def fit():
            kl = None
            history = []
            def loss(mu):
                nonlocal kl
                kl = mu ** 2
                return kl + mu
            for step in range(3):
                jax.grad(loss)(1.0 + step)
                history.append((kl, step))
            return jnp.array(history)
        fit()
        """,
        ("nonlocal_write", "kl", 7),
        "loss",
    ),
    "a number is wanted of a value that nothing keeps": (
        """\
        import queue
        telemetry = queue.Queue()
        @jax.jit
        def solve(x):
            norm = jnp.sqrt(x)
            telemetry.put(norm)
            return x
        solve(4.0)
        float(telemetry.get())
        """,
        ("other", "norm", None),
        None,
    ),
    "a variable that only found the value": (
        """\
        import dataclasses
        archive = set()
        @dataclasses.dataclass(eq=False)
        class Solution:
            slope: object
        @jax.jit
        def fit(x):
            slope = 2 * x
            archive.add(Solution(slope))
            return x
        fit(1.0)
        best = next(iter(archive))
        """,
        ("container_append", "slope", 10),
        "archive",
    ),
}


def check(text: str) -> Report:
    book, name = SourceBook(), "<cell of functions>"
    text = HEAD + textwrap.dedent(text)
    book.add(name, SourceText(text))
    namespace: dict[str, object] = {"__name__": "__main__"}
    run = CheckedRun(book, namespace, name, CheckOptions(fixes=False))
    run.start()
    error = None
    try:
        exec(compile(text, name, "exec"), namespace)
    except Exception as raised:
        error = raised
    report = run.finish(error)
    if error is not None:
        error.__traceback__ = None
    return report


@pytest.mark.parametrize("name", CASES)
def test_the_value_is_told_where_it_was_stored(name: str):
    text, (mechanism, variable, stored), keeper = CASES[name]
    (leak,) = check(text).leaks
    assert (leak.verdict, leak.mechanism, leak.variable) == ("leak", mechanism, variable)
    assert (leak.stored and leak.stored.line) == stored
    if keeper is not None:
        assert keeper in leak.chains[0][-1].label


def test_a_number_that_is_wanted_while_tracing_is_no_leak(unfiltered_tracebacks):
    report = check("jax.jit(lambda x: float(x))(1.0)\n")
    assert report.leaks == ()
    assert report.error is not None
    assert report.error.kind == "concretization"


@pytest.fixture
def unfiltered_tracebacks():
    """JAX's own frames in tracebacks, as IPython has them."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


def test_nothing_is_claimed_of_a_run_that_was_not_watched(unfiltered_tracebacks):
    book, name = SourceBook(), "<unchecked cell>"
    text = HEAD + "jax.jit(lambda x: float(x))(1.0)\n"
    book.add(name, SourceText(text))
    namespace: dict[str, object] = {"__name__": "__main__"}
    with pytest.raises(jax.errors.ConcretizationTypeError) as raised:
        exec(compile(text, name, "exec"), namespace)
    report = CheckedRun(book, namespace, name, CheckOptions(fixes=False)).explain(raised.value)
    assert report is None or report.leaks == ()


def test_a_library_object_in_a_field_is_told_by_the_argument_it_was_made_of():
    pytest.importorskip("optax")
    pytest.importorskip("flax.struct")
    report = check("""\
    import flax.struct, optax
    @flax.struct.dataclass
    class Member:
        weight: object
        tx: optax.GradientTransformation = flax.struct.field(pytree_node=False)
    def spawn(seed, decay):
        tx = optax.chain(optax.add_decayed_weights(decay), optax.sgd(0.1))
        return Member(weight=1.0 * seed, tx=tx)
    members = jax.vmap(spawn)(jnp.arange(2.0), jnp.ones(2))
    """)
    (leak,) = report.leaks
    assert (leak.mechanism, leak.variable) == ("closure_in_aux_data", "decay")
    assert "weight_decay" not in leak.explanation.why
