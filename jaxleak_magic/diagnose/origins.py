"""Where a leaked value was made, whether it entered as an argument, and what it is made of."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from functools import cached_property

from jaxleak_magic.detect import _jax
from jaxleak_magic.diagnose.kept_tracers import Found
from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.diagnose.referrers import owner_of_step
from jaxleak_magic.diagnose.run_facts import RunFacts
from jaxleak_magic.diagnose.storage import bare
from jaxleak_magic.diagnose.syntax import FunctionNode
from jaxleak_magic.diagnose.trace_stack import created_place, file_of, made_in_library


@dataclass(frozen=True)
class Origin:
    """Where a value was made, whether it entered as an argument, and the variable that a library made it of."""

    place: Place | None
    is_argument: bool
    variable: str | None = None


class Origins:
    """What can be said of a value's origin; lives as long as `describe` runs.

    Args:
        best: the tracer that stands for all of its leak.
        run: the run.
    """

    def __init__(self, best: Found, run: RunFacts) -> None:
        self.best = best
        self.run = run
        self.places = run.places
        self.census = run.check.census

    @cached_property
    def traced(self) -> tuple[str, FunctionNode] | None:
        """File name and syntax of the user's function that was transformed."""
        birth = self.census.birth_of(self.best.trace)
        if birth is None or birth.function is None or not self.traces_users_function():
            return None
        code = birth.function
        node = self.places.definition(code.co_filename, code.co_firstlineno, code.co_name)
        return None if node is None else (code.co_filename, node)

    @cached_property
    def from_library(self) -> bool:
        """Whether library code that the user called computed the value."""
        return made_in_library(self.best.tracer, self.places)

    @cached_property
    def own(self) -> Origin:
        """What the tracer and the census tell."""
        return Origin(*created_place(self.best.tracer, self.best.trace, self.census, self.places))

    @cached_property
    def passed(self) -> Origin:
        """The same, but of a value that a library made of one local variable that variable's (``optax.sgd(rate)``)."""
        own = self.own
        filename = file_of(own.place, self.places)
        if own.place is None or filename is None:
            return own
        if own.is_argument:
            return dataclasses.replace(own, variable=self._argument_in_library_object())
        if not self.from_library:
            return own
        syntax = self.places.syntax(filename)
        statement = syntax.statement_at(own.place.line)
        function = None if statement is None else syntax.function_around(statement)
        if statement is None or function is None:
            return own
        found = syntax.local_origins(statement, function)
        if len(found) != 1:
            return own
        ((name, node),) = found.items()
        place = self.places.in_text(filename, node.lineno, node.col_offset, own.place.function)
        return Origin(place, node is function, name)

    def _argument_in_library_object(self) -> str | None:
        """The one argument of which a library's object in a field of the user's was made: ``tx = optax.sgd(rate)``."""
        if self.traced is None:
            return None
        filename, function = self.traced
        syntax = self.places.syntax(filename)
        steps = self.best.paths[0].steps
        if not steps or owner_of_step(steps[0], self.run.check.owners) != "library":
            return None
        kept = [
            bare(s.name) for s in steps if s.kind == "attribute" and owner_of_step(s, self.run.check.owners) == "user"
        ]
        for statement in ast.walk(function):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]) if name in kept:
                    origins = syntax.local_origins(statement, function)
                    arguments = [each for each, node in origins.items() if node is function]
                    return arguments[0] if len(origins) == len(arguments) == 1 else None
                case _:
                    pass
        return None

    @cached_property
    def constant(self) -> tuple[Place, ...]:
        """Where the value was computed, if nothing traced goes into it; empty otherwise."""
        made_of = _jax.operands_of_constant(self.best.tracer)
        if made_of is None or self.own.is_argument:
            return ()
        found = [created_place(each, self.best.trace, self.census, self.places)[0] for each in made_of]
        known = [place for place in found if place is not None]
        return tuple(dict.fromkeys(known)) if len(known) == len(found) else ()

    def traces_users_function(self) -> bool:
        """Whether the value's trace is that of a function of the user's."""
        birth = self.census.birth_of(self.best.trace)
        return birth is not None and birth.function is not None and self.places.owners(birth.function) == "user"
