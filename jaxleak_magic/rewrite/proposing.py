"""From a leak and the user's texts to offered fixes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxleak_magic.diagnose.model import CapturedValue, Edit, Fix, Leak, SourceText
from jaxleak_magic.rewrite.checks import check
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft, Lift
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.texts import Unreadable, apply_edits, unified_diff


def propose(leak: Leak, sources: Sequence[SourceText], checked: SourceText) -> tuple[Fix, ...]:
    """See `jaxleak_magic.rewrite.propose_fixes`."""
    if leak.verdict != "leak" or not leak.facts.captured:
        return ()
    everything = list(sources)
    if checked not in everything:
        everything.append(checked)
    title = f"Lift `{leak.variable or leak.facts.captured[0].variable}` to an argument"
    try:
        program = Program(everything, {fact.name: fact.full_name for fact in leak.facts.names})
        innermost = leak.facts.captured[0]
        function = program.function_at(innermost.name, innermost.place, innermost.variable)
        if function is None:
            return ()
        name = function_name(program, function)
        title = f"Lift `{innermost.variable}` to an argument of `{name}`"
        free = program.free_names(function)
        variables = [v for v in dict.fromkeys((innermost.variable, *leak.facts.all_captured)) if v in free]
        fields = frozenset((c.name, c.attribute) for c in leak.facts.attributes)
        held = _held(leak)
        no_floats = frozenset(v for v in variables if not _is_float(held[v].dtype if v in held else None))
        no_pytrees = frozenset(v for v in variables if v in held and held[v].type not in _PYTREES)
        lift = Lift(program, function, variables, fields, no_floats, no_pytrees)
        draft = lift.run()
        check(program, draft, lift.variables)
        return (_fix(program, draft, lift.variables, name, checked),)
    except (Refused, Unreadable) as reason:
        return (Fix("lift_closure_to_argument", title, refusal=str(reason)),)


_PYTREES = ("tracer", "dict", "list", "tuple")


def _held(leak: Leak) -> dict[str, CapturedValue]:
    """What the captured variables held, as far as the facts say."""
    held = {value.name: value for value in leak.facts.values}
    first = leak.facts.captured[0].variable
    if first not in held:
        links = leak.chains[0] if leak.chains else ()
        before = [link for link in links[: next((i for i, n in enumerate(links) if n.kind == "closure_cell"), 0)]]
        kind = "tracer" if not before else "dict" if all(n.kind in ("item", "key") for n in before) else "object"
        held[first] = CapturedValue(first, kind, leak.tracer.dtype if kind == "tracer" else None)
    return held


def _is_float(dtype: str | None) -> bool:
    return dtype is not None and dtype.startswith(("float", "bfloat", "complex"))


def _fix(program: Program, draft: Draft, variables: Sequence[str], name: str, checked: SourceText) -> Fix:
    words = " and ".join(f"`{v}`" for v in variables)
    title = f"Lift {words} to {'an argument' if len(variables) == 1 else 'arguments'} of `{name}`"
    kind = "lift_closure_to_argument"
    if draft.bound:
        kind = "use_partial"
        title += ", bound with `jax.tree_util.Partial`"
    if draft.children:
        kind = "make_pytree_child"
        title += ", and make " + " and ".join(f"`{c}.{a}`" for c, a in draft.children) + " a pytree child"
    edits: list[Edit] = []
    source: str | None = None
    diff: str | None = None
    for text in program.texts:
        if text not in draft.edits:
            continue
        new = apply_edits(text.text, draft.edits[text])
        label = text.source.file or "cell"
        changed = unified_diff(text.text, new, label)
        edits.append(Edit(text.source.cell, text.source.file, new, changed))
        if (text.source.cell, text.source.file) == (checked.cell, checked.file):
            source, diff = new, changed
    return Fix(kind, title, None, source, diff, tuple(edits), "not_checked")
