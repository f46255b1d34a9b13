"""The tracers of a run that something keeps, with the paths to their holders and what that means for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.census import CodePoint
from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.diagnose.model import Place, Verdict
from jaxleak_magic.diagnose.referrers import (
    namespace_and_module_roots,
    owner_by_file_or_module,
    owner_of_module,
    owner_of_step,
    plumbing_classes,
)
from jaxleak_magic.heap import Path, Root, Step, context_roots, find_holders, frame_roots

PATHS_PER_TRACER = 4


@dataclass
class Found:
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
    by_syntax: bool = False


VERDICT_ORDER: dict[Verdict, int] = {"leak": 0, "transient": 1, "library_cache": 2, "exception": 3}


def kept_tracers(
    check: LeakCheck, namespace: Mapping[str, Any], extra_roots: Mapping[str, Any], error: BaseException | None
) -> list[Found]:
    """Tracers of this run that something keeps, each with its best paths; carried ones are left out."""
    tracers = check.tracers_left()
    if not tracers:
        return []
    found, rest = _holders_of(tracers, check, namespace, extra_roots)
    if rest and error is None:
        roots = _all_roots(check, namespace, extra_roots)
        owner_of = owner_by_file_or_module(check.owners)
        result = find_holders(rest, roots, barriers=_jax.carrier_classes(), per_target=1, owner_of=owner_of)
        for tracer, paths in zip(rest, result.paths, strict=True):
            complete = [path for path in paths if path.complete]
            if complete:
                found.append(Found(tracer, _jax.trace_of(tracer), complete, "exception"))
        del roots
    del tracers, rest
    return found


def is_of_earlier_run(trace: object, check: LeakCheck) -> bool:
    """Whether a trace was born before the checked run; False where births cannot be seen on this JAX."""
    known = trace is not None and check.census.available
    return check.census.birth_of(trace) is None and (known or not check.ran)


def kept_by_user(
    tracer: object, check: LeakCheck, namespace: Mapping[str, Any], extra_roots: Mapping[str, Any]
) -> Found | None:
    """The tracer with its best paths where something of the user's keeps it, else None."""
    found, _ = _holders_of([tracer], check, namespace, extra_roots)
    return found[0] if found and found[0].verdict == "leak" else None


def _holders_of(
    tracers: list[object], check: LeakCheck, namespace: Mapping[str, Any], extra_roots: Mapping[str, Any]
) -> tuple[list[Found], list[object]]:
    """Tracers that something but a traceback keeps, and the others."""
    result = find_holders(
        tracers,
        _all_roots(check, namespace, extra_roots),
        barriers=[*_jax.carrier_classes(), *plumbing_classes(), TracebackType, FrameType],
        per_target=PATHS_PER_TRACER,
        owner_of=owner_by_file_or_module(check.owners),
    )
    found: list[Found] = []
    rest: list[object] = []
    for tracer, paths in zip(tracers, result.paths, strict=True):
        complete = [path for path in paths if path.complete]
        if complete:
            found.append(Found(tracer, _jax.trace_of(tracer), complete, _verdict(complete, check)))
        else:
            rest.append(tracer)
    return found, rest


def _all_roots(check: LeakCheck, namespace: Mapping[str, Any], extra_roots: Mapping[str, Any]) -> list[Root]:
    return namespace_and_module_roots(namespace, extra_roots, check.owners) + frame_roots() + context_roots()


def _verdict(paths: Sequence[Path], check: LeakCheck) -> Verdict:
    """From the roots that hold it: what only a library's cache or a running function holds is no leak of the user's."""
    verdicts: list[Verdict] = [_path_verdict(path, check) for path in paths]
    return min(verdicts, key=lambda verdict: VERDICT_ORDER[verdict])


def _path_verdict(path: Path, check: LeakCheck) -> Verdict:
    if path.root_kind in ("frame", "thread"):
        return "leak" if check.inside_function and _is_around(path, check) else "transient"
    if path.root_kind == "module" and not any(step.kind == "weak" for step in path.steps):
        owner = owner_of_module(path.root_name, check.owners)
        if owner == "jax" and not _is_callback(path.steps):
            return "library_cache"
        if owner == "library" and not any(owner_of_step(s, check.owners) == "user" for s in path.steps):
            return "library_cache"
    return "leak"


def _is_around(path: Path, check: LeakCheck) -> bool:
    """Whether a variable of one of the user's functions around the checked code holds it."""
    return path.root_kind == "frame" and bool(path.steps) and owner_of_step(path.steps[-1], check.owners) == "user"


def _is_callback(steps: Sequence[Step]) -> bool:
    """Whether a host callback holds it: the compiled program will call it when the trace is long gone."""
    return any("callback" in (step.module or "") for step in steps)
