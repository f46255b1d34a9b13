"""Generated programs with side effects compute the same after their state was threaded through."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.rewrite import propose_fixes
from tests.rewrite.made_up_leaks import made_up_leak
from tests.rewrite.stateful_programs import Stateful, StatefulGenerator
from tests.rewrite.test_lift_keeps_results import kind_of

RULES = ("return_instead_of_write", "thread_state")


def rewritten(program: Stateful) -> tuple[str | None, str]:
    """The new text and the rule, or None and the reason of the refusal."""
    source = SourceText(program.text, file="cell.py")
    leak = made_up_leak(source, stored_line=program.line, variable=program.variable)
    fixes = propose_fixes(leak, [source], source)
    if not fixes:
        return None, "nothing"
    (fix,) = fixes
    assert fix.id in RULES, program.text
    return fix.source, fix.refusal or fix.id


def outcome(text: str) -> list[Any]:
    """What a program leaves in ``values``."""
    space: dict[str, Any] = {}
    exec(compile(text, "<generated>", "exec"), space)
    return space["values"]


def plain(value: Any) -> Any:
    """A number, or None for what a transform left behind."""
    import jax
    import numpy as np

    if isinstance(value, jax.core.Tracer):
        return None
    try:
        return np.asarray(value, dtype=float)
    except Exception:  # a list that holds tracers
        return None


def compare(seeds: range, compile_every: int = 1) -> collections.Counter[str]:
    """Rewrite and run programs; gives how many had which fate.

    Args:
        seeds: one program each.
        compile_every: of how many rewritten programs one also runs compiled, and under the leak check.
    """
    import jax

    fates: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        if seed % 500 == 0:
            jax.clear_caches()
        program = StatefulGenerator(seed).program()
        new, why = rewritten(program)
        if new is None:
            fates[kind_of(Exception(why))] += 1
            continue
        fates[why] += 1
        with jax.disable_jit():
            try:
                # checkpoint keeps its trace also here, and the old state in it
                before = outcome(program.text.replace("@jax.checkpoint\n", ""))
            except jax.errors.UnexpectedTracerError:  # grad and vmap leak here too
                before = None
            except Exception as error:
                fates[f"raised before: {type(error).__name__}"] += 1
                continue
            eager = run_new(seed, program, new)
        if before is not None:
            check_same(seed, program, new, before, eager)
            fates["same as before"] += 1
        if seed % compile_every == 0:
            with jax.checking_leaks():
                compiled = run_new(seed, program, new)
            check_same(seed, program, new, eager, compiled)
            fates["same compiled, no leak"] += 1
    return fates


def run_new(seed: int, program: Stateful, new: str) -> list[Any]:
    """Run a rewritten program."""
    try:
        return outcome(new)
    except Exception as error:
        raise AssertionError(
            f"seed {seed} raises {error!r} after the rewrite:\n{program.text}\n-----\n{new}"
        ) from error


def check_same(seed: int, program: Stateful, new: str, one: list[Any], other: list[Any]) -> None:
    """Compare two runs; what a transform left behind in the first is not compared."""
    import numpy as np

    both = f"\n{program.text}\n-----\n{new}"
    assert len(one) == len(other), f"seed {seed}{both}"
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        first, second = plain(a), plain(b)
        if first is None:
            continue
        assert second is not None, f"seed {seed}: value {number} is traced{both}"
        if first.shape != second.shape:
            raise AssertionError(f"seed {seed}: value {number} has another shape{both}")
        close = np.allclose(first, second, rtol=2e-4, atol=2e-5, equal_nan=True)
        assert close, f"seed {seed}: value {number}, {first} became {second}{both}"


def test_a_sample_of_programs():
    fates = compare(range(40))
    assert fates["same as before"] >= 8, fates


@pytest.mark.nightly
def test_many_programs():
    fates = compare(range(1000, 6000), compile_every=10)
    assert fates["same as before"] >= 1500, fates
