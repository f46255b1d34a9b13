"""From the hooks of a finished run to the leaks in it: the one place where live tracers are looked at.

Every function here drops its live objects before it returns; what goes out is plain data.
"""

from __future__ import annotations

import ast
import dataclasses
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import CodePoint
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.sweep import live_tracers
from jaxleak_magic.detect.traceback_tracers import (
    dead_tracer,
    exception_chain,
    frames_of,
    raised_in_custom_rule,
)
from jaxleak_magic.diagnose.errors import describe_error, error_kind
from jaxleak_magic.diagnose.explanation import StoryFacts, explain
from jaxleak_magic.diagnose.mechanism import MechanismFacts, mechanism
from jaxleak_magic.diagnose.model import (
    CapturedValue,
    ClassFact,
    ErrorInfo,
    FunctionFact,
    Holder,
    Leak,
    LeakFacts,
    Place,
    Verdict,
)
from jaxleak_magic.diagnose.names import library_names
from jaxleak_magic.diagnose.referrers import (
    access_expression,
    links_of,
    namespace_and_module_roots,
    owner_by_file_or_module,
    owner_of_module,
    owner_of_step,
)
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.diagnose.storage import Storage, StorageFinder, bare
from jaxleak_magic.diagnose.syntax import FunctionNode, Syntax, first_line, last_name
from jaxleak_magic.diagnose.trace_stack import Places, created_place, escaped_place, made_in_library, trace_stack
from jaxleak_magic.diagnose.tracer_info import tracer_info
from jaxleak_magic.heap import Path, Root, Step, context_roots, find_holders, frame_locals, frame_roots

PATHS_PER_TRACER = 4


@dataclass
class _Found:
    """One leaked tracer with its paths: live for as long as `find_leaks` runs, and no longer."""

    tracer: object
    trace: object
    paths: list[Path]
    verdict: Verdict
    from_error: bool = False
    held: dict[str, object] = field(default_factory=dict[str, object])
    used_at: CodePoint | None = None
    in_rule: bool = False
    rule_place: Place | None = None


def find_leaks(
    check: LeakCheck,
    sources: SourceBook,
    namespace: Mapping[str, Any],
    extra_roots: Mapping[str, Any],
    error: BaseException | None,
    checked_file: str | None,
) -> tuple[tuple[Leak, ...], ErrorInfo | None]:
    """The leaks of a run whose hooks are out again, and its exception as plain data.

    Args:
        check: the finished run.
        sources: the user's texts.
        namespace: the user's namespace.
        extra_roots: named holders such as ``Out``.
        error: what the code raised, or None.
        checked_file: ``co_filename`` of the checked text, or None.
    """
    places = Places(sources, check.owners)
    found = _kept_tracers(check, namespace, extra_roots, error)
    dead = None
    if error is not None and any(error_kind(each) == "unexpected_tracer" for each in exception_chain(error)):
        dead = dead_tracer(error, check.census)
    consequence: _Found | None = None
    if dead is not None and error is not None:
        consequence = next((f for f in found if f.verdict == "leak" and f.trace is _jax.trace_of(dead)), None)
        if consequence is None:
            consequence = _promoted(found, dead, check, places) or _used_by_error(
                dead, error, check, namespace, extra_roots, places
            )
            if consequence.paths[0].steps and consequence.paths[0].steps[0].kind == "closure_cell":
                consequence.rule_place = _running_rule(error, check, places)
            found = [f for f in found if f.verdict == "leak" and f is not consequence] + [consequence]
    groups = _grouped(found, check, places)
    leaks: list[Leak] = []
    leak_id: int | None = None
    for group in sorted(groups, key=lambda g: _ORDER[g[0].verdict]):
        leaks.append(_describe(len(leaks) + 1, group, check, places, checked_file, namespace))
        if consequence is not None and any(each is consequence for each in group):
            leak_id = leaks[-1].id
    info = None if error is None else describe_error(error, places, leak_id)
    found.clear()
    groups.clear()
    dead = consequence = None
    return tuple(leaks), info


_ORDER: dict[Verdict, int] = {"leak": 0, "transient": 1, "library_cache": 2, "exception": 3}


def _kept_tracers(
    check: LeakCheck, namespace: Mapping[str, Any], extra_roots: Mapping[str, Any], error: BaseException | None
) -> list[_Found]:
    """Tracers of this run that something keeps, each with its best paths; carried ones are left out."""
    census = check.census
    if not census.alive():
        return []
    gc.collect()
    traces = [trace for birth in census.alive() if (trace := birth.ref()) is not None]
    tracers = live_tracers(traces) if traces else []
    if not tracers:
        return []
    roots = namespace_and_module_roots(namespace, extra_roots, check.owners) + frame_roots() + context_roots()
    carriers = _jax.carrier_classes()
    owner_of = owner_by_file_or_module(check.owners)
    result = find_holders(
        tracers, roots, barriers=[*carriers, TracebackType, FrameType], per_target=PATHS_PER_TRACER, owner_of=owner_of
    )
    found: list[_Found] = []
    rest: list[object] = []
    for tracer, paths in zip(tracers, result.paths, strict=True):
        complete = [path for path in paths if path.complete]
        if complete:
            found.append(_Found(tracer, _jax.trace_of(tracer), complete, _verdict(complete, check)))
        else:
            rest.append(tracer)
    if rest and error is None:
        result = find_holders(rest, roots, barriers=carriers, per_target=1, owner_of=owner_of)
        for tracer, paths in zip(rest, result.paths, strict=True):
            complete = [path for path in paths if path.complete]
            if complete:
                found.append(_Found(tracer, _jax.trace_of(tracer), complete, "exception"))
    del tracers, traces, rest, roots
    return found


def _promoted(found: Sequence[_Found], dead: object, check: LeakCheck, places: Places) -> _Found | None:
    """A tracer that only a cache holds, through a closure of the user's, is a leak once the code fails for it."""
    for each in found:
        closures = [p for p in each.paths if p.steps[0].kind == "closure_cell" and _is_users(p.steps[0], check)]
        if closures and (each.tracer is dead or each.trace is _jax.trace_of(dead)):
            step = _innermost_user(closures[0].steps[0], places)
            return _Found(each.tracer, each.trace, [_path_of(step), *closures], "leak", from_error=True)
    return None


def _innermost_user(step: Step, places: Places) -> Step:
    """The function inside the closure that really uses the variable, where the closure only passes it on to one."""
    if step.filename is None or step.line is None:
        return step
    function = places.definition(step.filename, step.line, _function_name(step))
    if function is None:
        return step
    users = places.syntax(step.filename).nested_users(bare(step.name), function)
    return _syntax_step(bare(step.name), users[0], step.filename, places) if len(users) == 1 else step


def _is_users(step: Step, check: LeakCheck) -> bool:
    return owner_of_step(step, check.owners) == "user"


def _used_by_error(
    dead: object,
    error: BaseException,
    check: LeakCheck,
    namespace: Mapping[str, Any],
    extra_roots: Mapping[str, Any],
    places: Places,
) -> _Found:
    """Who handed a dead tracer to the code that failed: a running closure, an object that has one, a local."""
    trace = _jax.trace_of(dead)
    found = _running_closure(dead, trace, error, check)
    if found is None:
        found = _held_in_frames(dead, trace, error, check, namespace, extra_roots)
    if found is None:
        found = _only_capturing_function(dead, trace, check, places)
    if found is None:
        found = _local_variable(dead, trace, error, check)
    return found or _Found(dead, trace, [Path((), None, None, None, False, 0)], "leak", from_error=True)


def _running_closure(dead: object, trace: object, error: BaseException, check: LeakCheck) -> _Found | None:
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
                return _Found(dead, trace, [_path_of(step)], "leak", True, {name: dead, **others})
            attribute = _attribute_that_is(values.get(name), dead)
            if attribute is not None:
                return _Found(dead, trace, [_path_of(attribute, step)], "leak", True, {bare(attribute.name): dead})
    return None


def _running_rule(error: BaseException, check: LeakCheck, places: Places) -> Place | None:
    """Where the innermost custom rule of the user's that is running was given to JAX, or None where none is running."""
    for frame in frames_of(error):
        code = frame.f_code
        if check.owners(code) == "user":
            place = _rule_place(_frame_step("closure_cell", "", "function", code), places)
            if place is not None:
                return place
    return None


def _attribute_that_is(holder: object, value: object) -> Step | None:
    """The attribute of an object of a user's class that is ``value``, read without running the class's code."""
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return None
    if type(attributes) is not dict:
        return None
    name = next((name for name, each in list(attributes.items()) if each is value and type(name) is str), None)
    cls = type(holder)
    return None if name is None else Step("attribute", name, cls.__name__, cls.__module__, cls.__name__)


def _only_capturing_function(dead: object, trace: object, check: LeakCheck, places: Places) -> _Found | None:
    """By syntax: the one nested function that uses the variable to which the value was assigned."""
    created, is_argument = created_place(dead, trace, check.census, places)
    filename = _file_of(created, places)
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
    return _Found(
        dead, trace, [_path_of(_syntax_step(target.id, users[0], filename, places))], "leak", True, {target.id: dead}
    )


def _syntax_step(name: str, function: FunctionNode, filename: str, places: Places) -> Step:
    called = getattr(function, "name", "<lambda>")
    line = first_line(function)
    raw = line + line - places.sources.line_in_text(filename, line)
    return Step("closure_cell", name, "function", None, f"{called}()", filename, raw, called)


def _local_variable(dead: object, trace: object, error: BaseException, check: LeakCheck) -> _Found | None:
    """The user's innermost function on the traceback that has the tracer as a local variable, and its running line."""
    for frame in frames_of(error):
        if check.owners(frame.f_code) != "user":
            continue
        name = next((name for name, value in frame_locals(frame).items() if value is dead), None)
        if name is not None:
            point = CodePoint(frame.f_code, frame.f_lasti)
            path = _path_of(_frame_step("frame_local", name, "frame", frame.f_code))
            return _Found(
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
) -> _Found | None:
    """The object in the frames of the traceback, or anywhere else, through which the tracer came along."""
    tracers = set(map(id, _jax.tracer_classes()))
    roots: list[Root] = []
    for frame in frames_of(error):
        # The tracer itself is a local of many frames: what explains is the object in them that brought it along.
        values = {name: v for name, v in frame_locals(frame).items() if not _is_operand(v, tracers)}
        code = frame.f_code
        rank = 2 if check.owners(code) == "user" else 5
        holder = f"{code.co_name}()"
        roots.append(Root(values, holder, "frame", rank, code.co_filename, code.co_firstlineno, code.co_qualname))
    roots += namespace_and_module_roots(namespace, extra_roots, check.owners)
    barriers = [*_jax.carrier_classes(), TracebackType, FrameType]
    result = find_holders([dead], roots, barriers=barriers, per_target=8)
    roots.clear()
    own = [path for path in result.paths[0] if path.steps and _error_rank(path, check)[0] < 2]
    if not own:
        return None
    best = sorted(own, key=lambda path: _error_rank(path, check))
    return _Found(dead, trace, best[:PATHS_PER_TRACER], "leak", from_error=True)


def _is_operand(value: object, tracers: set[int]) -> bool:
    if type(value) in (list, tuple):
        return any(id(type(each)) in tracers for each in list(value)[:200])  # type: ignore[call-overload]
    return id(type(value)) in tracers


def _error_rank(path: Path, check: LeakCheck) -> tuple[int, int]:
    """0: a closure of the user's; 1: an object that the user's code reaches; 2: JAX's and libraries' own plumbing."""
    first = path.steps[0]
    user = owner_of_step(first, check.owners) == "user"
    if path.root_kind == "module" and owner_of_module(path.root_name, check.owners) == "jax":
        return (2, len(path.steps))
    if first.kind == "closure_cell" and user:
        return (0, len(path.steps))
    if first.kind in ("attribute", "item", "partial", "bound_method") and path.root_kind != "frame":
        return (1, len(path.steps))
    return (1 if user and first.kind == "attribute" else 2, len(path.steps))


def _verdict(paths: Sequence[Path], check: LeakCheck) -> Verdict:
    """From the roots that hold it: what only a library's cache or a running function holds is no leak of the user's."""
    verdicts: list[Verdict] = [_path_verdict(path, check) for path in paths]
    return min(verdicts, key=lambda verdict: _ORDER[verdict])


def _path_verdict(path: Path, check: LeakCheck) -> Verdict:
    if path.root_kind in ("frame", "thread"):
        return "transient"
    if path.root_kind == "module" and not any(step.kind == "weak" for step in path.steps):
        owner = owner_of_module(path.root_name, check.owners)
        if owner == "jax" and not _is_callback(path.steps):
            return "library_cache"
        if owner == "library" and not any(owner_of_step(s, check.owners) == "user" for s in path.steps):
            return "library_cache"
    return "leak"


def _is_callback(steps: Sequence[Step]) -> bool:
    """Whether a host callback holds it: the compiled program will call it when the trace is long gone."""
    return any("callback" in (step.module or "") for step in steps)


def _grouped(found: Sequence[_Found], check: LeakCheck, places: Places) -> list[list[_Found]]:
    """One group for each root cause: the same function's closure, or the same place of creation and the same holder."""
    groups: dict[object, list[_Found]] = {}
    for each in found:
        first = each.paths[0].steps[0] if each.paths[0].steps else None
        created, _ = created_place(each.tracer, each.trace, check.census, places)
        where = None if created is None else (created.cell, created.file, created.line)
        if first is None:
            key: object = (id(each.trace), where)
        elif first.kind == "closure_cell":
            key = ("closure", first.filename, first.line, first.qualname, each.verdict)
        else:
            holder = tuple(s.name for s in each.paths[0].steps[-1:])
            key = (first.kind, where, holder, first.name if first.kind == "attribute" else None, each.verdict)
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def _describe(
    number: int,
    group: Sequence[_Found],
    check: LeakCheck,
    places: Places,
    checked_file: str | None,
    namespace: Mapping[str, Any],
) -> Leak:
    best = min(group, key=lambda f: (_ORDER[f.verdict], f.paths[0].root_rank or 0, len(f.paths[0].steps)))
    path = best.paths[0]
    census = check.census
    info = tracer_info(best.tracer)
    stack = trace_stack(best.trace, census, places)
    created, is_argument = created_place(best.tracer, best.trace, census, places)
    created_file = _file_of(created, places)
    birth = census.birth_of(best.trace)
    traced = _traced_function(birth, places)
    passed = _variable_passed_to_library(best.tracer, created, created_file, is_argument, places)
    if passed is not None:
        _, created, is_argument = passed
    filenames = _filenames(path.steps, created_file, checked_file, traced, places)
    finder = StorageFinder(places, filenames, created, created_file, traced)
    storage = finder.find(path.steps, given=best.from_error)
    if best.used_at is not None:
        storage = Storage(places.of_point(best.used_at), "used", next(iter(best.held), None))
    closures = [s for s in path.steps if s.kind == "closure_cell" and owner_of_step(s, check.owners) == "user"]
    rules = [place for step in closures if (place := _rule_place(step, places)) is not None]
    if rules or best.rule_place is not None:
        storage = dataclasses.replace(storage, place=rules[0] if rules else best.rule_place)
    rule = best.in_rule or bool(rules) or best.rule_place is not None
    returned = _came_out_by_return(storage, path)
    callback = any(_given_to_callback(step, places) for step in closures) or _stored_by_callback(storage, places)
    name = mechanism(
        MechanismFacts(
            path.steps,
            storage,
            info,
            custom_rule=rule,
            given_to_transform=best.from_error and bool(closures) and storage.how != "nonlocal",
            came_out_by_return=returned,
            random_value=_is_random(created, info, places) or _names_a_seed(storage),
            callback=callback,
        )
    )
    if best.verdict == "exception":
        name = "exception_traceback"
    elif best.verdict == "library_cache" and name not in ("custom_vjp_closure",):
        name = "jax_internal_cache"
    if name == "pytree_static_field":
        flatten = _flatten_place(path.steps, places)
        storage = storage if flatten is None else dataclasses.replace(storage, place=flatten)
    if best.from_error and best.used_at is None and not closures and any(_is_librarys(s, check) for s in path.steps):
        storage = Storage(created, "library", None)  # the library kept it while it ran the user's line
    variable = _variable(name, storage, path.steps)
    if passed is not None and not closures and name not in ("pytree_static_field", "rng_state"):
        variable = passed[0]
    variable = variable or _jax.argument_name(best.tracer) or None
    escaped = escaped_place(best.trace, census, places)
    pytree_class = _pytree_class(path.steps) if returned else None
    holder = _holder(path, check)
    keeper = access_expression(path) or (holder.name if holder is not None else None)
    closure_names = [_function_name(step) for step in closures]
    held = {**best.held, **_held_by_closures(group)}
    every: list[str] = [*([variable] if variable else []), *held]
    names = list(dict.fromkeys(every))
    explanation = explain(
        StoryFacts(
            name,
            best.verdict,
            variable,
            info,
            stack,
            created,
            is_argument,
            storage.place,
            escaped,
            f"`{keeper}`" if keeper else None,
            f"`{closure_names[0]}`" if closure_names else None,
            f"`{pytree_class}`" if pytree_class else None,
            tuple(n for n in names if n != variable),
            holder.name if holder else None,
        )
    )
    chains = tuple(dict.fromkeys(links_of(p, places) for p in best.paths if p.steps))
    facts = LeakFacts(
        captured=tuple(_function_fact(step, places) for step in closures),
        all_captured=tuple(names) if closures else (),
        attributes=tuple(_class_fact(s, places) for s in path.steps if s.kind in ("attribute", "class_attribute")),
        in_aux_data=returned,
        differentiated=any(t in ("JVPTrace", "LinearizeTrace", "JaxprTrace") for level in stack for t in level.traces),
        access=access_expression(path),
        values=tuple(_captured_value(each, held.get(each)) for each in names) if closures else (),
        names=library_names(namespace, check.owners),
    )
    return Leak(
        number,
        best.verdict,
        len(group),
        name,
        info,
        variable,
        stack,
        created,
        storage.place,
        escaped,
        holder,
        chains,
        explanation,
        facts=facts,
    )


def _variable_passed_to_library(
    tracer: object, created: Place | None, filename: str | None, is_argument: bool, places: Places
) -> tuple[str, Place, bool] | None:
    """The one local variable that the user passed to the library that made the value, and where it was set."""
    if created is None or filename is None or is_argument or not made_in_library(tracer, places):
        return None
    syntax = places.syntax(filename)
    statement = syntax.statement_at(created.line)
    function = None if statement is None else syntax.function_around(statement)
    if statement is None or function is None:
        return None
    found = syntax.local_origins(statement, function)
    if len(found) != 1:
        return None
    ((name, node),) = found.items()
    parameter = node is function
    return name, places.in_text(filename, node.lineno, node.col_offset, created.function), parameter


def _is_librarys(step: Step, check: LeakCheck) -> bool:
    return owner_of_step(step, check.owners) == "library"


def _traced_function(birth: Any, places: Places) -> tuple[str, FunctionNode] | None:
    if birth is None or birth.function is None or places.owners(birth.function) != "user":
        return None
    code = birth.function
    node = places.definition(code.co_filename, code.co_firstlineno, code.co_name)
    return None if node is None else (code.co_filename, node)


def _filenames(
    steps: Sequence[Step],
    created_file: str | None,
    checked_file: str | None,
    traced: tuple[str, FunctionNode] | None,
    places: Places,
) -> list[str]:
    found = [created_file, traced[0] if traced else None, *(s.filename for s in steps), checked_file]
    found += list(places.sources.filenames())
    return [name for name in dict.fromkeys(found) if name is not None and places.owners.of_file(name) == "user"]


def _file_of(place: Place | None, places: Places) -> str | None:
    """``co_filename`` of a place."""
    if place is None:
        return None
    for filename in places.sources.filenames():
        source = places.sources.get(filename)
        if source is not None and source.cell == place.cell and source.file == place.file:
            return filename
    return place.file


def _came_out_by_return(storage: Storage, path: Path) -> bool:
    """Whether a transform returned the object that keeps the value: no statement inside wrote it anywhere."""
    if storage.how not in ("returned", "closure") or path.root_kind not in ("namespace", "history", "module"):
        return False
    return any(s.kind in ("attribute", "pytree_aux", "item") for s in path.steps[:-1])


def _variable(name: str, storage: Storage, steps: Sequence[Step]) -> str | None:
    """The user's name for the value; of a static field the field's, of a random state the state's."""
    if name == "pytree_static_field":
        attributes = [s for s in steps if s.kind == "attribute" and s.name]
        if attributes:
            return bare(attributes[-1].name)
    if name == "rng_state" and isinstance(storage.statement, ast.Assign):
        target = _stored_target(storage.statement, steps)
        if target is not None:
            return target
    return storage.variable


def _stored_target(statement: ast.Assign, steps: Sequence[Step]) -> str | None:
    wanted = {bare(step.name) for step in steps if step.name}
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in wanted:
            return node.attr
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in wanted:
            return node.id
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant):
            return str(node.slice.value)
    return None


_RANDOM = ("random", "split", "fold_in", "PRNGKey", "key")


def _is_random(created: Place | None, info: Any, places: Places) -> bool:
    """Whether the value is a random key, or was made by splitting one: by its dtype or by the creating statement."""
    if info.dtype is not None and info.dtype.startswith("key<"):
        return True
    if created is None or created.source is None:
        return False
    is_raw_key = info.dtype == "uint32" and info.shape is not None and info.shape[-1:] == (2,)
    return is_raw_key and any(word in created.source for word in _RANDOM)


def _rule_place(step: Step, places: Places) -> Place | None:
    """Where a closure is made the primal or a rule of a custom derivative: decorated so, or given to ``defvjp``."""
    if step.filename is None or step.line is None:
        return None
    name = _function_name(step)
    node = places.definition(step.filename, step.line, name)
    if node is None:
        return None
    syntax = places.syntax(step.filename)
    if isinstance(node, ast.FunctionDef) and any(_mentions_rule(d) for d in node.decorator_list):
        return places.in_text(step.filename, node.lineno, node.col_offset, node.name)
    around = syntax.function_around(node) or syntax.tree
    for call in ast.walk(around):
        if not isinstance(call, ast.Call) or not _mentions_rule(call.func):
            continue
        for argument in call.args:
            if argument is node or (isinstance(argument, ast.Name) and argument.id == name):
                return places.in_text(step.filename, call.lineno, call.col_offset, None)
    return None


def _given_to_callback(step: Step, places: Places) -> bool:
    """Whether a function is an argument of ``jax.debug.callback``, ``pure_callback`` or ``io_callback``."""
    if step.filename is None or step.line is None:
        return False
    name = _function_name(step)
    node = places.definition(step.filename, step.line, name)
    return node is not None and _is_callback_argument(places.syntax(step.filename), node, name)


def _stored_by_callback(storage: Storage, places: Places) -> bool:
    """Whether the storing statement stands in a function that is given to a host callback."""
    if storage.filename is None or storage.statement is None or storage.place is None:
        return False
    syntax = places.syntax(storage.filename)
    write = next((w for w in syntax.writes if w.line == storage.statement.lineno and w.function is not None), None)
    if write is None or write.function is None:
        return False
    return _is_callback_argument(syntax, write.function, getattr(write.function, "name", "<lambda>"))


def _is_callback_argument(syntax: Syntax, function: FunctionNode, name: str) -> bool:
    for call in ast.walk(syntax.tree):
        if isinstance(call, ast.Call) and (last_name(call.func) or "").endswith("callback"):
            for argument in call.args:
                if argument is function or (isinstance(argument, ast.Name) and argument.id == name):
                    return True
    return False


def _names_a_seed(storage: Storage) -> bool:
    """Whether the statement writes a variable that is called a seed or a random state."""
    if not isinstance(storage.statement, ast.Assign):
        return False
    target = ast.unparse(storage.statement.targets[0]).lower()
    return any(word in target for word in ("seed", "rng", "prng"))


_RULES = ("custom_vjp", "custom_jvp", "custom_gradient", "defvjp", "defjvp", "defjvps", "def_fwd", "def_bwd", "def_jvp")


def _mentions_rule(node: ast.expr) -> bool:
    return any(
        getattr(part, "attr", getattr(part, "id", "")).removeprefix("filter_") in _RULES
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name)
    )


def _flatten_place(steps: Sequence[Step], places: Places) -> Place | None:
    """Where the pytree class puts its static part: the return of its hand-written flatten function, or None."""
    for step in reversed(steps):
        if step.kind != "attribute":
            continue
        name = step.type.rpartition(".")[2]
        for filename in places.sources.filenames():
            syntax = places.syntax(filename)
            flatten = _flatten_function(syntax, name)
            if flatten is None:
                continue
            if isinstance(flatten, ast.Lambda):
                return places.in_text(filename, flatten.lineno, flatten.col_offset, "<lambda>")
            returns = [n for n in ast.walk(flatten) if isinstance(n, ast.Return)]
            if len(returns) == 1:
                return places.in_text(filename, returns[0].lineno, returns[0].col_offset, flatten.name)
    return None


def _flatten_function(syntax: Syntax, class_name: str) -> ast.FunctionDef | ast.Lambda | None:
    for node in ast.walk(syntax.tree):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            found = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "tree_flatten"]
            if found:
                return found[0]
        if (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and (last_name(node.func) or "").startswith("register_pytree")
        ):
            first, flatten = node.args[:2]
            if not (isinstance(first, ast.Name) and first.id == class_name):
                continue
            if isinstance(flatten, ast.Lambda):
                return flatten
            if isinstance(flatten, ast.Name):
                return next(
                    (f for f in syntax.functions if isinstance(f, ast.FunctionDef) and f.name == flatten.id), None
                )
    return None


def _pytree_class(steps: Sequence[Step]) -> str | None:
    classes = [s for s in steps if s.kind == "attribute"]
    return classes[-1].holder if classes else None


def _holder(path: Path, check: LeakCheck) -> Holder | None:
    if not path.steps:
        return None
    root = path.steps[-1]
    owner = owner_of_step(root, check.owners)
    if path.root_kind == "namespace":
        owner = "user"
    elif path.root_kind == "history":
        owner = "ipython"
    elif path.root_kind == "module":
        owner = owner_of_module(path.root_name, check.owners)
    name = _function_name(root) if root.kind == "closure_cell" else root.name or root.holder
    return Holder(root.kind, name, owner)


def _function_name(step: Step) -> str:
    return (step.qualname or step.holder).rpartition(".")[2]


def _held_by_closures(group: Sequence[_Found]) -> dict[str, object]:
    """The tracers of a group by the free variables that hold them."""
    return {
        bare(each.paths[0].steps[0].name): each.tracer
        for each in group
        if each.paths[0].steps and each.paths[0].steps[0].kind == "closure_cell"
    }


def _captured_value(name: str, value: object | None) -> CapturedValue:
    if _jax.trace_of(value) is None:
        return CapturedValue(name, "unknown" if value is None else type(value).__name__)
    return CapturedValue(name, "tracer", tracer_info(value).dtype)


def _function_fact(step: Step, places: Places) -> FunctionFact:
    name = _function_name(step)
    place = None
    if step.filename is not None and step.line is not None:
        place = places.of_definition(step.filename, step.line, name, step.qualname)
    return FunctionFact(name, step.qualname or name, bare(step.name), place)


def _class_fact(step: Step, places: Places) -> ClassFact:
    place = None
    if step.filename is not None and step.line is not None and places.owners.of_file(step.filename) == "user":
        place = places.of_line(step.filename, step.line, None, step.qualname)
    return ClassFact(step.type.rpartition(".")[2], bare(step.name), place)
