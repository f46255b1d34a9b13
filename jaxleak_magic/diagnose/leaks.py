"""From the hooks of a finished run to the leaks in it: the one place where live tracers are looked at.

Every function here drops its live objects before it returns; what goes out is plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.detect.traceback_tracers import concretized_dead_tracer, dead_tracer, exception_chain
from jaxleak_magic.diagnose.describing import describe
from jaxleak_magic.diagnose.errors import describe_error, error_kind
from jaxleak_magic.diagnose.kept_tracers import VERDICT_ORDER, Found, is_of_earlier_run, kept_by_user, kept_tracers
from jaxleak_magic.diagnose.model import (
    ErrorInfo,
    Leak,
)
from jaxleak_magic.diagnose.run_facts import RunFacts
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.diagnose.trace_stack import (
    Places,
    created_place,
)
from jaxleak_magic.diagnose.used_by_error import promoted, running_rule, used_by_error


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
    consequence = None if error is None else _consequence(found, error, check, namespace, extra_roots, places)
    if consequence is not None and not any(each is consequence for each in found):
        found = [each for each in found if each.verdict == "leak"] + [consequence]
    run = RunFacts(check, places, checked_file, namespace, located or {})
    groups = _grouped(found, check, places)
    leaks: list[Leak] = []
    cause: Leak | None = None
    for group in sorted(groups, key=lambda g: VERDICT_ORDER[g[0].verdict]):
        leaks.append(describe(len(leaks) + 1, group, run))
        if consequence is not None and any(each is consequence for each in group):
            cause = leaks[-1]
    info = None if error is None else describe_error(error, places, cause)
    found.clear()
    groups.clear()
    consequence = None
    return tuple(leaks), info


def _consequence(
    found: Sequence[Found],
    error: BaseException,
    check: LeakCheck,
    namespace: Mapping[str, Any],
    extra_roots: Mapping[str, Any],
    places: Places,
) -> Found | None:
    """The leak whose consequence an exception is: one that was found, or the value that the failing code used."""
    kinds = {error_kind(each) for each in exception_chain(error)}
    dead: object | None = None
    if "unexpected_tracer" in kinds:
        dead = dead_tracer(error, check.census)
    elif "concretization" in kinds and check.ran and check.census.available:
        # Only where all births of the run were seen is a trace without one known to be of an earlier run.
        dead = concretized_dead_tracer(error, check.census)
    if dead is None:
        return None
    trace = _jax.trace_of(dead)
    known = next((each for each in found if each.verdict == "leak" and each.trace is trace), None)
    if known is not None:
        return known
    cause = promoted(found, dead, check, places)
    if cause is None and is_of_earlier_run(trace, check):
        cause = kept_by_user(dead, check, namespace, extra_roots)
    if cause is None:
        cause = used_by_error(dead, error, check, namespace, extra_roots, places)
    if cause.paths[0].steps and cause.paths[0].steps[0].kind == "closure_cell":
        cause.rule_place = running_rule(error, check, places)
    return cause


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
