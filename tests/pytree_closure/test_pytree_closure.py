"""A PytreeClosure is the function, its captured arrays are leaves, and the original stays as it was."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxleak_magic import PytreeClosure

VALUES = st.floats(-4.0, 4.0, width=32).map(jnp.float32)


def plain(a: Any, b: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        return a * x + jnp.sin(b)

    return f


def in_containers(a: Any, b: Any) -> Callable[..., Any]:
    table = {"a": a, "rest": [b, (2, "name")]}
    return lambda x: table["a"] * x + jnp.sin(table["rest"][0]) + 0 * table["rest"][1][0]


def nested(a: Any, b: Any) -> Callable[..., Any]:
    inner = lambda x: a * x

    def outer(x: Any) -> Any:
        def within(y: Any) -> Any:
            return inner(y) + jnp.sin(b)

        return within(x)

    return outer


def recursive(a: Any, b: Any) -> Callable[..., Any]:
    def f(x: Any, n: int = 2) -> Any:
        return a * x + jnp.sin(b) if n == 0 else f(x, n - 1)

    return f


def mutually_recursive(a: Any, b: Any) -> Callable[..., Any]:
    def even(x: Any, n: int) -> Any:
        return a * x + jnp.sin(b) if n == 0 else odd(x, n - 1)

    def odd(x: Any, n: int) -> Any:
        return even(x, n - 1)

    return functools.partial(even, n=4)


def defaults(a: Any, b: Any) -> Callable[..., Any]:
    def f(x: Any, scale: Any = a, *, shift: Any = b) -> Any:
        return scale * x + jnp.sin(shift)

    return f


def partial(a: Any, b: Any) -> Callable[..., Any]:
    return functools.partial(lambda scale, x, shift: scale * x + jnp.sin(shift), a, shift=b)


def tree_partial(a: Any, b: Any) -> Callable[..., Any]:
    return jax.tree_util.Partial(lambda scale, x: scale * x + jnp.sin(b), a)


@jax.tree_util.register_pytree_node_class
class Line:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def at(self, x: Any) -> Any:
        return self.a * x + jnp.sin(self.b)

    def tree_flatten(self) -> Any:
        return (self.a, self.b), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Line:
        return cls(*children)


def bound_method(a: Any, b: Any) -> Callable[..., Any]:
    return Line(a, b).at


def attribute(a: Any, b: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        return f.scale * x + jnp.sin(b)  # type: ignore[attr-defined]

    f.scale = a  # type: ignore[attr-defined]
    return f


def wrapped(a: Any, b: Any) -> Callable[..., Any]:
    f = plain(a, b)

    @functools.wraps(f)
    def g(x: Any) -> Any:
        return f(x)

    return g


def twice(a: Any, b: Any) -> Callable[..., Any]:
    return PytreeClosure(plain(a, b)).function


MAKERS = (plain, in_containers, nested, recursive, mutually_recursive, defaults, partial, tree_partial, bound_method,
          attribute, wrapped, twice)  # fmt: skip
each_maker = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)


@each_maker
@settings(max_examples=8, deadline=None)
@given(a=VALUES, b=VALUES, x=VALUES)
def test_calling_it_is_calling_the_function(make: Callable[..., Any], a: Any, b: Any, x: Any):
    function = make(a, b)
    closure = PytreeClosure(function)
    assert closure(x) == function(x)
    assert closure(x) == function(x), "the second call is served by the same function"
    assert closure.function(x) == function(x)


@each_maker
def test_arrays_are_leaves_and_all_else_is_static(make: Callable[..., Any]):
    leaves = jax.tree.leaves(PytreeClosure(make(jnp.float32(1.5), jnp.float32(2.5))))
    assert {float(leaf) for leaf in leaves} == {1.5, 2.5}
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)


@each_maker
@settings(max_examples=5, deadline=None)
@given(a=VALUES, b=VALUES, x=VALUES)
def test_flatten_and_unflatten(make: Callable[..., Any], a: Any, b: Any, x: Any):
    closure = PytreeClosure(make(jnp.float32(0.0), jnp.float32(0.0)))
    other = PytreeClosure(make(a, b))
    assert jax.tree.structure(closure) == jax.tree.structure(other)
    assert hash(jax.tree.structure(closure)) == hash(jax.tree.structure(other))
    again = jax.tree.unflatten(jax.tree.structure(closure), jax.tree.leaves(other))
    assert again(x) == make(a, b)(x)


@each_maker
def test_nothing_of_the_original_changes(make: Callable[..., Any]):
    function = make(jnp.float32(1.0), jnp.float32(2.0))
    before = function(3.0)
    closure = PytreeClosure(function)
    changed = jax.tree.map(lambda leaf: leaf + 1.0, closure)
    assert changed(3.0) != before
    assert (function(3.0), closure(3.0)) == (before, before)


@each_maker
def test_jit_traces_once_for_all_values(make: Callable[..., Any]):
    traced = []

    @jax.jit
    def call(closure: PytreeClosure, x: Any) -> Any:
        traced.append(None)
        return closure(x)

    for a in (1.0, 2.0, 3.0):
        function = make(jnp.float32(a), jnp.float32(0.5))
        assert jnp.allclose(call(PytreeClosure(function), jnp.float32(2.0)), function(2.0))
    assert len(traced) == 1


@each_maker
@settings(max_examples=5, deadline=None)
@given(a=VALUES, b=VALUES, x=VALUES)
def test_grad_goes_through(make: Callable[..., Any], a: Any, b: Any, x: Any):
    slope = jax.grad(lambda closure: closure(x))(PytreeClosure(make(a, b)))
    expected = jax.grad(lambda both: make(*both)(x))((a, b))
    got = sorted(float(leaf) for leaf in jax.tree.leaves(slope))
    assert np.isclose(sum(got), float(sum(expected)), rtol=1e-4, atol=1e-5)


@each_maker
def test_vmap_makes_one_for_each_row(make: Callable[..., Any]):
    rows, x = jnp.arange(3.0), jnp.float32(2.0)
    closures = jax.vmap(lambda a: PytreeClosure(make(a, 2 * a)))(rows)
    got = jax.vmap(lambda closure: closure(x))(closures)
    assert jnp.allclose(got, jnp.stack([make(a, 2 * a)(x) for a in rows]))


@each_maker
def test_returned_from_jit_it_leaks_nothing(make: Callable[..., Any]):
    with jax.checking_leaks():
        closure = jax.jit(lambda a: PytreeClosure(make(a, a)))(jnp.float32(0.5))
    assert jnp.allclose(closure(2.0), make(jnp.float32(0.5), jnp.float32(0.5))(2.0))


@each_maker
def test_scan_carries_it(make: Callable[..., Any]):
    def step(closure: PytreeClosure, x: Any) -> Any:
        return closure, closure(x)

    closure = PytreeClosure(make(jnp.float32(2.0), jnp.float32(1.0)))
    _, out = jax.lax.scan(step, closure, jnp.arange(3.0))
    assert jnp.allclose(out, jnp.stack([closure(x) for x in jnp.arange(3.0)]))


@each_maker
def test_pickling(make: Callable[..., Any]):
    closure = PytreeClosure(make(jnp.float32(2.0), jnp.float32(1.0)))
    again = pickle.loads(pickle.dumps(closure))
    assert again(3.0) == closure(3.0)
    assert jax.tree.structure(again) == jax.tree.structure(closure)


def test_pickling_to_another_process(tmp_path: Any):
    (tmp_path / "maker.py").write_text(
        "import jax.numpy as jnp\nfrom jaxleak_magic import PytreeClosure\noffset = 1.0\n"
        "def make(a):\n    return PytreeClosure(lambda x: a * x + offset)\n"
    )
    write = "import maker, pickle, jax.numpy as jnp; hash(maker.make(jnp.ones(2))._static)"
    write += "; open('c', 'wb').write(pickle.dumps(maker.make(jnp.ones(2))))"
    read = (
        "import pickle, maker, jax, jax.numpy as jnp; c = pickle.loads(open('c', 'rb').read()); print(float(c(2.0)[0]))"
    )
    read += "; assert jax.tree.structure(c) == jax.tree.structure(maker.make(jnp.ones(2)))"
    read += "; assert hash(c._static) == hash(maker.make(jnp.ones(2))._static)"
    folder = str(tmp_path)
    paths = f"import sys; sys.path[:0] = [{folder!r}, {str(sys.path[0])!r}, *{[p for p in sys.path if p]!r}]; "
    for code in (write, read):
        out = subprocess.run([sys.executable, "-c", paths + code], cwd=folder, capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
    assert out.stdout.strip() == "3.0"  # pyright: ignore[reportPossiblyUnboundVariable]


def test_a_tracer_is_not_pickled():
    def try_it(a: Any) -> Any:
        with pytest.raises(TypeError, match="still running"):
            pickle.dumps(PytreeClosure(plain(a, a)))
        return a

    jax.jit(try_it)(1.0)


def test_numbers_and_flags_are_static():
    def make(a: Any, squared: bool, power: float) -> Callable[..., Any]:
        return lambda x: a * x**2 if squared else a * x**power

    one, other = PytreeClosure(make(jnp.ones(()), True, 1.0)), PytreeClosure(make(jnp.ones(()), False, 1.0))
    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert jax.jit(lambda c, x: c(x))(one, 3.0) == 9.0
    assert jax.jit(lambda c, x: c(x))(other, 3.0) == 3.0
    for first, second in ((1, 1.0), (0.0, -0.0), (True, 1)):
        assert jax.tree.structure(PytreeClosure(lambda first=first: first)) != jax.tree.structure(
            PytreeClosure(lambda first=second: first)
        )


def test_a_variable_that_is_rebound_later_keeps_its_value():
    rate = jnp.float32(2.0)
    closure = PytreeClosure(lambda x: rate * x)
    rate = jnp.float32(5.0)
    assert (closure(1.0), rate) == (2.0, 5.0)


def test_an_empty_cell_stays_empty():
    def make() -> PytreeClosure:
        closure = PytreeClosure(lambda x: later * x)
        later = 1.0
        return closure

    closure = make()
    assert jax.tree.leaves(closure) == []
    with pytest.raises(NameError, match="later"):
        closure(1.0)


def test_functions_that_share_a_variable_go_on_sharing_it():
    def make(a: Any) -> Callable[..., Any]:
        f = lambda x: a * x
        g = lambda x: a + x
        return lambda x: f(x) + g(x)

    closure = PytreeClosure(make(jnp.float32(3.0)))
    assert len(jax.tree.leaves(closure)) == 1
    assert closure(2.0) == 11.0


def test_each_call_gets_its_own_copy_of_a_captured_list():
    seen: list[Any] = [jnp.float32(1.0)]

    def count(x: Any) -> int:
        seen.append(x)
        return len(seen)

    closure = PytreeClosure(count)
    assert [closure(1.0), closure(1.0), len(seen)] == [2, 2, 1]


class Opaque:
    def __init__(self, value: Any) -> None:
        self.value = value


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def counting() -> Callable[..., Any]:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        return x

    return f


def counting_inside() -> Callable[..., Any]:
    total = jnp.float32(0.0)

    def f(x: Any) -> Any:
        def add() -> None:
            nonlocal total
            total = total + x

        add()
        return x

    return f


def holding(spring: Any) -> Callable[..., Any]:
    return lambda x: (x, spring)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (counting, "assigns `count`"),
        (counting_inside, "assigns `total`"),
        (lambda: holding(Opaque(jnp.ones(2))), "`spring`, captured by .* holds arrays and is no pytree"),
        (lambda: holding(Unhashable()), "`spring`, captured by .* nor hashable"),
        (lambda: holding(np.array([None])), "`spring`, captured by .* array of objects"),
        (lambda: holding(jax.jit(plain(jnp.ones(2), 1.0))), "`spring`, captured by .* captured arrays"),
        (lambda: jax.jit(plain(1.0, 1.0)), "takes a Python function"),
        (lambda: 3, "takes a Python function"),
    ],
    ids=["nonlocal", "nonlocal inside", "object with arrays", "unhashable", "objects", "compiled", "jit", "number"],
)
def test_what_cannot_be_carried_is_refused_by_name(make: Callable[..., Any], words: str):
    with pytest.raises(TypeError, match=words):
        PytreeClosure(make())


def test_a_compiled_function_without_arrays_is_static():
    closure = PytreeClosure(holding(jax.jit(lambda x: x + 1.0)))
    assert jax.tree.leaves(closure) == []
    assert closure(1.0)[1](2.0) == 3.0


def test_integers_and_keys_are_leaves():
    key, steps = jax.random.key(0), jnp.arange(3)
    closure = PytreeClosure(lambda x: jax.random.uniform(key) + steps[0] + x)
    assert len(jax.tree.leaves(closure)) == 2
    assert jax.jit(lambda c: c(1.0))(closure) == closure(1.0)


def test_it_shows_its_name():
    assert repr(PytreeClosure(plain(jnp.ones(()), 1.0))) == "PytreeClosure(plain.<locals>.f, 1 arrays)"


def test_the_package_stays_light():
    code = "import jaxleak_magic, sys; assert 'jax' not in sys.modules; jaxleak_magic.PytreeClosure"
    subprocess.run([sys.executable, "-c", code], check=True)
