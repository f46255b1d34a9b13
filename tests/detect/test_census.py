"""The census on every transform: which trace outlived the run, by which call it was made."""

from __future__ import annotations

import contextlib
import gc

import jax
import jax.numpy as jnp
import pytest

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.sweep import live_tracers

X = jnp.arange(3.0)
box: list = []
kept = None


class Keeper:
    value = None
    function = None


keeper = Keeper()


def write_global(y):
    global kept
    kept = y


STORES = {
    "global": write_global,
    "list": box.append,
    "attribute": lambda y: setattr(keeper, "value", y),
    "closure": lambda y: setattr(keeper, "function", lambda: y),
}


@jax.custom_vjp
def square(x):
    return x * x


def in_rule(store):
    def fwd(x):
        y = jnp.sin(x)
        store(y)
        return x * x, x

    rule = jax.custom_vjp(lambda x: x * x)
    rule.defvjp(fwd, lambda x, g: (2 * x * g,))
    return rule


def in_jvp_rule(store):
    rule = jax.custom_jvp(lambda x: x * x)

    @rule.defjvp
    def jvp(primals, tangents):
        y = jnp.sin(tangents[0])
        store(y)
        return primals[0] ** 2, 2 * primals[0] * tangents[0]

    return rule


def leaky(store):
    def f(x):
        y = jnp.sin(x) * 2
        store(y)
        return y.sum()

    return f


def scalar(store):
    return lambda x: leaky(store)(x)


MATRIX = {
    "jit": (lambda s: jax.jit(leaky(s))(X), "DynamicJaxprTrace", ["jit"]),
    "vmap": (lambda s: jax.vmap(leaky(s))(X), "BatchTrace", ["vmap"]),
    "grad": (lambda s: jax.grad(leaky(s))(X), "LinearizeTrace", ["grad"]),
    "value_and_grad": (lambda s: jax.value_and_grad(leaky(s))(X), "LinearizeTrace", ["grad"]),
    "jvp": (lambda s: jax.jvp(leaky(s), (X,), (X,)), "JVPTrace", ["jvp"]),
    "vjp": (lambda s: jax.vjp(leaky(s), X), "LinearizeTrace", ["vjp"]),
    "linearize": (lambda s: jax.linearize(leaky(s), X), "LinearizeTrace", ["linearize"]),
    "jacfwd": (lambda s: jax.jacfwd(leaky(s))(X), "JVPTrace", ["jacfwd"]),
    "jacrev": (lambda s: jax.jacrev(leaky(s))(X), "LinearizeTrace", ["jacrev"]),
    "hessian": (lambda s: jax.hessian(leaky(s))(X), "LinearizeTrace", ["jacfwd", "jacrev"]),
    "eval_shape": (lambda s: jax.eval_shape(leaky(s), X), "DynamicJaxprTrace", ["eval_shape"]),
    "make_jaxpr": (lambda s: jax.make_jaxpr(leaky(s))(X), "DynamicJaxprTrace", ["make_jaxpr"]),
    "scan": (
        lambda s: jax.lax.scan(lambda c, x: (c + leaky(s)(x), x), 0.0, X),
        "DynamicJaxprTrace",
        ["scan"],
    ),
    "while_loop": (
        lambda s: jax.lax.while_loop(lambda c: c < 3.0, lambda c: c + 1 + 0 * leaky(s)(c), 0.0),
        "DynamicJaxprTrace",
        ["while_loop"],
    ),
    "fori_loop": (lambda s: jax.lax.fori_loop(0, 3, lambda i, c: leaky(s)(c), 0.0), "DynamicJaxprTrace", ["fori_loop"]),
    "map": (lambda s: jax.lax.map(leaky(s), X), "DynamicJaxprTrace", ["map"]),
    "cond": (lambda s: jax.lax.cond(True, leaky(s), lambda x: x.sum(), X), "DynamicJaxprTrace", ["cond"]),
    "switch": (
        lambda s: jax.lax.switch(0, [leaky(s), lambda x: x.sum()], X),
        "DynamicJaxprTrace",
        ["switch"],
    ),
    "checkpoint": (lambda s: jax.grad(jax.checkpoint(leaky(s)))(X), None, ["grad", "checkpoint"]),
    "jit(vmap(grad))": (
        lambda s: jax.jit(jax.vmap(jax.grad(leaky(s))))(X),
        "LinearizeTrace",
        ["jit", "vmap", "grad"],
    ),
    "vmap(jit)": (lambda s: jax.vmap(jax.jit(leaky(s)))(X), "DynamicJaxprTrace", ["vmap", "jit"]),
    "grad(vmap)": (
        lambda s: jax.grad(lambda x: jax.vmap(leaky(s))(x).sum())(X),
        "BatchTrace",
        ["grad", "vmap"],
    ),
    "custom_vjp under jit(grad)": (lambda s: jax.jit(jax.grad(lambda x: in_rule(s)(x)))(2.0), None, None),
    "custom_jvp under grad": (lambda s: jax.grad(lambda x: in_jvp_rule(s)(x))(2.0), None, None),
    "a traced function that raised": (lambda s: raising(s), "DynamicJaxprTrace", ["jit"]),
    "worker thread": (lambda s: in_thread(s), "BatchTrace", ["vmap"]),
}


def raising(store):
    def f(x):
        store(jnp.sin(x))
        raise ValueError("after the write")

    with contextlib.suppress(ValueError):
        jax.jit(f)(X)


def in_thread(store):
    import threading

    thread = threading.Thread(target=lambda: jax.vmap(leaky(store))(X))
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def nothing_kept():
    global kept
    yield
    kept = keeper.value = keeper.function = None
    box.clear()


def run(thunk, **options):
    check = LeakCheck(True, lambda: [__file__])
    check.start()
    try:
        thunk()
    finally:
        check.stop()
    gc.collect()
    return check


def kept_value(store_name):
    return {
        "global": lambda: kept,
        "list": lambda: box[-1],
        "attribute": lambda: keeper.value,
        "closure": lambda: keeper.function(),
    }[store_name]()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("scenario", MATRIX)
def test_leak_is_found_with_its_transforms(scenario, store):
    from jaxleak_magic.diagnose.sources import SourceBook
    from jaxleak_magic.diagnose.trace_stack import Places, trace_stack

    thunk, trace_class, transforms = MATRIX[scenario]
    check = run(lambda: thunk(STORES[store]))
    traces = [birth.ref() for birth in check.census.alive()]
    tracer = kept_value(store)
    assert any(found is tracer for found in live_tracers(traces))
    trace = _jax.trace_of(tracer)
    stack = trace_stack(trace, check.census, Places(SourceBook(), check.owners))
    assert stack[-1].trace == type(trace).__name__
    assert trace_class is None or stack[-1].trace == trace_class
    assert transforms is None or [level.transform for level in stack] == transforms
    assert not any(birth.error for birth in check.census.births)


SILENT = {
    "disable_jit": lambda s: jax.disable_jit().__enter__() and None,
    "custom_vjp fwd under plain grad": lambda s: jax.grad(lambda x: in_rule(s)(x))(2.0),
    "pure_callback": lambda s: jax.pure_callback(lambda x: (s(x), x)[1], jax.ShapeDtypeStruct((3,), X.dtype), X),
    "ensure_compile_time_eval": lambda s: jax.jit(lambda x: compile_time(s, x))(X),
}
del SILENT["disable_jit"]  # its own test below: the context must be left again


def compile_time(store, x):
    with jax.ensure_compile_time_eval():
        store(jnp.sin(jnp.ones(3)))
    return x


@pytest.mark.parametrize("scenario", SILENT)
def test_no_tracer_means_no_alarm(scenario):
    check = run(lambda: SILENT[scenario](box.append))
    assert box
    assert live_tracers([birth.ref() for birth in check.census.alive()]) == []


def test_no_tracer_under_disable_jit():
    def thunk():
        with jax.disable_jit():
            jax.jit(leaky(box.append))(X)

    check = run(thunk)
    assert live_tracers([birth.ref() for birth in check.census.alive()]) == []


CLEAN = {
    "jit of a closure over an outer tracer": lambda: jax.jit(lambda x: jax.jit(lambda y: x * y)(x))(X),
    "outer jit around an inner leak-free vmap": lambda: jax.jit(lambda x: jax.vmap(jnp.sin)(x))(X),
    "kept vjp": lambda: setattr(keeper, "function", jax.vjp(lambda x: jnp.sin(x).sum(), X)[1]),
    "kept jaxpr": lambda: setattr(keeper, "value", jax.make_jaxpr(jnp.sin)(X)),
    "random and eager": lambda: jax.random.normal(jax.random.key(0), (3,)) + X,
}


@pytest.mark.parametrize("scenario", CLEAN)
def test_clean_code_leaves_no_tracer(scenario):
    check = run(CLEAN[scenario])
    assert live_tracers([b.ref() for b in check.census.alive() if b.ref() is not None]) == []


def test_an_inner_leak_does_not_accuse_the_clean_outer_trace():
    def outer(x):
        jax.vmap(leaky(box.append))(x)
        return x * 2

    check = run(lambda: jax.jit(outer)(X))
    box.clear()
    gc.collect()
    assert check.census.alive() == []


def test_everything_is_put_back():
    module, name = _jax.leak_check_hook()
    before = (
        getattr(module, name),
        _jax.trace_class().__init__,
        jax.config.jax_check_tracer_leaks,
        jax.config.jax_xla_profile_version,
        jax.config.jax_traceback_filtering,
    )
    with pytest.raises(KeyboardInterrupt):
        run(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    after = (
        getattr(module, name),
        _jax.trace_class().__init__,
        jax.config.jax_check_tracer_leaks,
        jax.config.jax_xla_profile_version,
        jax.config.jax_traceback_filtering,
    )
    assert before == after


def test_compiled_functions_are_traced_anew_and_stay_compiled():
    traced = []

    @jax.jit
    def f(x):
        traced.append(1)
        return x * 2

    f(X)
    run(lambda: f(X))
    run(lambda: f(X))
    f(X)
    assert len(traced) == 3


def test_second_check_in_one_process_is_refused():
    check = LeakCheck(False, list)
    check.start()
    try:
        with pytest.raises(RuntimeError, match="another leak check"):
            LeakCheck(False, list).start()
    finally:
        check.stop()
    run(lambda: None)
