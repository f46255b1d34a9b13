"""A contract test for each name of JAX that is not public: what it feeds must work on every supported JAX."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

from jaxleak_magic.detect import _jax


def leaked(transform, *args):
    box = []

    def f(x):
        y = jnp.sin(x) * 2
        box.append(x)
        box.append(y)
        return y.sum()

    transform(f)(*args)
    return box


def test_jax_directories_hold_jax_core():
    assert (_jax.core().__file__ or "").startswith(_jax.jax_directories())


def test_trace_class_has_its_own_init():
    assert _jax.trace_class() is not None
    assert "__init__" in vars(_jax.trace_class())


def test_every_live_tracer_is_of_a_known_class():
    argument, value = leaked(jax.vmap, jnp.arange(3.0))
    assert type(value) in _jax.tracer_classes()
    assert type(argument) in _jax.carrier_classes()


def test_trace_of_and_its_weak_reference():
    _, value = leaked(jax.jit, jnp.arange(3.0))
    trace = _jax.trace_of(value)
    assert type(trace).__name__ == "DynamicJaxprTrace"
    assert weakref.ref(trace)() is trace


def test_parents_name_the_transforms_around():
    _, value = leaked(lambda f: jax.jit(jax.vmap(jax.grad(f))), jnp.arange(3.0))
    trace, names = _jax.trace_of(value), []
    while trace is not None:
        names.append(type(trace).__name__)
        trace = _jax.parent_of(trace)
    assert names[:3] == ["LinearizeTrace", "BatchTrace", "DynamicJaxprTrace"]


def test_current_trace_changes_inside_a_transform():
    seen = []
    outside = type(_jax.current_trace()).__name__
    jax.jit(lambda x: seen.append(type(_jax.current_trace()).__name__) or x)(1.0)
    assert (outside, seen) == ("EvalTrace", ["DynamicJaxprTrace"])


def test_argument_and_computed_value_are_told_apart():
    argument, value = leaked(jax.jit, jnp.arange(3.0))
    assert _jax.is_argument(argument)
    assert _jax.argument_name(argument) == "x"
    assert not _jax.is_argument(value)


def test_registered_classes_are_seen():
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def tree_flatten(self):
            return (), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls()

    known = _jax.registered_pytrees()
    assert Pair in known
    assert {tuple, list, dict} <= set(known)


CONSTANTS = {
    "from nothing": (lambda x: jnp.linspace(0.0, 1.0, 4) * 2, True),
    "a staged list": (lambda x: jnp.asarray([1.0, 2.0]), True),
    "a concrete array": (lambda x: OUTSIDE + 1, True),
    "a fixed key": (lambda x: jax.random.normal(jax.random.key(0)), True),
    "the argument": (lambda x: x, False),
    "an argument": (lambda x: jnp.ones(3) * x, False),
    "an argument, inside of a jit": (lambda x: jax.jit(lambda z: jnp.tri(3) + z)(x), False),
}
OUTSIDE = jnp.arange(3.0)


@pytest.mark.parametrize("name", CONSTANTS)
def test_values_of_constants_are_told_from_those_of_arguments(name):
    compute, constant = CONSTANTS[name]
    kept = []
    jax.jit(lambda x: kept.append(compute(x)))(1.0)
    assert (_jax.operands_of_constant(kept.pop()) is not None) is constant


def test_a_closed_over_tracer_is_no_constant():
    kept = []

    def outer(x):
        jax.lax.fori_loop(0, 2, lambda i, c: (kept.extend([jnp.tri(2) + 1, x * 2, c * 2]), c)[1], 0.0)
        return x

    jax.jit(outer)(1.0)
    constant, closed_over, carried = kept[-3:]
    assert [_jax.operands_of_constant(each) is not None for each in (constant, closed_over, carried)] == [
        True,
        False,
        False,
    ]


def test_debug_function_names_the_traced_function():
    _, value = leaked(jax.jit, jnp.arange(3.0))
    name, file, line = _jax.debug_function(_jax.trace_of(value))
    assert (name, file) == ("f", __file__)
    assert line is not None


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_creation_frames_show_the_users_line(transform):
    _, value = leaked(transform, jnp.arange(3.0))
    own = [(function, line, column) for file, function, line, column in _jax.creation_frames(value) if file == __file__]
    assert own[0][0].endswith("f")
    assert own[0][2] is not None


def test_classes_without_a_line_are_the_differentiating_ones():
    names = {cls.__name__ for cls in _jax.lineless_tracer_classes()}
    assert {"JVPTracer", "LinearizeTracer"} <= names
    assert not names & {"DynamicJaxprTracer", "BatchTracer"}


def test_leak_check_hook_is_looked_up_at_call_time(monkeypatch):
    module, name = _jax.leak_check_hook()
    seen = []
    monkeypatch.setattr(module, name, lambda trace: seen.append(type(trace).__name__) or [])
    with jax.checking_leaks():
        leaked(jax.vmap, jnp.arange(3.0))
    assert seen == ["BatchTrace"]


def test_profile_version_is_part_of_the_cache_key():
    assert _jax.profile_version_flag() == "jax_xla_profile_version"


def test_a_listener_of_durations_hears_compilations_until_it_is_taken_out():
    heard = []
    remove = _jax.listen_to_durations(lambda event, duration, **_: heard.append(event))
    jax.jit(lambda x: x * 3.5)(1.0)
    assert "/jax/core/compile/backend_compile_duration" in heard
    remove()
    heard.clear()
    jax.jit(lambda x: x * 4.5)(1.0)
    assert heard == []
    remove()  # the user may have cleared all listeners


def test_module_that_runs_custom_rules():
    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (g, g))  # one cotangent too many: JAX raises where it handles rules
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with pytest.raises(TypeError) as raised:
            jax.grad(f)(1.0)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    frames = [frame.frame.f_globals["__name__"] for frame in raised.traceback]
    assert any(map(_jax.handles_custom_rules, frames))


def test_nothing_is_kept_by_looking():
    _, value = leaked(jax.jit, jnp.arange(3.0))
    ref = weakref.ref(_jax.trace_of(value))
    list(_jax.creation_frames(value))
    _jax.argument_name(value)
    del value, _
    gc.collect()
    assert ref() is None
