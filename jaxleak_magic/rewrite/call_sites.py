"""How an extra operand travels through each higher-order function: one table, read by the lift.

A row says where the callable stands in a call, what the call makes of it, and how one more value reaches the callable.
Signatures are those of JAX 0.7.2 to 0.12.0, jaxopt 0.8.5, equinox 0.13, optimistix 0.0.11 and diffrax 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["calls", "operands", "args_tuple", "args_slot", "bind", "solver", "term"]


@dataclass(frozen=True)
class Row:
    """One higher-order function.

    Attributes:
        names: full names, as `Program.qualified` gives them.
        way: how the extra operand travels:
            ``calls``: the result is called like the callable, so each of its calls gets the value;
            ``operands``: this very call hands its own further arguments on, so it gets the value;
            ``args_tuple``: a keyword takes a tuple of further arguments;
            ``args_slot``: a keyword takes one object that the callable gets as its last argument;
            ``bind``: nothing can be handed on, the callable is bound with ``jax.tree_util.Partial``;
            ``solver``: the result is an object whose methods hand their further arguments on;
            ``term``: the result is an object that goes to calls with an ``args_slot``.
        position: position of the callable.
        keyword: keyword of the callable, or None where it must be positional.
        operands_from: number of positional arguments that stand before the handed-on ones (``operands``).
        slot: keyword of the ``args`` (``args_tuple``, ``args_slot``), with its position.
        slot_parameter: number of the callable's parameter that takes what stands in the slot.
        numbers: keywords that count the callable's arguments; what is appended must come after them.
        axes: keyword with one entry for each argument (``in_axes``), whose entry for the value is None.
        refuse_with: keywords with which no value can be added safely.
        keeps_closures: whether JAX lets the callable close over values of an outer transform.
        methods: for a solver, method name -> number of positional arguments before the handed-on ones, or before the
            slot where ``slot_parameter`` is set.
        silent: for a solver, methods that do not call the callable.
        floats_only: whether the handed-on operands must be floats where the call is differentiated.
        own_keywords: for ``operands``, the keywords that the function takes itself.
        hands_keywords: for ``operands``, whether it hands all other keywords on.
        axes_entry: full name of the class whose empty call is the entry in ``axes`` (``P()``), or None for ``None``.
        caches: whether a trace of the callable may be kept and used again, so that a value that changes in between is
            not seen.
        keywords_pass: whether the result can be called with keyword arguments that reach the callable unchanged.
    """

    names: tuple[str, ...]
    way: Way
    position: int = 0
    keyword: str | None = None
    operands_from: int = 0
    slot: tuple[str, int] | None = None
    slot_parameter: int | None = None
    numbers: tuple[str, ...] = ()
    axes: str | None = None
    refuse_with: tuple[str, ...] = ()
    keeps_closures: bool = True
    methods: tuple[tuple[str, int], ...] = ()
    silent: tuple[str, ...] = ()
    keywords_pass: bool = True
    floats_only: bool = False
    own_keywords: tuple[str, ...] = ()
    hands_keywords: bool = False
    axes_entry: str | None = None
    caches: bool = True


_NUMBERS_OF_JIT = ("static_argnums", "donate_argnums")
_SOLVER_METHODS = (("run", 1), ("init_state", 1), ("update", 2), ("optimality_fun", 1), ("l2_optimality_error", 1))
_TRANSFORMATIONS = ("optax.GradientTransformation", "optax.GradientTransformationExtraArgs")
_PROXIMAL_METHODS = (("run", 2), ("init_state", 2), ("update", 3), ("optimality_fun", 2), ("l2_optimality_error", 2))


def _jaxopt(*names: str, keyword: str = "fun", methods: tuple[tuple[str, int], ...] = _SOLVER_METHODS) -> Row:
    full = tuple(f"jaxopt.{name}" for name in names)
    return Row(
        full, "solver", 0, keyword, methods=methods, keeps_closures=False, refuse_with=("pre_update", "value_and_grad")
    )


ROWS: tuple[Row, ...] = (
    Row(("jax.jit", "equinox.filter_jit"), "calls", 0, "fun", numbers=_NUMBERS_OF_JIT,
        refuse_with=("in_shardings", "donate")),
    Row(("jax.checkpoint", "equinox.filter_checkpoint"), "calls", 0, "fun", numbers=("static_argnums",)),
    Row(("jax.grad", "jax.value_and_grad"), "calls", 0, "fun", numbers=("argnums",), caches=False),
    Row(("jax.jacfwd", "jax.jacrev", "jax.hessian"), "calls", 0, "fun", numbers=("argnums",), caches=False),
    Row(("equinox.filter_grad", "equinox.filter_value_and_grad"), "calls", 0, "fun", caches=False),
    Row(("functools.partial", "jax.tree_util.Partial"), "calls", 0, "func", caches=False),
    Row(("jax.shard_map",), "calls", 0, "f", axes="in_specs", axes_entry="jax.sharding.PartitionSpec",
        keywords_pass=False),
    Row(("jax.vmap",), "calls", 0, "fun", axes="in_axes", keywords_pass=False, caches=False),
    Row(("jax.pmap",), "calls", 0, "fun", axes="in_axes", keywords_pass=False,
        numbers=("static_broadcasted_argnums", "donate_argnums")),
    Row(("jax.debug.callback",), "operands", 0, "callback", operands_from=1, keeps_closures=False,
        own_keywords=("ordered", "partitioned"), hands_keywords=True, caches=False),
    Row(("jax.pure_callback", "jax.experimental.io_callback"), "operands", 0, "callback", operands_from=2,
        keeps_closures=False, own_keywords=("sharding", "vmap_method", "vectorized", "ordered"),
        hands_keywords=True, caches=False),
    Row(("jax.eval_shape",), "operands", 0, "fun", operands_from=1, hands_keywords=True),
    Row(("jax.experimental.ode.odeint",), "operands", 0, "func", operands_from=3, keeps_closures=False,
        floats_only=True, own_keywords=("rtol", "atol", "mxstep", "hmax")),
    Row(("jax.scipy.optimize.minimize",), "args_tuple", 0, "fun", slot=("args", 2)),
    Row(("optimistix.minimise", "optimistix.least_squares", "optimistix.root_find", "optimistix.fixed_point"),
        "args_slot", 0, "fn", slot=("args", 3), slot_parameter=1),
    Row(("diffrax.ODETerm",), "term", 0, "vector_field", slot_parameter=2),
    Row(("diffrax.diffeqsolve",), "args_slot", 0, "terms", slot=("args", 6), slot_parameter=2),
    Row(("diffrax.*().step",), "args_slot", 0, "terms", slot=("args", 4), slot_parameter=2),
    Row(_TRANSFORMATIONS, "solver", 0, "init", methods=(("init", 1),), silent=("update",), hands_keywords=True,
        caches=False),
    Row(_TRANSFORMATIONS, "solver", 1, "update", methods=(("update", 2),), silent=("init",), hands_keywords=True,
        caches=False),
    Row(("equinox.nn.Lambda",), "bind", 0, "fn", keeps_closures=False),
    Row(("jax.tree.map", "jax.tree_util.tree_map"), "bind", 0, "f", caches=False),
    Row(("builtins.map", "builtins.filter", "functools.reduce"), "bind", 0, caches=False),
    Row(("builtins.sorted", "builtins.min", "builtins.max"), "bind", -1, "key", caches=False),
    Row(("jax.lax.scan",), "bind", 0, "f"),
    Row(("jax.lax.map", "jax.lax.associative_scan"), "bind", 0),
    Row(("jax.lax.while_loop",), "bind", 0, "cond_fun"),
    Row(("jax.lax.while_loop",), "bind", 1, "body_fun"),
    Row(("jax.lax.fori_loop",), "bind", 2, "body_fun"),
    Row(("jax.lax.cond",), "bind", 1, "true_fun"),
    Row(("jax.lax.cond",), "bind", 2, "false_fun"),
    Row(("jax.lax.switch",), "bind", 1, "branches"),
    Row(("jax.vjp", "jax.jvp", "jax.linearize"), "bind", 0, "fun", caches=False),
    _jaxopt("GradientDescent", "LBFGS", "BFGS", "NonlinearCG", "OptaxSolver", "PolyakSGD", "ArmijoSGD"),
    _jaxopt("ProximalGradient", "ProjectedGradient", methods=_PROXIMAL_METHODS),
    Row(("jaxopt.ProximalGradient",), "solver", 1, "prox", slot=("hyperparams_prox", 1), slot_parameter=1,
        methods=(("run", 1), ("init_state", 1), ("update", 2)), keeps_closures=False),
    Row(("jaxopt.ProjectedGradient",), "solver", 1, "projection", slot=("hyperparams_proj", 1), slot_parameter=1,
        methods=(("run", 1), ("init_state", 1), ("update", 2)), keeps_closures=False),
    _jaxopt("GaussNewton", "LevenbergMarquardt", keyword="residual_fun"),
    _jaxopt("FixedPointIteration", "AndersonAcceleration", keyword="fixed_point_fun"),
    _jaxopt("Broyden"),
    _jaxopt("Bisection", keyword="optimality_fun"),
)  # fmt: skip
"""The table."""

_ALIASES = {
    "jax.remat": "jax.checkpoint",
    "jax.ad_checkpoint.checkpoint": "jax.checkpoint",
    "jax.experimental.shard_map.shard_map": "jax.shard_map",
    "jax.custom_derivatives.custom_vjp": "jax.custom_vjp",
    "jax.custom_derivatives.custom_jvp": "jax.custom_jvp",
    "jax.experimental.pure_callback": "jax.pure_callback",
    "jax.debug.debug_callback": "jax.debug.callback",
    "jax.jacobian": "jax.jacrev",
    "jax.P": "jax.sharding.PartitionSpec",
    "equinox.internal.filter_jit": "equinox.filter_jit",
}


def canonical(name: str) -> str:
    """The name that the table uses for a library object that can be reached by several."""
    return _ALIASES.get(name, name)


def rows_of(name: str) -> tuple[Row, ...]:
    """All rows of a library function; a function that takes several callables has one for each."""
    if name.count("()") == 1:
        # a method of an object that a library's class made: ``diffrax.Euler().step``
        name = f"{name.split('.', 1)[0]}.*(){name.rpartition('()')[2]}"
    return tuple(row for row in ROWS if name in row.names)
