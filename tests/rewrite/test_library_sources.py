"""On real code: no crash, every rewrite compiles, undo gives all back, and the scopes agree with the compiler."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.rewrite.checks import check
from jaxleak_magic.rewrite.lift import Lift
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.texts import Unreadable, apply_edits, undo_edits

LIBRARIES = ("jaxopt", "optax", "equinox", "optimistix")


def source_files() -> Iterator[Path]:
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is not None and spec.origin is not None:
            yield from sorted(Path(spec.origin).parent.rglob("*.py"))


def lift_everything(path: Path) -> Counter[str]:
    """Lift each function of a file that closes over something, all of its free variables at once."""
    with open(path, encoding="utf-8", newline="") as file:
        source = SourceText(file.read(), file=str(path))
    program = Program([source])
    fates: Counter[str] = Counter()
    for function in list(program.functions()):
        free = sorted(program.free_names(function))
        fates["scopes differ"] += not program.scopes_agree(function)
        if not free:
            continue
        lift = Lift(program, function, free)
        try:
            draft = lift.run()
            check(program, draft, lift.variables)
        except (Refused, Unreadable):
            fates["refused"] += 1
            continue
        for text, edits in draft.edits.items():
            new = apply_edits(text.text, edits)
            compile(new, str(path), "exec")
            assert apply_edits(new, undo_edits(edits, text.text)) == text.text, path
        fates["rewritten"] += 1
    return fates


def test_a_sample_of_files():
    files = list(source_files())
    if not files:
        pytest.skip("none of the libraries is installed")
    for path in random.Random(0).sample(files, 6):
        lift_everything(path)


@pytest.mark.nightly
def test_all_files():
    files = list(source_files())
    if not files:
        pytest.skip("none of the libraries is installed")
    fates: Counter[str] = Counter()
    for path in files:
        fates += lift_everything(path)
    assert fates["rewritten"] > 50, fates
    assert fates["scopes differ"] < 5, fates
