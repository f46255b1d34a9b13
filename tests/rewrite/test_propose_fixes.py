"""What goes in and out of the room: several cells, magics, names from the session, and texts that cannot be read."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

from jaxleak_magic.diagnose.model import CapturedValue, CellRef, Leak, NameFact, Place, SourceText
from jaxleak_magic.rewrite import propose_fixes, propose_fixes_together
from jaxleak_magic.rewrite.moved_leaks import MovedPlaces
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.texts import TextEdit, apply_edits
from tests.rewrite.made_up_leaks import made_up_leak


def cell(number: int, text: str) -> SourceText:
    return SourceText(text, CellRef(f"id{number}", number))


IMPORTS = cell(1, "%load_ext jaxleak_magic\nimport jax\nimport jax.numpy as jnp\nimport jaxopt\nstages = {}")
FACTORY = cell(
    2,
    """\
def make_lens(focal):
    strength = 1.0 / focal
    def lens(field):
        return field * jnp.cos(strength * field)
    stages["lens"] = lens
    return lens""",
)
USER = cell(3, "def propagate(focal, field):\n    return make_lens(focal)(field)")
CHECKED = cell(4, "fields = jax.vmap(propagate, in_axes=(0, None))(jnp.ones(2), 1.0)\nfields")


def test_the_function_is_mended_in_the_cell_that_defines_it():
    leak = made_up_leak(FACTORY, "lens", ("strength",), others=(IMPORTS, USER, CHECKED))
    (fix,) = propose_fixes(leak, [IMPORTS, FACTORY, USER, CHECKED], CHECKED)
    assert fix.refusal is None
    assert (fix.source, fix.diff) == (None, None), "the checked cell does not change"
    (edit,) = fix.edits
    assert edit.cell == FACTORY.cell
    expected = FACTORY.text.replace("lens(field)", "lens(strength, field)")
    assert edit.source == expected.replace("return lens", "return jax.tree_util.Partial(lens, strength)")
    assert "-    return lens\n" in edit.diff and "+    def lens(strength, field):\n" in edit.diff


def test_of_a_cell_that_ran_twice_the_last_text_counts():
    older = dataclasses.replace(FACTORY, text=FACTORY.text.replace("1.0 /", "2.0 /"), cell=CellRef("id2", 1))
    leak = made_up_leak(FACTORY, "lens", ("strength",), others=(IMPORTS, USER, CHECKED))
    (fix,) = propose_fixes(leak, [IMPORTS, older, FACTORY, USER, CHECKED], CHECKED)
    assert [edit.cell for edit in fix.edits] == [FACTORY.cell]


def test_the_same_text_in_a_later_cell_is_the_one_that_counts():
    text = (
        TWO_LEAKS[TWO_LEAKS.index("kept = []") : TWO_LEAKS.index("def make_lens")]
        + TWO_LEAKS[TWO_LEAKS.index("@jax.jit") :]
    )
    first, second = cell(2, text), cell(3, text)
    leak = made_up_leak(second, variable="y", stored_line=6, escaped_line=9)
    (fix,) = propose_fixes(leak, [IMPORTS, first, second], second)
    assert fix.refusal is None, fix.refusal
    assert [edit.cell for edit in fix.edits] == [second.cell]


OBJECTIVE = """\
def adapt(prior, target):
    def cost(p, prior):
        return (p - target) ** 2 + (p - prior) ** 2
    solver = jaxopt.LBFGS(cost)
    %time value = solver.run(prior, prior).params
    !ls -la {0}
    note = !echo done
    solver?
    return solver.run(prior, prior).params
x = await later()
"""


def test_magics_and_awaits_stay_as_they_are():
    text = OBJECTIVE.replace("    %time value = solver.run(prior, prior).params\n", "    %timeit 1 + 1\n")
    source = cell(5, text)
    leak = made_up_leak(source, "cost", ("target",), others=(IMPORTS,))
    (fix,) = propose_fixes(leak, [IMPORTS, source], source)
    assert fix.refusal is None, fix.refusal
    assert fix.source == text.replace("cost(p, prior)", "cost(p, prior, target)").replace(
        "return solver.run(prior, prior)", "return solver.run(prior, prior, target)"
    )


def test_a_use_inside_a_magic_is_refused():
    source = cell(5, OBJECTIVE.replace("%time value = solver.run(prior, prior)", "%timeit cost(1.0, prior)"))
    leak = made_up_leak(source, "cost", ("target",), others=(IMPORTS,))
    (fix,) = propose_fixes(leak, [IMPORTS, source], source)
    assert fix.refusal is not None and "magic" in fix.refusal


SOLVE = """\
def adapt(prior, target):
    def cost(p, prior):
        return (p - target) ** 2 + (p - prior) ** 2
    return opt.LBFGS(cost).run(prior, prior).params
"""


def test_names_that_no_text_imports_come_from_the_session():
    source = cell(6, SOLVE)
    leak = made_up_leak(source, "cost", ("target",))
    (refused,) = propose_fixes(leak, [source], source)
    assert refused.refusal is not None
    facts = dataclasses.replace(leak.facts, names=(NameFact("opt", "jaxopt"),))
    (fix,) = propose_fixes(dataclasses.replace(leak, facts=facts), [source], source)
    assert fix.source == SOLVE.replace("cost(p, prior)", "cost(p, prior, target)").replace(
        "run(prior, prior)", "run(prior, prior, target)"
    )


def test_an_object_that_holds_a_tracer_is_no_argument_for_jax():
    source = cell(6, "import jaxopt as opt\n" + SOLVE)
    leak = made_up_leak(source, "cost", ("target",))
    facts = dataclasses.replace(leak.facts, values=(CapturedValue("target", "Spring"),))
    (fix,) = propose_fixes(dataclasses.replace(leak, facts=facts), [source], source)
    assert fix.refusal is not None and "`target` is an object" in fix.refusal


def test_a_callback_whose_log_keeps_the_value():
    text = """\
import jax

log = []

@jax.jit
def epoch(w):
    loss = w ** 2
    jax.debug.callback(lambda: log.append(loss))
    return w
"""
    source = SourceText(text, file="cell.py")
    leak = dataclasses.replace(made_up_leak(source, fields=(("list", "loss"),)), mechanism="callback", variable="loss")
    (fix,) = propose_fixes(leak, [source], source)
    assert fix.source == text.replace("(lambda: log.append(loss))", "(lambda loss: log.append(loss), loss)")


def test_what_cannot_be_read_gives_no_fix_and_no_error():
    leak = made_up_leak(FACTORY, "lens", ("strength",))
    deep = "+".join(["1"] * 50_000)
    for text in ("", "%%bash\nls", "def (", "\x00", "x = '" + "\ud800" + "'", "(" * 300, f"x = {deep}"):
        source = cell(7, text)
        for fix in propose_fixes(leak, [source], source):
            assert fix.refusal is not None


def test_only_leaks_get_fixes():
    leak = made_up_leak(FACTORY, "lens", ("strength",))
    assert propose_fixes(dataclasses.replace(leak, verdict="library_cache"), [FACTORY], FACTORY) == ()


def test_the_room_is_light():
    heavy = "('jax', 'IPython', 'libcst', 'numpy')"
    code = f"import jaxleak_magic.rewrite, sys; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


TWO_LEAKS = """\
import jax
import jax.numpy as jnp
stages = {}
kept = []

def make_lens(focal):
    strength = 1.0 / focal
    def lens(field):
        return field * jnp.cos(strength * field)
    stages["lens"] = lens
    return lens

def propagate(focal, field):
    return make_lens(focal)(field)

fields = jax.vmap(propagate, in_axes=(0, None))(jnp.ones(2), 1.0)

@jax.jit
def shine(x):
    y = jnp.sin(x)
    kept.append(y)
    return y + 1

shine(1.0)
"""


def two_leaks(text: str, **second: object) -> tuple[Leak, Leak, SourceText]:
    source = SourceText(text, file="cell.py")
    first = made_up_leak(source, "lens", ("strength",), transforms=("vmap",), escaped_line=16)
    return first, made_up_leak(source, **second), source  # type: ignore[arg-type]


def test_two_leaks_of_different_kinds_get_one_fix():
    first, second, source = two_leaks(TWO_LEAKS, variable="y", stored_line=21, escaped_line=24)
    alone = [propose_fixes(leak, [source], source)[0] for leak in (first, second)]
    assert alone[0].source != alone[1].source
    for leaks in ((first, second), (second, first)):
        (one,), (other,) = propose_fixes_together(leaks, [source], source)
        assert one == other
        assert one.refusal is None
        assert one.source is not None
        assert "    def lens(strength, field):" in one.source
        assert "    return jax.tree_util.Partial(lens, strength)" in one.source
        assert "    return y + 1, y" in one.source
        assert "kept.append(y)\n    return" not in one.source
        assert "\n" not in one.title
        assert all(fix.title in one.title for fix in alone)


def test_a_leak_that_is_refused_leaves_the_fix_of_the_other():
    text = TWO_LEAKS.replace("shine(1.0)", "print(shine)")
    first, second, source = two_leaks(text, variable="y", stored_line=21, escaped_line=24)
    (one,), (other,) = propose_fixes_together((first, second), [source], source)
    assert one == propose_fixes(first, [source], source)[0]
    assert other.refusal is not None


def test_variables_of_one_function_are_lifted_once():
    text = TWO_LEAKS.replace("cos(strength * field)", "cos(strength * field + tilt)").replace(
        "1.0 / focal\n", "1.0 / focal\n    tilt = focal + 1\n"
    )
    source = SourceText(text, file="cell.py")
    leaks = [made_up_leak(source, "lens", names) for names in (("strength", "tilt"), ("tilt",))]
    (one,), (other,) = propose_fixes_together(leaks, [source], source)
    assert one == other
    assert one.source is not None
    assert "lens, strength, tilt)" in one.source


def test_other_leaks_are_found_again_below_inserted_lines():
    text = TWO_LEAKS.replace("    kept.append(y)\n", "    kept.append(y)\n    table.update(y=y)\n")
    source = SourceText(text, file="cell.py")
    program = Program([source])
    (before,) = program.texts
    edits = {before: [TextEdit(0, 0, 0, "import os\n"), TextEdit(before.offset(21, 0), before.offset(22, 0), 0, "")]}
    (after,) = Program([SourceText(apply_edits(text, edits[before]), file="cell.py")]).texts
    places = MovedPlaces([before], [after], edits)
    moved = [places.place(Place(None, "cell.py", line, 4)) for line in (20, 21, 22)]
    assert [place and (place.line, place.column) for place in moved] == [(21, 4), None, (22, 4)]
    elsewhere = Place(None, "other.py", 3)
    assert places.place(elsewhere) is elsewhere


CLOSURES = """\
import jax
import jax.numpy as jnp
kept = []

def sinusoid(amplitude, period):
    def drive(t):
        return amplitude * jnp.sin(t / period)
    return drive

def oscillator(drive):
    def driven(y):
        return drive(y) - y
    kept.append(driven)
    return driven

@jax.jit
def run(amplitude):
    return oscillator(sinusoid(amplitude, 3.0))(1.0)

run(2.0)
"""


def test_a_value_whose_bound_function_is_closed_over_is_not_bound():
    source = SourceText(CLOSURES, file="cell.py")
    leak = made_up_leak(source, "drive", ("amplitude",))
    outer = made_up_leak(source, "driven", ("drive",)).facts.captured
    facts = dataclasses.replace(leak.facts, captured=(*leak.facts.captured, *outer))
    (fix,) = propose_fixes(dataclasses.replace(leak, facts=facts), [source], source)
    assert fix.refusal is not None
    assert "`driven` closes over `drive`" in fix.refusal


def test_a_closure_found_by_its_text_alone_may_hold_more_than_is_known():
    source = SourceText(TWO_LEAKS, file="cell.py")
    leak = made_up_leak(source, "lens", ("strength",))
    unsure = dataclasses.replace(leak.facts, captured_by_syntax=True)
    (fix,) = propose_fixes(dataclasses.replace(leak, facts=unsure), [source], source)
    assert fix.refusal is None, "there is no other free variable"
    text = TWO_LEAKS.replace("strength * field)", "strength * field + tilt)").replace(
        "    def lens(field)", "    tilt = jnp.sin(focal)\n    def lens(field)"
    )
    source = SourceText(text, file="cell.py")
    leak = made_up_leak(source, "lens", ("strength",))
    unsure = dataclasses.replace(leak.facts, captured_by_syntax=True)
    (fix,) = propose_fixes(dataclasses.replace(leak, facts=unsure), [source], source)
    assert fix.refusal is not None
    assert "`tilt`" in fix.refusal
