"""From the hooks of a finished run to the leaks in it: the one place where live tracers are looked at.

Every function here drops its live objects before it returns; what goes out is plain data.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.sweep import live_tracers
from jaxleak_magic.detect.traceback_tracers import dead_tracer, exception_chain, frames_of
from jaxleak_magic.diagnose.errors import describe_error, error_kind
from jaxleak_magic.diagnose.explanation import StoryFacts, explain
from jaxleak_magic.diagnose.mechanism import MechanismFacts, mechanism
from jaxleak_magic.diagnose.model import (
    ClassFact,
    ErrorInfo,
    FunctionFact,
    Holder,
    Leak,
    LeakFacts,
    Place,
    Verdict,
)
from jaxleak_magic.diagnose.referrers import (
    access_expression,
    links_of,
    namespace_and_module_roots,
    owner_of_module,
    owner_of_step,
)
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.diagnose.storage import Storage, StorageFinder, bare
from jaxleak_magic.diagnose.syntax import FunctionNode
from jaxleak_magic.diagnose.trace_stack import Places, created_place, escaped_place, trace_stack
from jaxleak_magic.diagnose.tracer_info import tracer_info
from jaxleak_magic.heap import Path, Root, Step, find_holders, frame_roots

PATHS_PER_TRACER = 4
_TRACERS_OF_AN_ERROR = 60
"""Tracers of the dead tracer's trace that are looked at when an error is explained; a cell has a handful."""


@dataclass
class _Found:
    """One leaked tracer with its paths: live for as long as `find_leaks` runs, and no longer."""

    tracer: object
    trace: object
    paths: list[Path]
    verdict: Verdict
    from_error: bool = False
    names: list[str] = field(default_factory=list)


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
            consequence = _used_by_error(dead, error, check, namespace, extra_roots)
            if consequence is not None:
                found = [f for f in found if f.verdict == "leak"] + [consequence]
    groups = _grouped(found, check, places)
    leaks: list[Leak] = []
    leak_id: int | None = None
    for group in sorted(groups, key=lambda g: _ORDER[g[0].verdict]):
        leaks.append(_describe(len(leaks) + 1, group, check, places, checked_file))
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
    roots = namespace_and_module_roots(namespace, extra_roots, check.owners) + frame_roots()
    carriers = _jax.carrier_classes()
    owner_of = lambda module, filename: owner_of_module(module, check.owners)  # noqa: E731
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


def _used_by_error(
    dead: object, error: BaseException, check: LeakCheck, namespace: Mapping[str, Any], extra_roots: Mapping[str, Any]
) -> _Found | None:
    """Who handed a dead tracer to the code that failed: a closure before anything else."""
    trace = _jax.trace_of(dead)
    frames = frames_of(error)
    roots = [Root(frame, frame.f_code.co_qualname, "frame", 2) for frame in frames]
    roots += namespace_and_module_roots(namespace, extra_roots, check.owners)
    siblings = [dead, *(t for t in live_tracers([trace]) if t is not dead)][:_TRACERS_OF_AN_ERROR]
    result = find_holders(siblings, roots, barriers=_jax.carrier_classes(), per_target=8)
    own = [path for path in result.paths[0] if path.steps]
    best = sorted(own, key=lambda path: _error_rank(path, check))
    if not best:
        best = [Path((), "frame", "", 2, False)]
    found = _Found(dead, trace, best[:PATHS_PER_TRACER], "leak", from_error=True)
    first = best[0].steps[0] if best[0].steps else None
    if first is not None and first.kind == "closure_cell":
        found.names = [
            bare(step.name)
            for paths in result.paths
            for path in paths
            for step in path.steps[:1]
            if step.kind == "closure_cell" and step.node == first.node
        ]
    del frames, roots, siblings
    return found


def _error_rank(path: Path, check: LeakCheck) -> tuple[int, int]:
    first = path.steps[0]
    user = owner_of_step(first, check.owners) == "user"
    if first.kind == "closure_cell":
        return (0 if user else 3, len(path.steps))
    if first.kind in ("attribute", "item", "partial", "bound_method"):
        return (1, len(path.steps))
    return (2 if user else 4, len(path.steps))


def _verdict(paths: Sequence[Path], check: LeakCheck) -> Verdict:
    """From the roots that hold it: what only a library's cache or a running function holds is no leak of the user's."""
    verdicts = [_path_verdict(path, check) for path in paths]
    return min(verdicts, key=lambda verdict: _ORDER[verdict])


def _path_verdict(path: Path, check: LeakCheck) -> Verdict:
    if path.root_kind in ("frame", "thread"):
        return "transient"
    if path.root_kind == "module":
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


def _describe(number: int, group: Sequence[_Found], check: LeakCheck, places: Places, checked_file: str | None) -> Leak:
    best = min(group, key=lambda f: (_ORDER[f.verdict], f.paths[0].root_rank, len(f.paths[0].steps)))
    path = best.paths[0]
    census = check.census
    info = tracer_info(best.tracer)
    stack = trace_stack(best.trace, census, places)
    created, is_argument = created_place(best.tracer, best.trace, census, places)
    created_file = _file_of(created, places)
    birth = census.birth_of(best.trace)
    traced = _traced_function(birth, places)
    filenames = _filenames(path.steps, created_file, checked_file, traced, places)
    finder = StorageFinder(places, filenames, created, created_file, traced)
    storage = finder.find(path.steps)
    closures = [s for s in path.steps if s.kind == "closure_cell" and owner_of_step(s, check.owners) == "user"]
    rule = any(_in_custom_rule(step, places) for step in closures)
    returned = _came_out_by_return(storage, path)
    name = mechanism(
        MechanismFacts(
            path.steps,
            storage,
            info,
            rule,
            best.from_error and bool(closures),
            returned,
            _is_random(created, info, places),
        )
    )
    if best.verdict == "exception":
        name = "exception_traceback"
    elif best.verdict == "library_cache" and name not in ("custom_vjp_closure",):
        name = "jax_internal_cache"
    variable = _variable(name, storage, path.steps, returned, finder, is_argument, traced)
    escaped = escaped_place(best.trace, census, places)
    pytree_class = _pytree_class(path.steps, check) if returned else None
    holder = _holder(path, check)
    keeper = access_expression(path) or (f"{holder.name}" if holder is not None else None)
    closure_names = [_function_name(step) for step in closures]
    names = list(dict.fromkeys([*([variable] if variable else []), *best.names, *_closure_names(group)]))
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
    if storage.how not in ("returned", "closure") or not path.steps:
        return False
    return path.steps[-1].kind in ("global", "frame_local", "item") and any(
        s.kind in ("attribute", "pytree_aux", "item") for s in path.steps[:-1]
    )


def _variable(
    name: str,
    storage: Storage,
    steps: Sequence[Step],
    returned: bool,
    finder: StorageFinder,
    is_argument: bool,
    traced: tuple[str, FunctionNode] | None,
) -> str | None:
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


def _in_custom_rule(step: Step, places: Places) -> bool:
    """Whether a closure is the primal or a rule of a custom derivative: decorated so, or given to ``defvjp``."""
    if step.filename is None or step.line is None:
        return False
    name = (step.qualname or "").rpartition(".")[2]
    node = places.definition(step.filename, step.line, name)
    if node is None:
        return False
    syntax = places.syntax(step.filename)
    if isinstance(node, ast.FunctionDef) and any(_mentions_rule(d) for d in node.decorator_list):
        return True
    around = syntax.function_around(node) or syntax.tree
    for call in ast.walk(around):
        if not isinstance(call, ast.Call) or not _mentions_rule(call.func):
            continue
        for argument in call.args:
            if argument is node or (isinstance(argument, ast.Name) and argument.id == name):
                return True
    return False


_RULES = ("custom_vjp", "custom_jvp", "custom_gradient", "defvjp", "defjvp", "defjvps", "def_fwd", "def_bwd", "def_jvp")


def _mentions_rule(node: ast.expr) -> bool:
    return any(
        getattr(part, "attr", getattr(part, "id", "")).removeprefix("filter_") in _RULES
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name)
    )


def _pytree_class(steps: Sequence[Step], check: LeakCheck) -> str | None:
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
    name = root.name or root.holder
    return Holder(root.kind, name, owner)


def _function_name(step: Step) -> str:
    return (step.qualname or step.holder).rpartition(".")[2]


def _closure_names(group: Sequence[_Found]) -> list[str]:
    return [
        bare(f.paths[0].steps[0].name) for f in group if f.paths[0].steps and f.paths[0].steps[0].kind == "closure_cell"
    ]


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
