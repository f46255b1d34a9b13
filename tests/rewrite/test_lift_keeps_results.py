"""Generated programs give the same values and gradients before and after the lift."""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest

from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.rewrite.checks import check
from jaxleak_magic.rewrite.lift import Lift
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.texts import Unreadable, apply_edits, undo_edits
from tests.rewrite.generated_programs import Generated, Generator


def rewritten(program: Generated) -> str | None:
    """The lifted program, or None where it is refused."""
    texts = Program([SourceText(program.text, file="cell.py")])
    functions = [
        f
        for f in texts.functions()
        if set(program.captured) <= texts.free_names(f)
        and getattr(f, "name", "<lambda>") == program.function
        and program.line in (f.lineno, min([f.lineno, *(d.lineno for d in getattr(f, "decorator_list", []))]))
    ]
    assert len(functions) >= 1, program.text
    lift = Lift(texts, functions[0], program.captured)
    draft = lift.run()
    check(texts, draft, lift.variables)
    (text,) = draft.edits
    new = apply_edits(text.text, draft.edits[text])
    assert apply_edits(new, undo_edits(draft.edits[text], text.text)) == text.text
    return new


def outcome(text: str, calls_itself: bool) -> list[float]:
    """What a program computes: its values, or the value and gradients of its entry at two points."""
    import jax
    import numpy as np

    space: dict[str, Any] = {}
    exec(compile(text, "<generated>", "exec"), space)
    if calls_itself:
        return [float(np.sum(v)) for v in space["values"]]
    found: list[float] = []
    for point in ((0.5, 0.25, 1.5), (1.25, -0.5, 0.3)):
        found.append(float(space["entry"](*point)))
        found += [float(g) for g in jax.grad(space["entry"], argnums=(0, 1, 2))(*point)]
    return found


def kind_of(reason: Exception) -> str:
    """A refusal without the names in it, to count by."""
    text = re.sub(r"`[^`]*`((, | and )`[^`]*`)*", "_", str(reason))
    return "refused: " + re.sub(r"\d+", "n", text)[:90]


def compare(seeds: range) -> collections.Counter[str]:
    """Rewrite and run programs; gives how many had which fate."""
    import jax

    fates: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        if seed % 100 == 0:
            jax.clear_caches()
        program = Generator(seed).program()
        try:
            new = rewritten(program)
        except (Refused, Unreadable) as reason:
            fates[kind_of(reason)] += 1
            continue
        assert new is not None
        assert new != program.text
        try:
            with jax.disable_jit():
                before = outcome(program.text, program.calls_itself)
        except Exception as error:
            fates[f"raised before: {type(error).__name__}"] += 1
            continue
        with jax.disable_jit():
            check_same(seed, program, new, before)
        # Compiled too, where the original can be compiled: static arguments and caches count only there.
        try:
            outcome(program.text, program.calls_itself)
        except Exception:
            fates["same, not compiled"] += 1
        else:
            check_same(seed, program, new, before)
            fates["same"] += 1
    return fates


def check_same(seed: int, program: Generated, new: str, before: list[float]) -> None:
    """Run the rewritten program and compare."""
    import numpy as np

    both = f"\n{program.text}\n-----\n{new}"
    try:
        after = outcome(new, program.calls_itself)
    except Exception as error:
        raise AssertionError(f"seed {seed} raises {error!r} after the rewrite:{both}") from error
    same = len(before) == len(after) and np.allclose(before, after, rtol=2e-4, atol=2e-5, equal_nan=True)
    assert same, f"seed {seed}: {before} became {after}:{both}"


def test_a_sample_of_programs():
    fates = compare(range(25))
    assert fates["same"] >= 8, fates


@pytest.mark.nightly
def test_many_programs():
    fates = compare(range(1000, 11000))
    assert fates["same"] >= 3000, fates
