"""What is no leak and still surprises: writes that happen only while tracing, unrolled loops, globals baked in.

Two kinds of facts are joined: which of the user's functions were really traced in this run (the census of traces) and
what surely runs in them (their syntax). Whatever is not certain is left out. Nothing is looked at while the code runs,
and nothing afterwards unless a function of the user's was traced into a program.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType

from jaxleak_magic.detect.census import Birth
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.traceback_tracers import frames_of
from jaxleak_magic.diagnose.certainty import Certainty, Loop, Reached, own_nodes, parameters, root_name
from jaxleak_magic.diagnose.model import Leak, Note
from jaxleak_magic.diagnose.syntax import MUTATORS, FunctionNode, Syntax
from jaxleak_magic.diagnose.trace_stack import Places

MOST_NOTES = 5
UNROLLED_FROM = 32
"""Repetitions from which a loop is worth a note: chosen, not measured."""

_COMPILED = "once a compilation, not once a call"
_LOOPED = "once when the loop is traced, not once a step"
_WHEN = {
    "jit": _COMPILED,
    "pmap": _COMPILED,
    "scan": _LOOPED,
    "while_loop": _LOOPED,
    "fori_loop": _LOOPED,
    "map": _LOOPED,
    "cond": "when the branch is traced, whether or not it is taken",
    "switch": "when the branch is traced, whether or not it is taken",
}
"""Transforms that run a Python function once and its program many times, and when what it writes is written."""

_OPERATIONS = frozenset(
    """
    sin cos tan arcsin arccos arctan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt cbrt square power
    abs sign add subtract multiply divide dot matmul vdot einsum tensordot outer sum prod mean std var cumsum
    cumprod max min maximum minimum where select roll flip stack concatenate sigmoid relu gelu silu softplus
    softmax log_softmax logsumexp logaddexp erf rsqrt conv scan while_loop fori_loop split normal uniform
    fold_in bernoulli solve
    """.split()  # noqa: SIM905 (one word a line would take a page)
)
"""Names in the modules below whose call always adds operations."""
_OPERATION_MODULES = ("jax.numpy.", "jax.lax.", "jax.nn.", "jax.random.", "jax.scipy.")


def find_notes(
    check: LeakCheck,
    places: Places,
    checked_file: str | None,
    leaks: Sequence[Leak],
    error: BaseException | None = None,
) -> tuple[Note, ...]:
    """The notes of a run whose hooks are out again.

    Args:
        check: the finished run.
        places: the user's texts and their syntax.
        checked_file: ``co_filename`` of the checked text, or None.
        leaks: the leaks of the run; a write whose value leaked is no note.
        error: what the code raised, or None. Nothing of it is kept.

    Returns:
        at most `MOST_NOTES`, in the order of their lines; those about other cells have no line and come last.
    """
    births = [birth for birth in check.census.births if _is_staged(birth, check)]
    if not births:
        return ()
    stopped = set[int]() if error is None else {id(frame.f_code) for frame in frames_of(error)}
    found: list[Note] = []
    for traced in _traced_functions(births, places, stopped):
        for line, kind, text in _about(traced, births, check, checked_file, error is None):
            if not _is_leaks_line(line, traced.filename, leaks, places):
                found.append(_note(kind, line, text, traced, checked_file))
    unique = {(note.kind, note.line, note.text if note.line is None else ""): note for note in reversed(found)}
    return tuple(sorted(unique.values(), key=lambda n: (n.line is None, n.line or 0))[:MOST_NOTES])


_Finding = tuple[int, str, str]
"""Line of the text, kind, sentence."""


@dataclass
class _Traced:
    """A function of the user's that was traced to its end.

    Attributes:
        code: its code object.
        node: its syntax.
        filename: ``co_filename``.
        births: its traces, one or more.
        certainty: what is certain about its text.
    """

    code: CodeType
    node: FunctionNode
    filename: str
    births: list[Birth]
    certainty: Certainty
    places: Places = field(repr=False)

    @property
    def transform(self) -> str:
        return self.births[0].transform or "?"

    @property
    def name(self) -> str:
        return "this lambda" if isinstance(self.node, ast.Lambda) else f"`{self.node.name}`"

    @cached_property
    def reached(self) -> list[Reached]:
        return list(self.certainty.reached(self.node))


def _base(transform: str | None) -> str:
    return (transform or "").rpartition(".")[2].removeprefix("filter_")


def _is_staged(birth: Birth, check: LeakCheck) -> bool:
    return (
        birth.function is not None
        and birth.trace_class == "DynamicJaxprTrace"
        and birth.called_by == "user"
        and _base(birth.transform) in _WHEN
        and check.owners(birth.function) == "user"
    )


def _traced_functions(births: Sequence[Birth], places: Places, stopped: set[int]) -> Iterator[_Traced]:
    """The functions that were traced to their end, each with all its traces."""
    by_code: dict[int, list[Birth]] = {}
    for birth in births:
        by_code.setdefault(id(birth.function), []).append(birth)
    known = set(places.sources.filenames())
    texts: list[Syntax] | None = None
    certainties: dict[str, Certainty] = {}
    for group in by_code.values():
        code = group[0].function
        if code is None or code.co_filename not in known or id(code) in stopped:
            continue
        if all(_may_have_failed(birth, places) for birth in group):
            continue
        node = places.definition(code.co_filename, code.co_firstlineno, code.co_name)
        if node is None:
            continue
        if texts is None:
            texts = [places.syntax(filename) for filename in places.sources.filenames()]
        if code.co_filename not in certainties:
            certainties[code.co_filename] = Certainty(places.syntax(code.co_filename), texts)
        certainty = certainties[code.co_filename]
        if not _has_own_decorator(node, certainty):
            yield _Traced(code, node, code.co_filename, group, certainty, places)


def _may_have_failed(birth: Birth, places: Places) -> bool:
    """Whether the user's code catches what the traced function may have raised."""
    if birth.user is None:
        return True
    filename = birth.user.code.co_filename
    syntax = places.syntax(filename)
    statement = syntax.statement_at(places.sources.line_in_text(filename, birth.user.position()[0]))
    if statement is None:
        return True
    around = [statement, *syntax.ancestors(statement)]
    swallowing = ("suppress", "raises")
    return any(
        isinstance(node, ast.Try | ast.TryStar)
        or (
            isinstance(node, ast.With)
            and any(word in ast.unparse(i.context_expr) for i in node.items for word in swallowing)
        )
        for node in around
    )


def _has_own_decorator(node: FunctionNode, certainty: Certainty) -> bool:
    """A decorator of the user's own may call the function or not."""
    if isinstance(node, ast.Lambda):
        return False
    roots = [root_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    return any(root is None or certainty.defines(root) for root in roots)


def _about(
    traced: _Traced, births: Sequence[Birth], check: LeakCheck, checked_file: str | None, no_error: bool
) -> Iterator[_Finding]:
    yield from _impure_writes(traced)
    yield from _unrolled_loops(traced)
    if check.retraced and no_error and checked_file is not None:
        yield from _baked_in_values(traced, checked_file)


def _note(kind: str, line: int, text: str, traced: _Traced, checked_file: str | None) -> Note:
    if traced.filename == checked_file:
        return Note(kind, line, text)
    source = traced.places.sources.get(traced.filename)
    count = None if source is None or source.cell is None else source.cell.execution_count
    where = "another cell" if count is None else f"In [{count}]"
    return Note(kind, None, f"{where}, line {line}: {text}")


def _is_leaks_line(line: int, filename: str, leaks: Sequence[Leak], places: Places) -> bool:
    source = places.sources.get(filename)
    spots = [place for leak in leaks for place in (leak.stored, leak.created) if place is not None]
    return any(
        place.line == line and (source is None or (place.cell, place.file) == (source.cell, source.file))
        for place in spots
    )


# impure writes


@dataclass(frozen=True)
class _Target:
    """What a statement writes to, and the expression of the value; ``step`` where it adds to what is there."""

    target: ast.expr
    value: ast.expr | None
    step: bool = False


def _impure_writes(traced: _Traced) -> Iterator[_Finding]:
    when = _WHEN[_base(traced.transform)]
    for reached in traced.reached:
        for write in _targets(reached.node):
            if _is_outside(write.target, reached, traced) and _is_plain_write(write, reached, traced):
                name = _shown(write.target)
                text = f"`{name}` is written while `{traced.transform}` traces {traced.name}: {when}."
                yield getattr(reached.node, "lineno", 1), "impure_write", text


_ANY_KEY = ...
"""Stands for the key in the write that a method such as ``append`` makes."""


def _shown(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value is _ANY_KEY:
        return ast.unparse(target.value)
    return ast.unparse(target)


def _targets(node: ast.AST) -> Iterator[_Target]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            parts, values = [target], [node.value]
            if isinstance(target, ast.Tuple | ast.List):
                parts = target.elts
                paired = isinstance(node.value, ast.Tuple | ast.List) and len(node.value.elts) == len(parts)
                values = node.value.elts if paired and isinstance(node.value, ast.Tuple | ast.List) else []
            for part, value in zip(parts, values, strict=False):
                yield _Target(part, value)
    elif isinstance(node, ast.AugAssign):
        yield _Target(node.target, node.value, step=True)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _Target(node.target, node.value)
    elif isinstance(node, ast.Call):
        yield from _mutation(node)


def _mutation(call: ast.Call) -> Iterator[_Target]:
    """``shapes.append(x.shape)`` as a write to an item of ``shapes``."""
    method, arguments = call.func, call.args
    if not isinstance(method, ast.Attribute) or method.attr not in MUTATORS:
        return
    if len(arguments) == 1 and not call.keywords and not isinstance(arguments[0], ast.Starred):
        yield _Target(ast.Subscript(method.value, ast.Constant(_ANY_KEY), ast.Store()), arguments[0])


def _is_outside(target: ast.expr, reached: Reached, traced: _Traced) -> bool:
    """Whether the written name, object or container outlives the trace."""
    name = root_name(target)
    if name is None:
        return False
    owner = traced.certainty.scope_of(name, reached.function)
    if owner is None or not _is_inside(owner, reached.chain, traced):
        # A plain assignment to a name of the module or of a function around is one to a local variable unless declared;
        # scope_of knows that.
        return owner is not None or bool(_known_at_top(name, traced))
    return isinstance(target, ast.Attribute | ast.Subscript) and _is_static_self(name, owner, traced)


def _known_at_top(name: str, traced: _Traced) -> bool:
    return any(name in traced.certainty.bindings(text.tree) for text in traced.certainty.texts)


def _is_inside(owner: FunctionNode, chain: Sequence[FunctionNode], traced: _Traced) -> bool:
    syntax = traced.certainty.syntax
    return any(owner is f for f in chain) or any(a is chain[0] for a in syntax.ancestors(owner))


def _is_static_self(name: str, owner: FunctionNode, traced: _Traced) -> bool:
    """Whether a name is the ``self`` of a traced method that JAX takes as it is: a static argument."""
    if owner is not traced.node or isinstance(owner, ast.Lambda) or parameters(owner)[:1] != [name]:
        return False
    if traced.certainty.syntax.class_around(owner) is None:
        return False
    for decorator in owner.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            numbers = keyword.value.elts if isinstance(keyword.value, ast.Tuple | ast.List) else [keyword.value]
            wanted = {"static_argnums": 0, "static_argnames": name}.get(keyword.arg or "")
            if wanted is not None and any(isinstance(n, ast.Constant) and n.value == wanted for n in numbers):
                return True
    return False


def _is_plain_write(write: _Target, reached: Reached, traced: _Traced) -> bool:
    """Whether the value is certainly no tracer, and the container certainly one of Python's own."""
    certainty, function, target, value = traced.certainty, reached.function, write.target, write.value
    if value is None:
        return False
    # Where another write puts a tracer into the same name, this one is part of that story: a reset, mostly.
    if isinstance(target, ast.Name):
        return certainty.is_plain(value, function, frozenset({target.id})) and certainty.is_plain(target, function)
    if isinstance(target, ast.Attribute):
        return certainty.is_plain(value, function) and certainty.attribute_is_plain(target.attr, function)
    return (
        isinstance(target, ast.Subscript)
        and certainty.is_plain(value, function)
        and certainty.is_container(target.value, function)
    )


# unrolled loops


def _unrolled_loops(traced: _Traced) -> Iterator[_Finding]:
    """A loop that surely runs often with an operation of JAX in it; the outermost that does is named, once."""
    most: dict[int, tuple[Loop, int]] = {}
    for reached in traced.reached:
        if reached.times < UNROLLED_FROM or not _is_operation(reached, traced):
            continue
        outermost = reached.loops[0][0]
        if reached.times > most.get(id(outermost), (outermost, 0))[1]:
            most[id(outermost)] = (outermost, reached.times)
    for loop, times in most.values():
        text = (
            f"`{traced.transform}` traces this Python loop unrolled: its operations are in the program {times} times; "
            "`jax.lax.fori_loop` or `jax.lax.scan` would put them there once."
        )
        yield loop.lineno, "unrolled_loop", text


def _is_operation(reached: Reached, traced: _Traced) -> bool:
    node = reached.node
    if isinstance(node, ast.Call):
        name = traced.certainty.full_name(node.func) or ""
        return name.startswith(_OPERATION_MODULES) and name.rpartition(".")[2] in _OPERATIONS
    return isinstance(node, ast.BinOp) and reached.function is traced.node and _gives_tracer(node, traced, frozenset())


def _gives_tracer(node: ast.expr, traced: _Traced, assumed: frozenset[str]) -> bool:
    """Whether an expression surely computes with a traced argument: ``x * 0.5`` where ``x`` is one."""
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.Div | ast.Pow | ast.MatMult):
            return _gives_tracer(node.left, traced, assumed) or _gives_tracer(node.right, traced, assumed)
        if not isinstance(node.op, ast.Add | ast.Mult):
            return False
        # A list argument times 2, or plus another list, is no operation of JAX.
        numbers = [_is_number(part, whole=isinstance(node.op, ast.Add)) for part in (node.left, node.right)]
        sides = [_gives_tracer(part, traced, assumed) for part in (node.left, node.right)]
        computed = [
            side and isinstance(part, ast.BinOp) for side, part in zip(sides, (node.left, node.right), strict=True)
        ]
        return (any(numbers) and any(sides)) or any(computed)
    if not isinstance(node, ast.Name) or node.id in assumed:
        return False
    values = traced.certainty.bindings(traced.node).get(node.id, [])
    if node.id in parameters(traced.node) and _all_arguments_traced(traced):
        # Bound by the call, and rebound at most by operations on itself.
        return all(v is None or _gives_tracer(v, traced, assumed - {node.id}) for v in _rebindings(values, node.id))
    return False


def _rebindings(values: Sequence[ast.expr | None], name: str) -> list[ast.expr | None]:
    """What else a parameter is bound to, but for expressions of itself."""
    rest = list(values)[1:]
    return [v for v in rest if v is None or not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(v))]


def _is_number(node: ast.expr, whole: bool) -> bool:
    return isinstance(node, ast.Constant) and (type(node.value) is float or (whole and type(node.value) is int))


def _all_arguments_traced(traced: _Traced) -> bool:
    return traced.transform == "jit" and "static_arg" not in traced.certainty.syntax.text


# values baked in


def _baked_in_values(traced: _Traced, checked_file: str) -> Iterator[_Finding]:
    """A global that a compiled function read, then a change, then a call without a new trace: it cannot see it."""
    calls = _calls_at_top(traced, checked_file)
    if calls is None or _base(traced.transform) not in ("jit", "pmap"):
        return
    first_traced, untraced = calls
    syntax = traced.places.syntax(checked_file)
    seen: set[str] = set()
    for reached in traced.reached:
        node = reached.node
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in seen:
            continue
        if traced.certainty.scope_of(node.id, reached.function) is not None:
            continue
        read = _read_part(node, traced.certainty.syntax)
        if read is None:
            continue
        for change in _changes(syntax, node.id, read):
            later = [line for line in untraced if line > change.lineno]
            if first_traced < change.lineno and later:
                seen.add(node.id)
                where = f"line {change.lineno}" if traced.filename == checked_file else "the later change"
                text = (
                    f"`{ast.unparse(read)}` is read only while `{traced.transform}` traces {traced.name}: "
                    f"its change in {where} is not seen by the call in line {later[0]}. Pass it as an argument."
                )
                yield node.lineno, "baked_in_value", text
                break


def _calls_at_top(traced: _Traced, checked_file: str) -> tuple[int, list[int]] | None:
    """Line of the first traced call in the checked text, and the lines of later ones that were not traced again."""
    places = traced.places
    syntax = places.syntax(checked_file)
    traced_lines: list[int] = []
    for birth in traced.births:
        if birth.user is None or birth.user.code.co_filename != checked_file or birth.user.code.co_name != "<module>":
            return None  # called from elsewhere too: which calls came when is not known
        traced_lines.append(places.sources.line_in_text(checked_file, birth.user.position()[0]))
    if not traced_lines:
        return None
    top = [s for s in syntax.tree.body if isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)]
    calls = [node for s in top for node in own_nodes([s]) if isinstance(node, ast.Call)]
    first = min(traced_lines)
    names = {
        ast.unparse(c.func) for c in calls if c.lineno <= first <= (c.end_lineno or c.lineno) and _names_it(c, traced)
    }
    if len(names) != 1:
        return None
    callee = names.pop()
    same = [c for c in calls if ast.unparse(c.func) == callee and c.lineno > first]
    return first, [c.lineno for c in same if not any(c.lineno <= n <= (c.end_lineno or c.lineno) for n in traced_lines)]


def _names_it(call: ast.Call, traced: _Traced) -> bool:
    """Whether the callee is a name that stands for the traced function for good: ``def f`` or ``g = jit(f)``, once."""
    if not isinstance(call.func, ast.Name):
        return False
    values = [v for text in traced.certainty.texts for v in traced.certainty.bindings(text.tree).get(call.func.id, [])]
    if len(values) != 1:
        return False
    if isinstance(traced.node, ast.Lambda):
        return values[0] is not None and any(node is traced.node for node in ast.walk(values[0]))
    if values[0] is None:
        return call.func.id == traced.node.name
    return isinstance(values[0], ast.Call) and any(
        isinstance(node, ast.Name) and node.id == traced.node.name for node in ast.walk(values[0])
    )


def _read_part(node: ast.Name, syntax: Syntax) -> ast.expr | None:
    """What is read of a global: its name, an attribute or an item by a constant key; None where it is called."""
    around = syntax.parent(node)
    if isinstance(around, ast.Call) and around.func is node:
        return None
    if isinstance(around, ast.Attribute):
        above = syntax.parent(around)
        return None if isinstance(above, ast.Call) and above.func is around else around
    if isinstance(around, ast.Subscript) and around.value is node:
        return around if isinstance(around.slice, ast.Constant) else node
    return node


def _changes(syntax: Syntax, name: str, read: ast.expr) -> Iterator[ast.stmt]:
    """Statements at top level that surely change what was read: the name is rebound, or that attribute or item set."""
    wanted = {name, ast.unparse(read)}
    before: str | None = None
    for statement in syntax.tree.body:
        if not isinstance(statement, ast.Assign | ast.AugAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not any(ast.unparse(target) in wanted for target in targets):
            continue
        value = ast.unparse(statement.value)
        if isinstance(statement, ast.AugAssign) or value != before:
            yield statement
        before = value
