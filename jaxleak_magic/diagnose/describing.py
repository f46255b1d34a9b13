"""One leak from its live evidence to plain data: where it was made and stored, its kind, its name, its story."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from functools import cached_property

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.diagnose.earlier_runs import EarlierStory, computed_place, earlier_story
from jaxleak_magic.diagnose.explanation import StoryFacts, explain
from jaxleak_magic.diagnose.kept_tracers import VERDICT_ORDER, Found, is_of_earlier_run
from jaxleak_magic.diagnose.locating import watch_key
from jaxleak_magic.diagnose.mechanism import MechanismFacts, mechanism
from jaxleak_magic.diagnose.model import (
    CapturedValue,
    ClassFact,
    FunctionFact,
    Holder,
    Leak,
    LeakFacts,
    Link,
    Place,
    TraceLevel,
    TracerInfo,
)
from jaxleak_magic.diagnose.names import library_names, library_objects
from jaxleak_magic.diagnose.origins import Origin, Origins
from jaxleak_magic.diagnose.pytrees import classes_with_static_parts
from jaxleak_magic.diagnose.referrers import (
    access_expression,
    function_name,
    is_callers,
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
from jaxleak_magic.diagnose.run_facts import RunFacts
from jaxleak_magic.diagnose.storage import Storage, StorageFinder, bare
from jaxleak_magic.diagnose.trace_stack import (
    Places,
    escaped_place,
    file_of,
    trace_stack,
)
from jaxleak_magic.diagnose.tracer_info import tracer_info
from jaxleak_magic.heap import Path, Step
from jaxleak_magic.heap.objects import class_name

_DIFFERENTIATING = ("JVPTrace", "LinearizeTrace", "JaxprTrace")


def describe(number: int, group: Sequence[Found], run: RunFacts) -> Leak:
    """The leak of a group of tracers with one root cause.

    Args:
        number: id of the leak in its report.
        group: the tracers; the best of them stands for all.
        run: the run.
    """
    best = min(group, key=lambda f: (VERDICT_ORDER[f.verdict], f.paths[0].root_rank or 0, len(f.paths[0].steps)))
    return _Story(best, group, run).leak(number)


class _Story:
    """The pieces of a leak's story, each made when it is asked for; lives as long as `describe` runs."""

    def __init__(self, best: Found, group: Sequence[Found], run: RunFacts) -> None:
        self.best = best
        self.group = group
        self.run = run
        self.places = run.places
        self.census = run.check.census

    def leak(self, number: int) -> Leak:
        created = self.created
        return Leak(
            number,
            self.best.verdict,
            len(self.group),
            self.mechanism,
            self.tracer,
            self.variable,
            self.stack,
            created,
            self.storage.place,
            self.escaped,
            self.holder,
            self._chains(),
            explain(self._story_facts()),
            facts=self._leak_facts(),
            earlier_run=self.is_earlier,
            created_as_argument=self.is_argument and created is not None,
        )

    # where it was made

    @cached_property
    def tracer(self) -> TracerInfo:
        return tracer_info(self.best.tracer)

    @cached_property
    def is_earlier(self) -> bool:
        return is_of_earlier_run(self.best.trace, self.run.check)

    @cached_property
    def origins(self) -> Origins:
        return Origins(self.best, self.run)

    @cached_property
    def origin(self) -> Origin:
        # What a library keeps of its own accord is not made of the variable that was passed to it.
        return self.origins.own if self.found_storage.how == "library" else self.origins.passed

    @cached_property
    def earlier(self) -> EarlierStory | None:
        if not self.is_earlier:
            return None
        origin = self.origin
        return earlier_story(
            self.steps, self.storage, origin.place, origin.is_argument, self.places, self.run.checked_file
        )

    @property
    def created(self) -> Place | None:
        if self.earlier is not None:
            return self.earlier.created
        return self.origin.place or computed_place(self.steps, self.storage, self.places)

    @property
    def is_argument(self) -> bool:
        return self.origin.is_argument if self.earlier is None else self.earlier.is_argument

    # where its trace ended

    @cached_property
    def escaped(self) -> Place | None:
        if self.is_earlier and self.earlier is not None:
            return self.earlier.escaped
        return escaped_place(self.best.trace, self.census, self.places)

    @cached_property
    def stack(self) -> tuple[TraceLevel, ...]:
        stack = trace_stack(self.best.trace, self.census, self.places)
        if self.earlier is not None and self.earlier.traced is not None and stack and stack[-1].function is None:
            return (*stack[:-1], dataclasses.replace(stack[-1], function=self.earlier.traced))
        return stack

    # where it was stored

    @cached_property
    def path(self) -> Path:
        """The best path; where no statement can be seen that stored the value on its way, the next of which one can."""
        first, *others = self.best.paths
        if self.best.used_at is not None or self._is_explained(first):
            return first
        return next((path for path in others if self._is_explained(path)), first)

    def _is_explained(self, path: Path) -> bool:
        if not path.steps or _users_closures([path], self.run.check) or is_history(path):
            return True
        storage = self._written_on(path)
        return storage.place is not None and (storage.how != "returned" or _came_out_by_return(storage, path))

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.path.steps

    @cached_property
    def closures(self) -> list[Step]:
        return _users_closures([self.path], self.run.check)

    @cached_property
    def found_storage(self) -> Storage:
        """What path and syntax tell, before the roles of the functions on the way are known."""
        best = self.best
        if best.used_at is not None:
            return Storage(self.places.of_point(best.used_at), "used", next(iter(best.held), None))
        librarys = any(owner_of_step(step, self.run.check.owners) == "library" for step in self.steps)
        if best.from_error and not self.closures and librarys:
            return Storage(self.origins.own.place, "library", None)  # kept while the library ran the user's line
        found = self._written_on(self.path)
        if found.how == "returned" and not _came_out_by_return(found, self.path):
            by_library = not self.closures and owner_of_step(self.steps[0], self.run.check.owners) == "library"
            found = dataclasses.replace(found, place=None, how="library" if by_library else "unknown")
        return dataclasses.replace(found, place=self.origins.own.place) if found.how == "library" else found

    def _written_on(self, path: Path) -> Storage:
        return self._storage_finder(path.steps).find(path.steps, given=self.best.from_error and not is_callers(path))

    def _storage_finder(self, steps: Sequence[Step]) -> StorageFinder:
        created = self.origins.passed.place
        created_file = file_of(self.origins.own.place, self.places)
        escaped = escaped_place(self.best.trace, self.census, self.places)
        escaped_file = file_of(escaped, self.places)
        at_top = escaped is not None and escaped.function is None
        return StorageFinder(
            self.places,
            self._filenames(created_file, steps),
            created,
            created_file,
            self.origins.traced,
            (escaped_file, escaped.line) if escaped is not None and escaped_file is not None and at_top else None,
            self.origins.from_library,
        )

    def _filenames(self, created_file: str | None, steps: Sequence[Step]) -> list[str]:
        """The user's texts in which the storing statement may stand, the likeliest first."""
        traced_file = self.origins.traced[0] if self.origins.traced else None
        found = [created_file, traced_file, *(step.filename for step in steps), self.run.checked_file]
        found += list(self.places.sources.filenames())
        return [name for name in dict.fromkeys(found) if name and self.places.owners.of_file(name) == "user"]

    @cached_property
    def rules(self) -> list[Place]:
        """Where functions on the way were made rules of a custom derivative."""
        if self.best.rule_place is not None:
            return [self.best.rule_place]
        # A closure that failed may be called by a rule: then the longer paths run through that rule.
        paths = self.best.paths if self.best.from_error else [self.path]
        closures = _users_closures(paths, self.run.check)
        return [place for step in closures if (place := rule_place(step, self.places)) is not None]

    @cached_property
    def judged_storage(self) -> Storage:
        """The storage from which the mechanism is judged."""
        storage = self.found_storage
        seen_at = self.run.located.get(watch_key(access_expression(self.path) or ""))
        if storage.place is None and seen_at is not None:
            place = self.places.of_line(*seen_at, None, None)
            storage = dataclasses.replace(storage, place=place, filename=seen_at[0])
        return dataclasses.replace(storage, place=self.rules[0]) if self.rules else storage

    @cached_property
    def storage(self) -> Storage:
        storage = self.judged_storage
        if is_history(self.path):
            return _last_expression(self.run.checked_file, self.places)
        if self.best.verdict == "exception":
            return Storage(storage.place, storage.how, bare(self.steps[0].name) or None)
        if self.mechanism == "pytree_static_field":
            flatten = flatten_place(self.steps, self.places)
            return storage if flatten is None else dataclasses.replace(storage, place=flatten)
        return storage

    # what kind of mistake it is, and what the user calls the value

    @cached_property
    def came_out_by_return(self) -> bool:
        return _came_out_by_return(self.judged_storage, self.path)

    @cached_property
    def mechanism(self) -> str:
        verdict = self.best.verdict
        if is_history(self.path):
            return "debugger_or_ipython"
        if verdict == "exception":
            kept_frame = any(step.kind == "frame_local" and step.type == "frame" for step in self.steps)
            return "debugger_or_ipython" if kept_frame else "exception_traceback"
        name = self._mechanism_by_facts()
        return "jax_internal_cache" if verdict == "library_cache" and name != "custom_vjp_closure" else name

    def _mechanism_by_facts(self) -> str:
        storage = self.judged_storage
        return mechanism(
            MechanismFacts(
                self.steps,
                storage,
                self.tracer,
                custom_rule=self.best.in_rule or bool(self.rules),
                given_to_transform=self.best.from_error
                and bool(self.closures)
                and storage.how != "nonlocal"
                and not is_callers(self.path),
                came_out_by_return=self.came_out_by_return,
                random_value=is_random(self.origin.place, self.tracer, self.places) or names_a_seed(storage),
                callback=any(given_to_callback(step, self.places) for step in self.closures)
                or stored_by_callback(storage, self.places),
            )
        )

    @cached_property
    def variable(self) -> str | None:
        passed = self.origin.variable
        if passed is not None and not self.closures and self.mechanism not in ("pytree_static_field", "rng_state"):
            return passed
        name = _variable(self.mechanism, self.storage, self.steps)
        if name is None and self.origins.traces_users_function():
            return _jax.argument_name(self.best.tracer) or None
        return name

    # who keeps it

    @cached_property
    def holder(self) -> Holder | None:
        return _holder(self.path, self.run.check)

    def _chains(self) -> tuple[tuple[Link, ...], ...]:
        owners = self.run.check.owners
        others = [p for p in self.best.paths if p is not self.path and not is_ipythons_frame(p, owners)]
        shown = [self.path, *others]
        return tuple(dict.fromkeys(links_of(p, self.places) for p in shown if p.steps))

    @cached_property
    def held(self) -> dict[str, object]:
        """The tracers of the group by the free variables that hold them."""
        first = [(each, each.paths[0].steps[0]) for each in self.group if each.paths[0].steps]
        users = [pair for pair in first if owner_of_step(pair[1], self.run.check.owners) == "user"]
        cells = {bare(step.name): each.tracer for each, step in users if step.kind == "closure_cell"}
        return {**self.best.held, **cells}

    @cached_property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*([self.variable] if self.variable else []), *self.held]))

    # for the explanation and for rewriting

    def _story_facts(self) -> StoryFacts:
        access = access_expression(self.path)
        keeper = access or (self.holder.name if self.holder is not None else None)
        pytree_class = _pytree_class(self.steps) if self.came_out_by_return else None
        return StoryFacts(
            self.mechanism,
            self.best.verdict,
            self.variable,
            self.tracer,
            self.stack,
            self.created,
            self.is_argument,
            self.storage.place,
            self.escaped,
            keeper=f"`{keeper}`" if keeper else None,
            closure=f"`{function_name(self.closures[0])}`" if self.closures else None,
            pytree_class=f"`{pytree_class}`" if pytree_class else None,
            others=tuple(name for name in self.names if name != self.variable),
            library=self.holder.name if self.holder else None,
            earlier=self.is_earlier,
            check_at=self.earlier.check_at if self.earlier else None,
            history=is_history(self.path),
            constant=bool(self.origins.constant),
            locatable=self.storage.place is None
            and self.best.verdict == "leak"
            and not self.is_earlier
            and access is not None,
        )

    def _leak_facts(self) -> LeakFacts:
        attributes = [step for step in self.steps if step.kind in ("attribute", "class_attribute")]
        traces = [trace for level in self.stack for trace in level.traces]
        return LeakFacts(
            captured=tuple(_function_fact(step, self.places) for step in self.closures),
            all_captured=tuple(self.names) if self.closures else (),
            captured_by_syntax=self.best.by_syntax,
            attributes=tuple(_class_fact(step, self.places) for step in attributes),
            in_aux_data=self.came_out_by_return,
            differentiated=any(trace in _DIFFERENTIATING for trace in traces),
            access=access_expression(self.path),
            values=tuple(_captured_value(n, self.held.get(n)) for n in self.names) if self.closures else (),
            constant=self.origins.constant,
            names=library_names(self.run.namespace, self.run.check.owners),
            objects=library_objects(self.run.namespace, self.run.check.owners),
        )


def _users_closures(paths: Sequence[Path], check: LeakCheck) -> list[Step]:
    steps = [step for path in paths for step in path.steps if step.kind == "closure_cell"]
    return [step for step in steps if owner_of_step(step, check.owners) == "user"]


def _came_out_by_return(storage: Storage, path: Path) -> bool:
    """Whether a transform returned the object that keeps the value: no statement inside wrote it anywhere."""
    outlives = path.root_kind in ("namespace", "history", "module") or is_callers(path)
    if storage.how not in ("returned", "closure") or not outlives:
        return False
    known = classes_with_static_parts()
    if known is not None and not any(step.type in known for step in path.steps):
        return False
    return any(s.kind in ("attribute", "pytree_aux", "item") for s in path.steps[:-1])


def _variable(name: str, storage: Storage, steps: Sequence[Step]) -> str | None:
    """The user's name for the value; of a static field the field's, of a random state the state's."""
    if name == "pytree_static_field":
        attributes = [s for s in steps if s.kind == "attribute" and s.name]
        if attributes:
            return bare(attributes[-1].name)
    if name == "rng_state" and storage.how == "library" and steps and steps[0].kind == "attribute":
        return bare(steps[0].name)
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


def _captured_value(name: str, value: object | None) -> CapturedValue:
    if _jax.trace_of(value) is None:
        return CapturedValue(name, "unknown" if value is None else class_name(type(value)))
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


def _last_expression(checked_file: str | None, places: Places) -> Storage:
    """The last expression of the checked text: IPython keeps its value."""
    body = [] if checked_file is None else places.syntax(checked_file).tree.body
    if checked_file is None or not body or not isinstance(body[-1], ast.Expr):
        return Storage(None, "unknown", None)
    last = body[-1]
    value = last.value.id if isinstance(last.value, ast.Name) else None
    return Storage(places.in_text(checked_file, last.lineno, last.col_offset, None), "returned", value)
