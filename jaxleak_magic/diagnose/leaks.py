"""From the hooks of a finished run to the leaks in it: the one place where live tracers are looked at.

Every function here drops its live objects before it returns; what goes out is plain data.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.traceback_tracers import dead_tracer, exception_chain
from jaxleak_magic.diagnose.earlier_runs import computed_place, earlier_story
from jaxleak_magic.diagnose.errors import describe_error, error_kind
from jaxleak_magic.diagnose.explanation import StoryFacts, explain
from jaxleak_magic.diagnose.kept_tracers import VERDICT_ORDER, Found, is_of_earlier_run, kept_by_user, kept_tracers
from jaxleak_magic.diagnose.locating import watch_key
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
)
from jaxleak_magic.diagnose.names import library_names
from jaxleak_magic.diagnose.referrers import (
    access_expression,
    function_name,
    is_history,
    is_ipythons_frame,
    links_of,
    owner_of_module,
    owner_of_step,
)
from jaxleak_magic.diagnose.roles import (
    flatten_place,
    given_to_callback,
    is_random,
    names_a_seed,
    rule_place,
    stored_by_callback,
)
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.diagnose.storage import Storage, StorageFinder, bare
from jaxleak_magic.diagnose.syntax import FunctionNode
from jaxleak_magic.diagnose.trace_stack import (
    Places,
    created_place,
    escaped_place,
    file_of,
    made_in_library,
    trace_stack,
)
from jaxleak_magic.diagnose.tracer_info import tracer_info
from jaxleak_magic.diagnose.used_by_error import promoted, running_rule, used_by_error
from jaxleak_magic.heap import Path, Step


def find_leaks(
    check: LeakCheck,
    sources: SourceBook,
    namespace: Mapping[str, Any],
    extra_roots: Mapping[str, Any],
    error: BaseException | None,
    checked_file: str | None,
    located: Mapping[str, tuple[str, int]] | None = None,
) -> tuple[tuple[Leak, ...], ErrorInfo | None]:
    """The leaks of a run whose hooks are out again, and its exception as plain data.

    Args:
        check: the finished run.
        sources: the user's texts.
        namespace: the user's namespace.
        extra_roots: named holders such as ``Out``.
        error: what the code raised, or None.
        checked_file: ``co_filename`` of the checked text, or None.
        located: lines that were seen storing, by the expression that reaches the kept value (``--locate``).
    """
    places = Places(sources, check.owners)
    found = kept_tracers(check, namespace, extra_roots, error)
    dead = None
    if error is not None and any(error_kind(each) == "unexpected_tracer" for each in exception_chain(error)):
        dead = dead_tracer(error, check.census)
    consequence: Found | None = None
    if dead is not None and error is not None:
        consequence = next((f for f in found if f.verdict == "leak" and f.trace is _jax.trace_of(dead)), None)
        if consequence is None:
            consequence = promoted(found, dead, check, places)
            if consequence is None and is_of_earlier_run(_jax.trace_of(dead), check):
                consequence = kept_by_user(dead, check, namespace, extra_roots)
            if consequence is None:
                consequence = used_by_error(dead, error, check, namespace, extra_roots, places)
            if consequence.paths[0].steps and consequence.paths[0].steps[0].kind == "closure_cell":
                consequence.rule_place = running_rule(error, check, places)
            found = [f for f in found if f.verdict == "leak" and f is not consequence] + [consequence]
    groups = _grouped(found, check, places)
    leaks: list[Leak] = []
    cause: Leak | None = None
    for group in sorted(groups, key=lambda g: VERDICT_ORDER[g[0].verdict]):
        leaks.append(_describe(len(leaks) + 1, group, check, places, checked_file, namespace, located or {}))
        if consequence is not None and any(each is consequence for each in group):
            cause = leaks[-1]
    info = None if error is None else describe_error(error, places, cause)
    found.clear()
    groups.clear()
    dead = consequence = None
    return tuple(leaks), info


def _grouped(found: Sequence[Found], check: LeakCheck, places: Places) -> list[list[Found]]:
    """One group for each root cause: the same function's closure, or the same place of creation and the same holder."""
    groups: dict[object, list[Found]] = {}
    for each in found:
        first = each.paths[0].steps[0] if each.paths[0].steps else None
        created, _ = created_place(each.tracer, each.trace, check.census, places)
        where = None if created is None else (created.cell, created.file, created.line)
        if first is None:
            key: object = (id(each.trace), where)
        elif each.verdict == "exception":  # one exception keeps every local variable of its frames
            key = ("frames", each.paths[0].steps[-1].name, each.paths[0].root_name)
        elif first.kind == "closure_cell":
            key = ("closure", first.filename, first.line, first.qualname, each.verdict)
        else:
            holder = tuple(s.name for s in each.paths[0].steps[-1:])
            key = (first.kind, where, holder, first.name if first.kind == "attribute" else None, each.verdict)
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def _describe(
    number: int,
    group: Sequence[Found],
    check: LeakCheck,
    places: Places,
    checked_file: str | None,
    namespace: Mapping[str, Any],
    located: Mapping[str, tuple[str, int]],
) -> Leak:
    best = min(group, key=lambda f: (VERDICT_ORDER[f.verdict], f.paths[0].root_rank or 0, len(f.paths[0].steps)))
    path = best.paths[0]
    census = check.census
    info = tracer_info(best.tracer)
    stack = trace_stack(best.trace, census, places)
    created, is_argument = created_place(best.tracer, best.trace, census, places)
    created_file = file_of(created, places)
    birth = census.birth_of(best.trace)
    traced = _traced_function(birth, places)
    earlier = is_of_earlier_run(best.trace, check)
    passed = _variable_passed_to_library(best.tracer, created, created_file, is_argument, places)
    if passed is not None:
        _, created, is_argument = passed
    filenames = _filenames(path.steps, created_file, checked_file, traced, places)
    escaped = escaped_place(best.trace, census, places)
    escaped_file = file_of(escaped, places)
    at_top = escaped is not None and escaped.function is None
    ended = (escaped_file, escaped.line) if escaped is not None and escaped_file is not None and at_top else None
    finder = StorageFinder(places, filenames, created, created_file, traced, ended)
    storage = finder.find(path.steps, given=best.from_error)
    if best.used_at is not None:
        storage = Storage(places.of_point(best.used_at), "used", next(iter(best.held), None))
    seen_at = located.get(watch_key(access_expression(path) or ""))
    if storage.place is None and seen_at is not None:
        storage = dataclasses.replace(storage, place=places.of_line(*seen_at, None, None), filename=seen_at[0])
    closures = _users_closures([path], check)
    # A closure that failed may be called by a rule: then the longer paths run through that rule.
    on_the_way = _users_closures(best.paths, check) if best.from_error else closures
    rules = [place for step in on_the_way if (place := rule_place(step, places)) is not None]
    if rules or best.rule_place is not None:
        storage = dataclasses.replace(storage, place=rules[0] if rules else best.rule_place)
    rule = best.in_rule or bool(rules) or best.rule_place is not None
    returned = _came_out_by_return(storage, path)
    callback = any(given_to_callback(step, places) for step in closures) or stored_by_callback(storage, places)
    name = mechanism(
        MechanismFacts(
            path.steps,
            storage,
            info,
            custom_rule=rule,
            given_to_transform=best.from_error and bool(closures) and storage.how != "nonlocal",
            came_out_by_return=returned,
            random_value=is_random(created, info, places) or names_a_seed(storage),
            callback=callback,
        )
    )
    if best.verdict == "exception":
        kept_frame = any(step.kind == "frame_local" and step.type == "frame" for step in path.steps)
        name = "debugger_or_ipython" if kept_frame else "exception_traceback"
        storage = Storage(storage.place, storage.how, bare(path.steps[0].name) or None)
    elif best.verdict == "library_cache" and name not in ("custom_vjp_closure",):
        name = "jax_internal_cache"
    if name == "pytree_static_field":
        flatten = flatten_place(path.steps, places)
        storage = storage if flatten is None else dataclasses.replace(storage, place=flatten)
    if is_history(path):
        name = "debugger_or_ipython"
        storage = _last_expression(checked_file, places)
    if best.from_error and best.used_at is None and not closures and any(_is_librarys(s, check) for s in path.steps):
        storage = Storage(created, "library", None)  # the library kept it while it ran the user's line
    variable = _variable(name, storage, path.steps)
    if passed is not None and not closures and name not in ("pytree_static_field", "rng_state"):
        variable = passed[0]
    if variable is None and traced is not None:
        variable = _jax.argument_name(best.tracer) or None
    check_at = None
    if earlier:
        story = earlier_story(path.steps, storage, created, is_argument, places, checked_file)
        created, is_argument, escaped, check_at = story.created, story.is_argument, story.escaped, story.check_at
        if story.traced is not None and stack and stack[-1].function is None:
            stack = (*stack[:-1], dataclasses.replace(stack[-1], function=story.traced))
    elif created is None:
        created = computed_place(path.steps, storage, places)
    pytree_class = _pytree_class(path.steps) if returned else None
    holder = _holder(path, check)
    keeper = access_expression(path) or (holder.name if holder is not None else None)
    closure_names = [function_name(step) for step in closures]
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
            earlier,
            check_at,
            is_history(path),
            storage.place is None and best.verdict == "leak" and not earlier and access_expression(path) is not None,
        )
    )
    shown = [p for p in best.paths if p is path or not is_ipythons_frame(p, check.owners)]
    chains = tuple(dict.fromkeys(links_of(p, places) for p in shown if p.steps))
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
        earlier_run=earlier,
        created_as_argument=is_argument and created is not None,
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


def _last_expression(checked_file: str | None, places: Places) -> Storage:
    """The last expression of the checked text: IPython keeps its value."""
    body = [] if checked_file is None else places.syntax(checked_file).tree.body
    if checked_file is None or not body or not isinstance(body[-1], ast.Expr):
        return Storage(None, "unknown", None)
    last = body[-1]
    value = last.value.id if isinstance(last.value, ast.Name) else None
    return Storage(places.in_text(checked_file, last.lineno, last.col_offset, None), "returned", value)


def _users_closures(paths: Sequence[Path], check: LeakCheck) -> list[Step]:
    steps = [step for path in paths for step in path.steps if step.kind == "closure_cell"]
    return [step for step in steps if owner_of_step(step, check.owners) == "user"]


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
        return Holder(root.kind, f"{path.root_name}{root.name or ''}", "ipython")
    elif path.root_kind == "module":
        owner = owner_of_module(path.root_name, check.owners)
    name = function_name(root) if root.kind == "closure_cell" else root.name or root.holder
    return Holder(root.kind, name, owner)


def _held_by_closures(group: Sequence[Found]) -> dict[str, object]:
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
    name = function_name(step)
    place = None
    if step.filename is not None and step.line is not None:
        place = places.of_definition(step.filename, step.line, name, step.qualname)
    return FunctionFact(name, step.qualname or name, bare(step.name), place)


def _class_fact(step: Step, places: Places) -> ClassFact:
    place = None
    if step.filename is not None and step.line is not None and places.owners.of_file(step.filename) == "user":
        place = places.of_line(step.filename, step.line, None, step.qualname)
    return ClassFact(step.type.rpartition(".")[2], bare(step.name), place)
