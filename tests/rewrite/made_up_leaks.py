"""Leaks made by hand, as the diagnosis would describe them."""

from __future__ import annotations

from jaxleak_magic.diagnose.model import (
    ClassFact,
    Explanation,
    FunctionFact,
    Leak,
    LeakFacts,
    Place,
    SourceText,
    TraceLevel,
    TracerInfo,
)
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.scopes import first_line


def made_up_leak(
    source: SourceText,
    function: str | None = None,
    variables: tuple[str, ...] = (),
    fields: tuple[tuple[str, str], ...] = (),
    dtype: str = "float32",
    transforms: tuple[str, ...] = ("jit",),
    escaped_line: int | None = None,
    others: tuple[SourceText, ...] = (),
    stored_line: int | None = None,
    variable: str | None = None,
    constant_lines: tuple[int, ...] = (),
) -> Leak:
    """A leak through the one function of this name that closes over the variables."""
    captured: tuple[FunctionFact, ...] = ()
    if function is not None:
        program = Program([*others, source])
        nodes = [
            node
            for node in program.functions()
            if getattr(node, "name", "<lambda>") == function and set(variables) <= program.free_names(node)
        ]
        assert len(nodes) == 1, f"{len(nodes)} functions {function} close over {variables}"
        home = program.text_of[nodes[0]].source
        place = Place(home.cell, home.file, first_line(nodes[0]))
        captured = (FunctionFact(function, function, variables[0], place),)
    classes = tuple(ClassFact(*field, None) for field in fields)
    constant = tuple(Place(source.cell, source.file, line) for line in constant_lines)
    grad = "grad" in transforms
    facts = LeakFacts(captured, variables, classes, bool(fields), differentiated=grad, constant=constant)
    place = Place(source.cell, source.file, escaped_line) if escaped_line else None
    stack = tuple(TraceLevel(name, None, None, None, place=place) for name in transforms)
    stored = Place(source.cell, source.file, stored_line) if stored_line else None
    variable = variable or (variables[0] if variables else fields[0][1] if fields else None)
    words = Explanation("", "", "", "")
    tracer = TracerInfo("Tracer", dtype, (), dtype)
    mechanism = "closure_escape" if constant_lines else "other"
    return Leak(1, "leak", 1, mechanism, tracer, variable, stack, None, stored, place, None, (), words, facts=facts)
