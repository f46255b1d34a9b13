"""What, where, why and how, in plain sentences with the user's names: one text for each mechanism."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Explanation, Place, TraceLevel, TracerInfo

_PAGES = "https://docs.jax.dev/en/latest/"
DOCS = _PAGES + "errors.html#jax.errors.UnexpectedTracerError"
"""JAX's page on leaked tracers."""

DOCS_OF_ERRORS = {
    "unexpected_tracer": DOCS,
    "concretization": _PAGES + "errors.html#jax.errors.ConcretizationTypeError",
    "branch_mismatch": _PAGES + "_autosummary/jax.lax.cond.html",
    "carry_mismatch": _PAGES + "_autosummary/jax.lax.scan.html",
    "custom_rule_closure": _PAGES + "_autosummary/jax.custom_vjp.html",
    "key_reuse": _PAGES + "errors.html#jax.errors.KeyReuseError",
}
"""JAX's page on each kind of error (looked up in November 2026)."""

_MEANING = {
    "jit": "inside jit a value is a placeholder for arrays that do not exist yet",
    "vmap": "inside vmap a value stands for one element of the mapped array",
    "grad": "inside grad a value carries the derivative with it",
    "scan": "inside scan a value stands for one step of the loop",
    "while_loop": "inside while_loop a value stands for every turn of the loop at once",
    "fori_loop": "inside fori_loop a value stands for every turn of the loop at once",
    "map": "inside lax.map a value stands for one element of the mapped array",
    "cond": "inside cond a value belongs to one branch",
    "switch": "inside switch a value belongs to one branch",
    "checkpoint": "inside checkpoint a value belongs to a computation that is run again later",
    "shard_map": "inside shard_map a value stands for one device's part of the array",
    "eval_shape": "inside eval_shape a value has a shape and a dtype and no numbers",
    "make_jaxpr": "inside make_jaxpr a value is a placeholder for arrays that do not exist yet",
}

_KEEPS_CONSTANTS = (
    "closure_in_aux_data", "closure_escape", "pytree_static_field", "custom_vjp_closure", "callback", "partial_object",
    "dict_memo", "lru_cache",
)  # fmt: skip
"""Mechanisms by which one value may be kept for good; what a call writes may be state, with another value each time."""


@dataclass(frozen=True)
class StoryFacts:
    """What the sentences are made of; every field in the user's names, None where it could not be determined."""

    mechanism: str
    verdict: str
    variable: str | None
    tracer: TracerInfo
    stack: tuple[TraceLevel, ...]
    created: Place | None
    is_argument: bool
    stored: Place | None
    escaped: Place | None
    keeper: str | None
    closure: str | None
    pytree_class: str | None
    others: tuple[str, ...] = ()
    library: str | None = None
    earlier: bool = False
    check_at: str | None = None
    history: bool = False
    constant: bool = False
    locatable: bool = False


def explain(facts: StoryFacts) -> Explanation:
    """The four texts of a leak."""
    what, where, why, how = (_capital(text(facts)) for text in (_what, _where, _why, _how))
    return Explanation(what, where, why, how, DOCS)


def _what(facts: StoryFacts) -> str:
    transform = _transform(facts)
    name = _name(facts)
    if facts.verdict == "library_cache":
        return f"A cache of {facts.library or 'JAX'} still holds {name}, a traced value of {transform}."
    if facts.verdict == "exception":
        what = "A kept frame" if facts.mechanism == "debugger_or_ipython" else "A stored exception"
        return f"{what} still holds {name}, a traced value of {transform}."
    if facts.verdict == "transient":
        return f"A function that is still running holds {name}, a traced value of {transform}."
    if facts.mechanism == "closure_over_outer_transform":
        return (
            f"{facts.closure or 'A function'} uses {name}, a traced value of {transform}, from outside its arguments."
        )
    return f"{name} outlived {transform}: the transform has ended, and its traced value is still kept."


def _where(facts: StoryFacts) -> str:
    places = [place for place in (facts.created, facts.stored, facts.escaped) if place is not None]
    together = len(places) > 1 and len({(place.cell, place.file) for place in places}) == 1

    def at(place: Place) -> str:
        return f"on line {place.line}" if together else at_place(place)

    parts: list[str] = []
    if facts.created is not None:
        verb = "entered as an argument" if facts.is_argument else "was computed"
        parts.append(f"it {verb} {at(facts.created)}")
    handed_over = facts.mechanism == "closure_over_outer_transform"
    if facts.stored is not None and handed_over and facts.closure:
        parts.append(f"{facts.closure} was handed over {at(facts.stored)}")
    elif facts.stored is not None:
        parts.append(f"{'was' if parts else 'it was'} stored {at(facts.stored)}")
    if facts.escaped is not None:
        parts.append(f"{_transform(facts)} ended {at(facts.escaped)}")
    text = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)
    text = text or "the lines could not be determined"
    unit = _unit(places[0]) if together else ""
    text = f"In {unit}, {text}." if unit else f"{_capital(text)}."
    before = " That was in an earlier run, which was not checked." if facts.earlier else ""
    keeper = f" Now {facts.keeper} keeps it." if facts.keeper and not handed_over else ""
    hint = " `--locate` runs the code again to see which line stores it." if facts.locatable else ""
    return text + before + keeper + hint


def _why(facts: StoryFacts) -> str:
    meaning = _MEANING.get(_base(facts), f"inside {_transform(facts)} a value is a placeholder and no array")
    tail = f"{_capital(meaning)}; after the transform has ended it means nothing any more."
    if facts.constant and facts.mechanism in _KEEPS_CONSTANTS:
        inside = _base(facts) or "jit"
        tail = f"Nothing traced goes into {_name(facts)}, but inside {inside} operations on constants are traced too."
    return f"{_cause(facts)} {tail}"


def _cause(facts: StoryFacts) -> str:
    name, keeper = _name(facts), facts.keeper or "something outside"
    closure = facts.closure or "A function"
    others = f" (and {_listed(facts.others)})" if facts.others else ""
    causes = {
        "custom_vjp_closure": f"{closure} takes part in a custom derivative rule and closes over {name}{others}: "
        "JAX runs such rules later, when the trace of that value is gone.",
        "closure_over_outer_transform": f"{closure} was given to another transform or a solver while it closes over "
        f"{name}{others}, so the value goes around the argument list and JAX cannot follow it.",
        "pytree_static_field": f"{facts.pytree_class or 'A pytree class'} keeps {name} in its static part (aux data), "
        "where JAX looks for constants and does not replace traced values when the transform returns.",
        "closure_in_aux_data": f"{closure} closes over {name}{others} and sits in the static part of "
        f"{facts.pytree_class or 'a pytree'}, where JAX cannot see the value and so returns it unreplaced.",
        "lru_cache": f"The function that made {name} remembers its results, so a traced result stays in its cache.",
        "dict_memo": f"{keeper} is filled once and used again, and it was filled while a transform was tracing.",
        "rng_state": f"The random state {name} was split inside the transform, and the new state was written outside.",
        "default_arg": f"The default of an argument is made once and shared by all calls, and {name} was put into it.",
        "class_attr": f"{keeper} belongs to the class and outlives every call.",
        "generator": f"A generator that is not finished still holds {name} in its local variables.",
        "partial_object": f"A `functools.partial` object holds {name} as an argument, and {keeper} holds the partial.",
        "callback": f"{closure} is called back from the compiled program, when {name} is no longer being traced.",
        "weak_registry": f"A weak registry keeps {name} for as long as its key lives.",
        "host_thread": f"{keeper} belongs to a thread and outlives the transform.",
        "exception_traceback": "A traceback keeps every local variable of the functions it went through.",
        "closure_escape": f"{closure} closes over {name}{others} and was stored where it outlives the transform.",
        "attribute_write": f"A function that is transformed wrote {name} to {keeper}, which outlives the call.",
        "container_append": f"A function that is transformed put {name} into {keeper}, which outlives the call.",
        "global_write": f"A function that is transformed assigned the global variable {keeper}.",
        "nonlocal_write": f"A function that is transformed assigned {name}, a variable of the function around it.",
        "jax_internal_cache": "Only a cache of JAX itself holds it; your program cannot reach it.",
        "debugger_or_ipython": f"IPython keeps the value of a cell's last line in `Out` and `_`, and that is {name}."
        if facts.history
        else f"{_capital(keeper)} keeps frames of functions that have returned, as a debugger or trace function does.",
    }
    return causes.get(facts.mechanism, f"{_capital(keeper)} keeps {name}.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _how(facts: StoryFacts) -> str:
    name = f"`{facts.variable}`" if facts.variable else "the value"
    closure = facts.closure or "the function"
    function = _function(facts)
    ways = {
        "custom_vjp_closure": f"Make {name} an argument of the rule and of its primal, and return its cotangent too.",
        "closure_over_outer_transform": f"Pass {name} to {closure} as an argument, through the call that runs it.",
        "pytree_static_field": f"Make the field a child of {facts.pytree_class or 'the pytree'} (return it among the "
        "children when flattening).",
        "closure_in_aux_data": f"Let {closure} take {name} as an argument, bind it with `jax.tree_util.Partial`, and "
        "make the field that holds it a child of the pytree.",
        "lru_cache": "Drop the cache, or compute the value before the transform and pass it in.",
        "dict_memo": "Fill the cache before the transform, or return the value instead of remembering it.",
        "rng_state": "Pass the key in as an argument and return the new key.",
        "default_arg": "Use None as the default and make the container inside the function, or return the value.",
        "generator": f"Use the generator up inside the transform, or return {name} and make the generator outside.",
        "callback": f"Pass {name} to the callback as an argument instead of closing over it.",
        "closure_escape": f"Return {name} from {function} and make {closure} outside, or let {closure} take {name} as "
        "an argument.",
        "exception_traceback": "Nothing to mend in the code; drop the stored exception to free the memory.",
        "jax_internal_cache": "Nothing to mend.",
        "debugger_or_ipython": f"Let the cell end with a result that the transform returned, not with {name}."
        if facts.history
        else "Nothing to mend in the code; check again without the debugger or trace function.",
    }
    way = ways.get(facts.mechanism, f"Return {name} from {function} and store the result outside the transform.")
    if facts.constant and facts.mechanism in _KEEPS_CONSTANTS:
        way = f"Compute {name} before the transform, or under `with jax.ensure_compile_time_eval():`."
    return f"{way} To see the rest of the story, put `%%leakcheck` on {facts.check_at}." if facts.check_at else way


def _function(facts: StoryFacts) -> str:
    name = facts.stack[-1].function if facts.stack else None
    return f"`{name}`" if name and name != "<lambda>" else "the transformed function"


def _name(facts: StoryFacts) -> str:
    return f"`{facts.variable}`" if facts.variable else "a value"


def _transform(facts: StoryFacts) -> str:
    if not facts.stack:
        return "a transform"
    level = facts.stack[-1]
    function = "lambda" if level.function == "<lambda>" else level.function
    return f"`{level.transform}({function})`" if function else f"`{level.transform}`"


def _base(facts: StoryFacts) -> str:
    name = facts.stack[-1].transform if facts.stack else ""
    return name.rpartition(".")[2].removeprefix("filter_").removeprefix("value_and_")


def at_place(place: Place) -> str:
    """``on line 3 of In [2]``; of a file its base name."""
    unit = _unit(place)
    return f"on line {place.line} of {_cell_word(unit)}" if unit else f"on line {place.line}"


def _unit(place: Place) -> str:
    """The file's base name, or ``[2]`` for the cell ``In [2]``; empty for a cell without a number."""
    if place.file is not None:
        return os.path.basename(place.file)
    count = None if place.cell is None else place.cell.execution_count
    return "" if count is None else f"[{count}]"


def _cell_word(unit: str) -> str:
    return f"In {unit}" if unit.startswith("[") else unit


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " and " + quoted[-1]
