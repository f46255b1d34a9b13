"""From a leak whose value is stored by a statement to the threading of that state."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from jaxleak_magic.diagnose.model import Place, SourceText
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.flow import function_name
from jaxleak_magic.rewrite.lift import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.state_seeds import seeds_for
from jaxleak_magic.rewrite.state_threading import StateThreading
from jaxleak_magic.rewrite.state_writes import Values, Write, sets_flag, write_at, writes_in
from jaxleak_magic.rewrite.states import State, accesses, starts_as_number, state_at
from jaxleak_magic.rewrite.texts import Text


@dataclass(frozen=True)
class Threaded:
    """A finished threading.

    Attributes:
        draft: the edits.
        names: what the values are called in the functions that write them.
        functions: these functions, in the user's words.
        comes_in: whether an old value has to come in somewhere.
    """

    draft: Draft
    names: tuple[str, ...]
    functions: tuple[str, ...]
    comes_in: bool

    @property
    def title(self) -> str:
        """The rewrite in the user's words."""
        names, functions = listed(self.names), listed(self.functions)
        it = "it" if len(self.names) == 1 else "them"
        if self.comes_in:
            return f"Pass {names} into {functions}, return what becomes of {it}, and bind {it} at each call"
        return f"Return {names} from {functions} and bind {it} at each call"


def text_at(program: Program, place: Place | None) -> Text | None:
    """The text in which a place lies."""
    if place is None:
        return None
    for text in program.texts:
        source = text.source
        if (source.file == place.file) if place.cell is None else (source.cell == place.cell):
            return text
    return None


def text_at_source(program: Program, source: SourceText) -> Text | None:
    """The text of a cell or file."""
    return next((t for t in program.texts if (t.source.cell, t.source.file) == (source.cell, source.file)), None)


def write_of(case: Case) -> Write | None:
    """The statement that stored the leaked value, where it is a write outside of its function."""
    place = case.leak.stored
    text = text_at(case.program, place)
    known = place is not None and text is not None
    write = write_at(case.program, place.line, text) if known else _write_of_value(case)  # type: ignore[union-attr]
    return None if write is None or is_memo(case.program, write) else write


def _write_of_value(case: Case) -> Write | None:
    """The one write, in the function that computed the value, of what has the value's name."""
    place, variable = case.leak.created, case.leak.variable
    text = text_at(case.program, place)
    if place is None or text is None or variable is None:
        return None
    found: list[Write] = []
    for function in case.program.functions():
        if case.program.text_of[function] is not text:
            continue
        writes = list(writes_in(case.program, function))
        if not function.lineno <= place.line <= (function.end_lineno or function.lineno):
            continue
        for write in writes:
            names = {n.id for n in ast.walk(write.statement) if isinstance(n, ast.Name)}
            names |= {n.attr for n in ast.walk(write.target) if isinstance(n, ast.Attribute)}
            if variable in names and write.value is not None:
                found.append(write)
    return found[0] if len(found) == 1 else None


def is_memo(program: Program, write: Write) -> bool:
    """Whether a write fills a cache: it stands under a test that is true only as long as nothing is stored."""
    node: ast.AST = write.statement
    while not isinstance(node, FunctionNode):
        above = program.parent[node]
        if isinstance(above, ast.If) and node in above.body:
            match above.test:
                case (
                    ast.Compare(ops=[ast.NotIn()]) | ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=None)])
                ):
                    return True
                case ast.UnaryOp(op=ast.Not(), operand=ast.Call()):
                    return True
                case ast.UnaryOp(op=ast.Not(), operand=ast.Attribute() | ast.Name() as flag):
                    return sets_flag(program.text_of[above], above, flag)
                case _:
                    pass
        node = above
    return False


def title_of(case: Case) -> str:
    """The rewrite in the user's words, where it is refused."""
    write = write_of(case)
    variable = case.leak.variable or "the value"
    if write is None:
        return f"Return `{variable}` instead of writing it"
    return f"Return `{variable}` from `{function_name(case.program, write.function)}` instead of storing it there"


@lru_cache(maxsize=4)
def threaded(case: Case) -> Threaded | None:
    """The threading for a leak, or None where its value is not stored by a write.

    Raises:
        Refused: where the meaning would not certainly stay.
    """
    write = write_of(case)
    if write is None:
        return None
    return thread(case.program, [(write, known_tracers(case), stores_tracer(case, write))])


def _goes_on(program: Program, write: Write) -> bool:
    """Whether a write computes a new array from the old one: traced though nothing else in it is."""
    state = state_at(program, write.target, write.function)
    if state is None or write.is_call or write.value is None:
        return False
    read = any(access.kind == "read" and _is_within(access.node, write.value) for access in accesses(program, state))
    return read and not starts_as_number(program, state)


def _is_within(node: ast.AST, outer: ast.AST) -> bool:
    return any(each is node for each in ast.walk(outer))


def known_tracers(case: Case) -> frozenset[str]:
    """Names of the writing function that certainly hold the leaked tracer itself."""
    chain = case.leak.chains[0] if case.leak.chains else ()
    direct = not chain or chain[0].kind in ("global", "attribute", "key", "item", "weak", "partial", "closure_cell")
    return frozenset((case.leak.variable,)) if direct and case.leak.variable else frozenset()


def stores_tracer(case: Case, write: Write) -> bool:
    """Whether the facts say that the stored value is a tracer itself, not an object that holds one."""
    chain = case.leak.chains[0] if case.leak.chains else ()
    if not chain:
        return False
    kinds = [link.kind for link in chain]
    match write.target:
        case ast.Name(id=name):
            return kinds[0] == "global" or (kinds[0] == "closure_cell" and chain[0].name == name)
        case ast.Attribute(attr=attribute) if not write.is_call:
            facts = case.leak.facts.attributes
            return kinds[0] in ("attribute", "class_attribute") and bool(facts) and facts[0].attribute == attribute
        case ast.Subscript():
            return kinds[0] in ("key", "item", "weak") and kinds[1:2] not in (["key"], ["item"])
        case _:
            return False


def thread(program: Program, writes: list[tuple[Write, frozenset[str], bool]]) -> Threaded:
    """The threading that mends some writes, and all others of the same functions that may store a traced value."""
    seeds: list[tuple[FunctionNode, State]] = []
    for write, known, is_tracer in writes:
        values = Values(program, write.function, known)
        for other in writes_in(program, write.function):
            if other.statement is write.statement and other.target is write.target:
                seeds += seeds_for(program, write, known, is_tracer)
            elif (
                other.value is not None
                and not is_memo(program, other)
                and (values.may_be_traced(other.value) or _goes_on(program, other))
            ):
                seeds += seeds_for(program, other, known, False)
    threading = StateThreading(program, list(dict.fromkeys(seeds)))
    for write, _, _ in writes:
        if not threading.found.is_traced(write.function):
            name = function_name(program, write.function)
            raise Refused(
                f"No transform was found under which `{name}` runs. Return the value from `{name}`, and store it "
                "outside of the transform."
            )
    draft = threading.run()
    functions = list(dict.fromkeys(write.function for write, _, _ in writes))
    names = dict.fromkeys(threading.local(f, state) for f in functions for state in threading.units[f].gives)
    words = tuple(function_name(program, f) for f in functions)
    return Threaded(draft, tuple(names), words, threading.reads_first)
