"""Which Python functions of JAX and other libraries are the transforms that users call, by file and code name.

A row says: a running frame of this code means that this transform is being applied, and this local variable holds the
function that it was given. The JAX rows were the same in eleven versions from 0.4.30 to 0.12.0.1 but where two rows say
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True)
class TransformFrame:
    """One row: the transform's name in the user's words, and where the frame keeps the function.

    Attributes:
        transform: e.g. ``"vmap"``.
        function: dotted path from a local or free variable of the frame to the function, e.g. ``"self.fun"``.
    """

    transform: str
    function: str = "fun"


def _rows(**rows: str) -> dict[str, TransformFrame]:
    return {name: TransformFrame(*spec.split()) for name, spec in rows.items()}


_JAX: dict[str, dict[str, TransformFrame]] = {
    "jax/_src/pjit.py": _rows(
        cache_miss="jit fun",
        lower="jit fun",
        trace="jit fun",
        jit_lower="jit fun",
        jit_trace="jit fun",
        eval_shape="eval_shape fun",
    ),
    "jax/_src/api.py": _rows(
        vmap_f="vmap fun",
        grad_f="grad fun",
        grad_f_aux="grad fun",
        value_and_grad_f="grad fun",
        jvp="jvp fun",
        _jvp="jvp fun",
        vjp="vjp fun",
        _vjp="vjp fun",
        linearize="linearize fun",
        make_jaxpr_f="make_jaxpr fun",
        eval_shape="eval_shape fun",
        linear_transpose="linear_transpose fun",
        transpose_fun="linear_transpose fun",
        cache_miss="pmap fun",
        _pmap_cache_miss="pmap fun",
    ),
    "jax/_src/pmap.py": _rows(cache_miss="pmap fun"),
    "jax/_src/lax/control_flow/loops.py": _rows(
        scan="scan f",
        while_loop="while_loop body_fun",
        fori_loop="fori_loop body_fun",
        map="map f",
        associative_scan="associative_scan fn",
    ),
    "jax/_src/lax/control_flow/conditionals.py": _rows(
        cond="cond true_fun",
        _cond="cond true_fun",
        _cond_with_per_branch_args="cond true_fun",
        switch="switch branches",
    ),
    "jax/_src/lax/control_flow/solves.py": _rows(
        custom_linear_solve="custom_linear_solve matvec",
        custom_root="custom_root f",
    ),
    "jax/_src/ad_checkpoint.py": _rows(fun_remat="checkpoint fun"),
    "jax/_src/custom_derivatives.py": _rows(
        closure_convert="closure_convert fun",
        _flatten_jvp="custom_jvp f_jvp",
        _flatten_fwd="custom_vjp f_fwd",
        _flatten_bwd="custom_vjp f_bwd",
    ),
    "jax/_src/custom_batching.py": _rows(__call__="custom_vmap self.fun"),
    "jax/_src/shard_map.py": _rows(wrapped="shard_map f"),
    "jax/_src/pallas/pallas_call.py": _rows(wrapped="pallas_call kernel"),
    "jax/_src/checkify.py": _rows(checked_fun="checkify fun"),
    "jax/_src/numpy/vectorize.py": _rows(wrapped="vectorize pyfunc"),
    "jax/_src/lax/lax.py": _rows(reduce="reduce computation"),
}
_QUALIFIED: dict[tuple[str, str], TransformFrame] = {
    ("jax/_src/api.py", "jacfwd.<locals>.jacfun"): TransformFrame("jacfwd", "fun"),
    ("jax/_src/api.py", "jacrev.<locals>.jacfun"): TransformFrame("jacrev", "fun"),
    ("jax/_src/api.py", "hessian"): TransformFrame("hessian", "fun"),
    ("jax/_src/custom_derivatives.py", "custom_jvp.__call__"): TransformFrame("custom_jvp", "self.fun"),
    ("jax/_src/custom_derivatives.py", "custom_vjp.__call__"): TransformFrame("custom_vjp", "self.fun"),
}
_LIBRARIES: dict[tuple[str, str], TransformFrame] = {
    ("equinox/_jit.py", "_JitWrapper._call"): TransformFrame("eqx.filter_jit", "self._static_fun"),
    ("equinox/_jit.py", "_JitWrapper.__call__"): TransformFrame("eqx.filter_jit", "self._static_fun"),
    ("equinox/_jit.py", "_call"): TransformFrame("eqx.filter_jit", "jit_wrapper._static_fun"),
    ("equinox/_ad.py", "_ValueAndGradWrapper.__call__"): TransformFrame("eqx.filter_value_and_grad", "self._fun"),
    ("equinox/_ad.py", "_GradWrapper.__call__"): TransformFrame("eqx.filter_grad", "self._fun_value_and_grad._fun"),
    ("equinox/_ad.py", "filter_jvp"): TransformFrame("eqx.filter_jvp", "fn"),
    ("equinox/_ad.py", "filter_vjp"): TransformFrame("eqx.filter_vjp", "fun"),
    ("equinox/_ad.py", "_ClosureConvert.__call__"): TransformFrame("eqx.filter_closure_convert", "self.fn"),
    ("equinox/_vmap_pmap.py", "_VmapWrapper.__call__"): TransformFrame("eqx.filter_vmap", "self._fun"),
    ("equinox/_ad.py", "_CheckpointWrapper.__call__"): TransformFrame("eqx.filter_checkpoint", "self._fun"),
    ("equinox/internal/_loop/loop.py", "while_loop"): TransformFrame("eqx.while_loop", "body_fun"),
    ("equinox/internal/_loop/loop.py", "scan"): TransformFrame("eqx.scan", "f"),
    ("equinox/internal/_loop/checkpointed.py", "checkpointed_while_loop"): TransformFrame("eqx.while_loop", "body_fun"),
    ("equinox/internal/_loop/bounded.py", "bounded_while_loop"): TransformFrame("eqx.while_loop", "body_fun"),
    ("equinox/_eval_shape.py", "filter_eval_shape"): TransformFrame("eqx.filter_eval_shape", "fun"),
    ("equinox/_make_jaxpr.py", "_MakeJaxpr.__call__"): TransformFrame("eqx.filter_make_jaxpr", "self.fn"),
    ("flax/nnx/transforms/compilation.py", "JitWrapped.__call__"): TransformFrame("nnx.jit", "self.fun"),
    ("flax/nnx/transforms/compilation.py", "SimpleJitWrapped.__call__"): TransformFrame("nnx.jit", "self.fun"),
    ("flax/nnx/transforms/compilation.py", "JitPartialWrapped.__call__"): TransformFrame("nnx.jit", "self.fun"),
    ("flax/nnx/transforms/compilation.py", "SimpleJitPartialWrapped.__call__"): TransformFrame("nnx.jit", "self.fun"),
    ("flax/nnx/transforms/compilation.py", "JitFn.__call__"): TransformFrame("nnx.jit", "self.f"),
    ("flax/nnx/transforms/compilation.py", "SimpleJitFn.__call__"): TransformFrame("nnx.jit", "self.f"),
    ("flax/nnx/transforms/compilation.py", "SimpleJitPartialFn.__call__"): TransformFrame("nnx.jit", "self.f"),
    ("flax/nnx/transforms/iteration.py", "vmap.<locals>.vmap_wrapper"): TransformFrame("nnx.vmap", "f"),
    ("flax/nnx/transforms/iteration.py", "vmap.<locals>.simple_vmap_wrapper"): TransformFrame("nnx.vmap", "f"),
    ("flax/nnx/transforms/iteration.py", "pmap.<locals>.pmap_wrapper"): TransformFrame("nnx.pmap", "f"),
    ("flax/nnx/transforms/iteration.py", "pmap.<locals>.simple_pmap_wrapper"): TransformFrame("nnx.pmap", "f"),
    ("flax/nnx/transforms/iteration.py", "scan.<locals>.scan_wrapper"): TransformFrame("nnx.scan", "f"),
    ("flax/nnx/transforms/iteration.py", "scan.<locals>.simple_scan_wrapper"): TransformFrame("nnx.scan", "f"),
    ("flax/nnx/transforms/iteration.py", "pmap.<locals>.vmap_wrapper"): TransformFrame("nnx.pmap", "f"),
    ("flax/nnx/transforms/iteration.py", "_simple_scan.<locals>.simple_scan_wrapper"): TransformFrame("nnx.scan", "f"),
    ("flax/nnx/transforms/iteration.py", "_graph_updates_scan.<locals>.scan_wrapper"): TransformFrame("nnx.scan", "f"),
    ("flax/nnx/transforms/autodiff.py", "_grad_general.<locals>.grad_wrapper"): TransformFrame("nnx.grad", "f"),
    ("flax/nnx/transforms/autodiff.py", "_grad_general.<locals>.simple_grad_wrapper"): TransformFrame("nnx.grad", "f"),
    ("haiku/_src/stateful.py", "scan"): TransformFrame("hk.scan", "f"),
    ("haiku/_src/stateful.py", "grad.<locals>.wrapper"): TransformFrame("hk.grad", "fun"),
    ("haiku/_src/stateful.py", "vmap.<locals>.mapped_fun"): TransformFrame("hk.vmap", "fun"),
    ("numpyro/contrib/control_flow/scan.py", "scan"): TransformFrame("numpyro.scan", "f"),
}

_BUILT_ON: dict[str, frozenset[str]] = {
    "grad": frozenset({"grad", "vjp", "linearize", "jvp"}),
    "vjp": frozenset({"vjp", "linearize", "jvp"}),
    "linearize": frozenset({"linearize", "jvp"}),
    "jvp": frozenset({"jvp"}),
    "jacfwd": frozenset({"vmap", "jvp", "linearize"}),
    "jacrev": frozenset({"vmap", "vjp", "linearize", "jvp"}),
    "vectorize": frozenset({"vmap"}),
    "fori_loop": frozenset({"fori_loop", "while_loop", "scan"}),
    "while_loop": frozenset({"while_loop"}),
    "map": frozenset({"scan", "vmap"}),
    "scan": frozenset({"scan"}),
    "cond": frozenset({"cond"}),
    "switch": frozenset({"switch", "cond"}),
    "eval_shape": frozenset({"eval_shape", "jit", "make_jaxpr"}),
    "make_jaxpr": frozenset({"make_jaxpr", "jit"}),
    "linear_transpose": frozenset({"linear_transpose", "jit"}),
    "pmap": frozenset({"pmap", "jit", "shard_map"}),
    "pallas_call": frozenset({"jit"}),
    "checkify": frozenset({"jit"}),
    "custom_root": frozenset({"custom_linear_solve", "linearize", "vjp", "jvp"}),
}


_LOOP_PARTS = frozenset(
    {
        "jit",
        "scan",
        "while_loop",
        "cond",
        "vmap",
        "jvp",
        "vjp",
        "linearize",
        "closure_convert",
        "make_jaxpr",
        "custom_vjp",
        "custom_jvp",
        "eval_shape",
    }
)
"""What equinox's own loops are made of; they run several transforms over the user's body."""


def is_built_on(outer: str, inner: str) -> bool:
    """Whether JAX, or a library, makes ``outer`` out of ``inner``, so that one call shows both: grad uses vjp."""
    base, inner = _base_name(outer), _base_name(inner)
    if base != outer and base in ("while_loop", "scan") and inner in _LOOP_PARTS:
        return True
    return (base != outer and inner == base) or inner in _BUILT_ON.get(outer, _BUILT_ON.get(base, ()))


def _base_name(transform: str) -> str:
    return transform.rpartition(".")[2].removeprefix("filter_").removeprefix("value_and_")


def transform_of(code: CodeType) -> TransformFrame | None:
    """The row for a code object, or None where it is no transform."""
    path = code.co_filename.replace("\\", "/")
    short = _after(path, "/jax/_src/", "jax/_src/")
    if short is not None:
        return _QUALIFIED.get((short, code.co_qualname)) or _JAX.get(short, {}).get(code.co_name)
    library = _after(path, "/site-packages/", "") or _after(path, "/dist-packages/", "")
    return _LIBRARIES.get((library, code.co_qualname)) if library else None


def _after(path: str, marker: str, prefix: str) -> str | None:
    _, found, tail = path.rpartition(marker)
    return prefix + tail if found else None
