"""Which kind of mistake a leak is: the first mechanism of the contract that fits the facts."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import TracerInfo
from jaxleak_magic.diagnose.storage import Storage
from jaxleak_magic.heap import Step


@dataclass(frozen=True)
class MechanismFacts:
    """What decides about the mechanism.

    Attributes:
        steps: the best path, tracer to root.
        storage: how the value came to be kept.
        tracer: the leaked tracer.
        custom_rule: the closure on the path is a custom derivative rule or its primal.
        given_to_transform: the closure was given to an inner transform or a solver, and nothing keeps it.
        came_out_by_return: the object that keeps it was returned by the transform.
        random_value: the value was made by ``jax.random`` or is a key.
        callback: a function that is called back from the compiled program holds or stores it.
    """

    steps: Sequence[Step]
    storage: Storage
    tracer: TracerInfo
    custom_rule: bool = False
    given_to_transform: bool = False
    came_out_by_return: bool = False
    random_value: bool = False
    callback: bool = False


def mechanism(facts: MechanismFacts) -> str:
    """The mechanism's name (`jaxleak_magic.diagnose.model.MECHANISMS`)."""
    kinds = [step.kind for step in facts.steps]
    how = facts.storage.how
    closure = "closure_cell" in kinds
    if facts.custom_rule:
        return "custom_vjp_closure"
    if facts.callback or any("callback" in (step.module or "") for step in facts.steps):
        return "callback"
    if facts.given_to_transform:
        return "closure_over_outer_transform"
    if facts.came_out_by_return and any(k in ("attribute", "pytree_aux", "item") for k in kinds):
        return "closure_in_aux_data" if closure else "pytree_static_field"
    if "cache" in kinds and any("lru_cache" in step.type for step in facts.steps):
        return "lru_cache"
    if how == "library" and "key" in kinds and not closure:
        return "dict_memo"  # parameters and states that a library makes once and keeps by name
    if _fills_a_dict_once(facts) and "argument_default" not in kinds:
        return "dict_memo"
    if facts.random_value and how in ("attribute", "item", "global", "nonlocal", "library") and not closure:
        return "rng_state"
    if "argument_default" in kinds:
        return "default_arg"
    if "class_attribute" in kinds and how != "attribute":
        return "class_attr"
    if "generator" in kinds:
        return "generator"
    if any("partial" in step.type for step in facts.steps[:2] if step.kind == "partial"):
        return "partial_object"
    if "weak" in kinds:
        return "weak_registry"
    if any(step.type in ("_thread._local", "threading.local") for step in facts.steps):
        return "host_thread"
    if how == "nonlocal":
        return "nonlocal_write"
    callable_kept = closure or "partial" in kinds or ("bound_method" in kinds and how != "attribute")
    if callable_kept or how == "closure":
        return "closure_escape"
    return {
        "attribute": "attribute_write",
        "memo": "attribute_write",
        "item": "container_append",
        "call": "container_append",
        "global": "global_write",
        "set": "other",
    }.get(how, _from_first_step(facts.steps))


def _fills_a_dict_once(facts: MechanismFacts) -> bool:
    if facts.storage.how != "item":
        return False
    name = _target(facts.storage.statement)
    return facts.storage.guarded or any(word in name for word in ("memo", "cache"))


def _target(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return ast.unparse(statement.targets[0].value).lower()
    return ""


def _from_first_step(steps: Sequence[Step]) -> str:
    if not steps:
        return "other"
    outer = steps[-1]
    if outer.type in ("contextvars.Context", "ContextVar") or any("ContextVar" in s.type for s in steps):
        return "other"
    return {"attribute": "attribute_write", "item": "container_append", "key": "container_append"}.get(
        steps[0].kind, "other"
    )
