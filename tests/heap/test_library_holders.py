"""Objects of JAX and of its libraries as holders: named without knowing them, or by a labeller."""

from __future__ import annotations

from typing import Any

import pytest

from jaxleak_magic.heap import Label, Labeller, Path, Root, find_holders, module_roots


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


class Thing:
    pass


def path_to(thing: object, holder: object, *labellers: Labeller) -> Path:
    roots = [Root({"x": holder}, "", "namespace", 0), *module_roots()]
    found = find_holders([thing], roots, labellers=labellers)
    assert found.finished
    return found.paths[0][0]


def steps(path: Path) -> list[tuple[str, str | None, str]]:
    assert (path.steps[-1].kind, path.steps[-1].name) == ("global", "x")
    return [(step.kind, step.name, step.holder) for step in path.steps[:-1]]


def closure(kept: object) -> Any:
    def f(x):
        return kept, x

    return f


CLOSED_OVER = ("closure_cell", "kept", "f()")


def test_partial(jax: Any) -> None:
    thing = Thing()
    assert steps(path_to(thing, jax.tree_util.Partial(max, thing))) == [("partial", "[0]", "partial(max)")]


def test_jit(jax: Any) -> None:
    thing = Thing()
    assert steps(path_to(thing, jax.jit(closure(thing)))) == [
        CLOSED_OVER,
        ("attribute", "__wrapped__", "PjitFunction of f()"),
    ]


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_wrapping_transforms(jax: Any, transform: str) -> None:
    thing = Thing()
    path = path_to(thing, getattr(jax, transform)(closure(thing)))
    assert steps(path) == [CLOSED_OVER, ("attribute", "__wrapped__", "wrapper of f()")]
    assert path.steps[1].module != "builtins"


def test_custom_vjp(jax: Any) -> None:
    thing = Thing()
    path = path_to(thing, jax.custom_vjp(closure(thing)))
    assert steps(path) == [CLOSED_OVER, ("attribute", "__wrapped__", "custom_vjp of f()")]
    assert str(path.steps[1].module).startswith("jax.")


def test_aux_data_by_a_labeller(jax: Any) -> None:
    thing = Thing()
    static = jax.tree_util.Partial(closure(thing), 1.0)
    treedef = jax.tree_util.tree_structure(static)
    del static

    def labeller(holder: object, child: object) -> Label | None:
        return Label("pytree_aux", None, "PyTreeDef") if type(holder) is type(treedef) else None

    found = [step[0] for step in steps(path_to(thing, treedef, labeller))]
    assert found[0] == "closure_cell"
    assert found[-1] == "pytree_aux"


def test_aux_data_without_a_labeller(jax: Any) -> None:
    thing = Thing()
    treedef = jax.tree_util.tree_structure(jax.tree_util.Partial(closure(thing), 1.0))
    assert steps(path_to(thing, treedef)) == [CLOSED_OVER, ("other", None, "PyTreeDef")]


class Static:
    def __init__(self, kept: object) -> None:
        self.kept = kept


def test_static_argument_in_jaxs_caches(jax: Any) -> None:
    """What is passed as a static argument stays in JAX's caches, under names of JAX's modules."""
    thing = Thing()
    function = jax.jit(lambda static, x: x, static_argnums=0)
    function(Static(thing), 1.0)
    paths = find_holders([thing], [Root({"f": function}, "", "namespace", 0), *module_roots()]).paths[0]
    assert paths
    for path in paths:
        first, root = path.steps[0], path.steps[-1]
        assert (first.kind, first.name, first.holder) == ("attribute", "kept", "Static")
        assert root.kind == "global"
        assert str(root.module).startswith("jax._src.")


def test_cache_with_weak_keys_in_jax(jax: Any) -> None:
    util = pytest.importorskip("jax._src.util")
    thing, key = Thing(), Thing()
    box = [thing]
    cached = util.weakref_lru_cache(lambda _: box.pop())
    cached(key)
    assert steps(path_to(thing, cached)) == [("other", None, "WeakrefLRUCache")]


def test_equinox_module() -> None:
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        weights: object

    thing = Thing()
    assert steps(path_to(thing, Layer([thing]))) == [("item", "[0]", "list"), ("attribute", "weights", "Layer")]


def test_flax_struct() -> None:
    struct = pytest.importorskip("flax.struct")

    @struct.dataclass
    class State:
        step: object

    thing = Thing()
    assert steps(path_to(thing, State(thing))) == [("attribute", "step", "State")]


def test_nnx_module() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Layer(nnx.Module):
        def __init__(self, kept: object) -> None:
            self.kept = kept

    thing = Thing()
    assert steps(path_to(thing, Layer(thing))) == [("attribute", "kept", "Layer")]
