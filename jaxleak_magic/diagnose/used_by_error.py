"""Who handed a dead tracer to the code that failed with it: read from the frames of the exception."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import CodePoint
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.traceback_tracers import frames_of, raised_in_custom_rule
from jaxleak_magic.diagnose.kept_tracers import PATHS_PER_TRACER, Found
from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.diagnose.referrers import (
    CALLER,
    LAST_CALLER,
    function_name,
    is_callers,
    namespace_and_module_roots,
    owner_of_module,
    owner_of_step,
)
from jaxleak_magic.diagnose.roles import rule_place
from jaxleak_magic.diagnose.storage import bare
from jaxleak_magic.diagnose.syntax import FunctionNode, first_line
from jaxleak_magic.diagnose.trace_stack import Places, created_place, file_of
from jaxleak_magic.heap import Path, Root, Step, captured_beside, find_holders, frame_locals
from jaxleak_magic.heap.objects import class_module, class_name, instance_dict
from jaxleak_magic.heap.paths import LIBRARY, USER_FRAME


def promoted(found: Sequence[Found], dead: object, check: LeakCheck, places: Places) -> Found | None:
    """A tracer that only a cache holds, through a closure of the user's, is a leak once the code fails for it."""
    for each in found:
        closures = [p for p in each.paths if p.steps[0].kind == "closure_cell" and _is_users(p.steps[0], check)]
        if closures and (each.tracer is dead or each.trace is _jax.trace_of(dead)):
            step = _innermost_user(closures[0].steps[0], places)
            held = _captured_with(each.tracer, closures[0].steps[0])
            return Found(each.tracer, each.trace, [_path_of(step), *closures], "leak", from_error=True, held=held)
    return None


def _innermost_user(step: Step, places: Places) -> Step:
    """The function inside the closure that really uses the variable, where the closure only passes it on to one."""
    if step.filename is None or step.line is None:
        return step
    function = places.definition(step.filename, step.line, function_name(step))
    if function is None:
        return step
    users = places.syntax(step.filename).nested_users(bare(step.name), function)
    return _syntax_step(bare(step.name), users[0], step.filename, places) if len(users) == 1 else step


def _is_users(step: Step, check: LeakCheck) -> bool:
    return owner_of_step(step, check.owners) == "user"


def used_by_error(
    dead: object,
    error: BaseException,
    check: LeakCheck,
    namespace: Mapping[str, Any],
    extra_roots: Mapping[str, Any],
    places: Places,
) -> Found:
    """Who handed a dead tracer to the code that failed: a running closure, an object that has one, a local."""
    trace = _jax.trace_of(dead)
    found = _running_closure(dead, trace, error, check)
    if found is None:
        found = _written_variable(dead, trace, error, check, places)
    if found is None:
        found = _held_in_frames(dead, trace, error, check, namespace, extra_roots)
    if found is None:
        found = _only_capturing_function(dead, trace, check, places)
    if found is None:
        found = _held_in_frames(dead, trace, error, check, namespace, extra_roots, by_library=True)
    if found is None:
        found = _local_variable(dead, trace, error, check)
    return found or Found(dead, trace, [Path((), None, None, None, False, 0)], "leak", from_error=True)


def _running_closure(dead: object, trace: object, error: BaseException, check: LeakCheck) -> Found | None:
    """The user's innermost function on the traceback that has the tracer as a free variable."""
    classes = set(map(id, _jax.tracer_classes()))
    for frame in frames_of(error):
        code = frame.f_code
        if check.owners(code) != "user" or not code.co_freevars:
            continue
        values = frame_locals(frame)
        for name in code.co_freevars:
            step = _frame_step("closure_cell", name, "function", code)
            if values.get(name) is dead:
                others = {other: values[other] for other in code.co_freevars if id(type(values.get(other))) in classes}
                return Found(dead, trace, [_path_of(step)], "leak", True, {name: dead, **others})
            attribute = _attribute_that_is(values.get(name), dead)
            if attribute is not None:
                return Found(dead, trace, [_path_of(attribute, step)], "leak", True, {bare(attribute.name): dead})
    return None


def _written_variable(
    dead: object, trace: object, error: BaseException, check: LeakCheck, places: Places
) -> Found | None:
    """A variable of a running function that the transformed function assigned (``nonlocal``).

    In a loop the variable holds the value of the last turn, and the code fails with that of an earlier one: a tracer
    that the same function made on the same line.
    """
    birth = check.census.birth_of(trace)
    if birth is None or birth.function is None or check.owners(birth.function) != "user":
        return None
    writer = birth.function
    node = places.definition(writer.co_filename, writer.co_firstlineno, writer.co_name)
    if node is None:
        return None
    declared = {name for each in ast.walk(node) if isinstance(each, ast.Nonlocal) for name in each.names}
    made_at = created_place(dead, trace, check.census, places)[0]
    for frame in frames_of(error):
        code = frame.f_code
        names = declared.intersection(writer.co_freevars, (*code.co_cellvars, *code.co_freevars))
        if not names or check.owners(code) != "user":
            continue
        values = frame_locals(frame)
        for name in sorted(names, key=lambda name: values.get(name) is not dead):
            value = values.get(name)
            its_trace = _jax.trace_of(value)
            its_birth = None if its_trace is None else check.census.birth_of(its_trace)
            if its_birth is None or its_birth.function is not writer:
                continue
            if value is dead or created_place(value, its_trace, check.census, places)[0] == made_at:
                step = _frame_step("closure_cell", name, "function", writer)
                return Found(dead, trace, [_path_of(step)], "leak", True, {name: dead})
    return None


def running_rule(error: BaseException, check: LeakCheck, places: Places) -> Place | None:
    """Where the innermost custom rule of the user's that is running was given to JAX, or None where none is running."""
    for frame in frames_of(error):
        code = frame.f_code
        if check.owners(code) == "user":
            place = rule_place(_frame_step("closure_cell", "", "function", code), places)
            if place is not None:
                return place
    return None


def _attribute_that_is(holder: object, value: object) -> Step | None:
    """The attribute of an object of a user's class that is ``value``, read without running the class's code."""
    attributes = instance_dict(holder)
    if attributes is None:
        return None
    name = next((name for name, each in list(attributes.items()) if each is value and type(name) is str), None)
    cls = type(holder)
    return None if name is None else Step("attribute", name, class_name(cls), class_module(cls) or "", class_name(cls))


def _only_capturing_function(dead: object, trace: object, check: LeakCheck, places: Places) -> Found | None:
    """By syntax: the one nested function that uses the variable to which the value was assigned."""
    created, is_argument = created_place(dead, trace, check.census, places)
    filename = file_of(created, places)
    if created is None or filename is None or is_argument:
        return None
    syntax = places.syntax(filename)
    statement = syntax.statement_at(created.line)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    around = None if statement is None else syntax.function_around(statement)
    if not isinstance(target, ast.Name) or around is None:
        return None
    users = syntax.nested_users(target.id, around)
    if len(users) != 1:
        return None
    step = _syntax_step(target.id, users[0], filename, places)
    return Found(dead, trace, [_path_of(step)], "leak", True, {target.id: dead}, by_syntax=True)


def _syntax_step(name: str, function: FunctionNode, filename: str, places: Places) -> Step:
    called = getattr(function, "name", "<lambda>")
    line = first_line(function)
    raw = line + line - places.sources.line_in_text(filename, line)
    return Step("closure_cell", name, "function", None, f"{called}()", filename, raw, called)


def _local_variable(dead: object, trace: object, error: BaseException, check: LeakCheck) -> Found | None:
    """The user's innermost function on the traceback that has the tracer as a local variable, and its running line."""
    for frame in frames_of(error):
        if check.owners(frame.f_code) != "user":
            continue
        name = next((name for name, value in frame_locals(frame).items() if value is dead), None)
        if name is not None:
            point = CodePoint(frame.f_code, frame.f_lasti)
            path = _path_of(_frame_step("frame_local", name, "frame", frame.f_code))
            return Found(
                dead, trace, [path], "leak", True, {name: dead}, used_at=point, in_rule=raised_in_custom_rule(error)
            )
    return None


def _frame_step(kind: Any, name: str, holder_type: str, code: CodeType) -> Step:
    return Step(
        kind, name, holder_type, None, f"{code.co_name}()", code.co_filename, code.co_firstlineno, code.co_qualname
    )


def _path_of(*steps: Step) -> Path:
    return Path(steps, "frame", steps[-1].holder, 2, True, len(steps))


def _held_in_frames(
    dead: object,
    trace: object,
    error: BaseException,
    check: LeakCheck,
    namespace: Mapping[str, Any],
    extra_roots: Mapping[str, Any],
    by_library: bool = False,
) -> Found | None:
    """The object in the frames of the traceback, or anywhere else, through which the tracer came along.

    With ``by_library`` an object of a library's that only its own running functions reach, too.
    """
    roots = _frame_roots(trace, error, check)
    roots += namespace_and_module_roots(namespace, extra_roots, check.owners)
    barriers = [*_jax.carrier_classes(), TracebackType, FrameType]
    result = find_holders([dead], roots, barriers=barriers, per_target=8)
    roots.clear()
    own = [path for path in result.paths[0] if path.steps and _error_rank(path, check)[0] < 2]
    if by_library:
        own = [path for path in result.paths[0] if path.steps and _is_librarys_attribute(path.steps[0], check)]
    if not own:
        return None
    best = sorted(own, key=lambda path: _error_rank(path, check))
    held = _captured_with(dead, best[0].steps[0]) if best[0].steps[0].kind == "closure_cell" else {}
    return Found(dead, trace, best[:PATHS_PER_TRACER], "leak", from_error=True, held=held)


def _captured_with(dead: object, step: Step) -> dict[str, object]:
    """All tracers that the function of a closure step closes over, by the names of its free variables."""
    classes = set(map(id, _jax.tracer_classes()))
    captured = captured_beside(dead, step.filename, step.qualname)
    return {name: value for name, value in captured.items() if id(type(value)) in classes}


def _frame_roots(trace: object, error: BaseException, check: LeakCheck) -> list[Root]:
    """The local variables of the frames of the traceback.

    The tracer itself is a local of many frames, and an operand in lists of JAX's own: what explains is the object that
    brought it along. To functions that were running when the transform was called, their locals are what the namespace
    is to a cell; the outermost got the value first.
    """
    tracers = set(map(id, _jax.tracer_classes()))
    frames = frames_of(error)[::-1]
    outside = _frames_around(trace, frames, check)
    roots: list[Root] = []
    for depth, frame in enumerate(frames):
        code = frame.f_code
        users = check.owners(code) == "user"
        is_caller = users and depth < outside and code.co_name != "<module>"
        locals_ = frame_locals(frame).items()
        values = {n: v for n, v in locals_ if not (id(type(v)) in tracers if is_caller else _is_operand(v, tracers))}
        rank = min(CALLER + depth, LAST_CALLER) if is_caller else USER_FRAME if users else LIBRARY
        roots.append(
            Root(values, f"{code.co_name}()", "frame", rank, code.co_filename, code.co_firstlineno, code.co_qualname)
        )
    return roots


def _frames_around(trace: object, frames: Sequence[FrameType], check: LeakCheck) -> int:
    """How many frames, of the outermost first, were running before a transform was called."""
    birth = check.census.birth_of(trace)
    if birth is None or birth.user is None:
        return 0
    calling = birth.user.code
    return next((depth + 1 for depth, frame in enumerate(frames) if frame.f_code is calling), len(frames))


def _is_librarys_attribute(step: Step, check: LeakCheck) -> bool:
    return step.kind == "attribute" and owner_of_step(step, check.owners) == "library"


def _is_operand(value: object, tracers: set[int]) -> bool:
    if type(value) in (list, tuple):
        return any(id(type(each)) in tracers for each in list(value)[:200])  # type: ignore[call-overload]
    return id(type(value)) in tracers


def _error_rank(path: Path, check: LeakCheck) -> tuple[int, int, int]:
    """0: a closure of the user's; 1: an object that the user's code reaches; 2: JAX's and libraries' own plumbing.

    Then the namespace, the user's functions around the transform from the outermost on, other frames; then short ways.
    """
    first = path.steps[0]
    order = (path.root_rank or 0) if is_callers(path) else 0 if path.complete and path.root_kind != "frame" else 10_000
    rank = order, len(path.steps)
    user = owner_of_step(first, check.owners) == "user"
    if path.root_kind == "module" and owner_of_module(path.root_name, check.owners) == "jax":
        return (2, *rank)
    if first.kind == "closure_cell" and user:
        return (0, 0, len(path.steps))
    if first.kind in ("attribute", "item", "key", "partial", "bound_method") and (
        path.root_kind != "frame" or is_callers(path)
    ):
        return (1, *rank)
    return (1 if user and first.kind == "attribute" else 2, *rank)
