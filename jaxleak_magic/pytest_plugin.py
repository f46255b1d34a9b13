"""The pytest door: ``--leakcheck``, the markers ``leakcheck`` and ``leaks``, and the fixture ``leakcheck``.

pytest imports this module at every start: everything that is heavy is imported when a test is checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxleak_magic.checked_run import CheckedRun
    from jaxleak_magic.diagnose.model import Report
    from jaxleak_magic.report import LeakReport

_REPORT_ATTRIBUTE = "leakcheck"
"""Of a test's report, where its root causes stand as plain data; pytest-xdist sends it from a worker like the rest."""

_MARKERS = (
    "leakcheck: check this test for leaked JAX tracers, also without --leakcheck",
    "leaks(reason='', strict=None): this test is known to leak; strict fails it once it does not "
    "(default: the ini option strict_xfail)",
)

PROGRAMS_KEPT = 300
"""Programs compiled anew after which they are dropped; each takes 1 MB or so (JAX 0.10.2)."""

_programs = pytest.StashKey[int]()
_found = pytest.StashKey["list[dict[str, str]]"]()
_checked = pytest.StashKey[bool]()
_first_seen = pytest.StashKey["dict[str, str]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--leakcheck`` and ``--leakcheck-how``."""
    group = parser.getgroup("leakcheck", "leaked JAX tracers (jaxleak-magic)")
    group.addoption("--leakcheck", action="store_true", help="check every test for leaked JAX tracers")
    group.addoption(
        "--leakcheck-how",
        choices=("full", "keep-caches", "fast"),
        default="full",
        help="full (default): trace every function anew in each test; keep-caches: only what is not compiled yet, "
        "so that the first test which traces a function is the one that leaks; fast: only count what outlives a test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_first_seen] = {}


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test under the check where that is asked for; a leak fails it."""
    if not _is_wanted(item):
        return (yield)
    run = _run_for(item)
    run.start()
    result: object = None
    error: BaseException | None = None
    try:
        result = yield
    except Exception as raised:  # what is skipped, xfailed or interrupted passes through
        error = raised
    finally:
        run.stop()
    failure = None
    try:
        failure = _failure(item, run, error or _unittest_error(item)) or error
        if failure is not None:
            raise failure
        return result
    finally:
        error = failure = None  # their tracebacks refer to this frame


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the root causes on the report, and say so where a known leak is gone."""
    report = yield
    if call.when != "call":
        return report
    found = item.stash.get(_found, [])
    if found:
        setattr(report, _REPORT_ATTRIBUTE, found)
    known = _known_leak(item)
    if known is not None and report.passed and item.stash.get(_checked, False) and not found:
        reason, strict = known
        if strict:
            report.outcome = "failed"
            report.longrepr = f"[XPASS(strict)] no leak: {reason}"
        else:
            report.wasxfail = reason
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell each root cause once, with the tests that it fails."""
    failed = [
        (r.nodeid, c) for r in terminalreporter.stats.get("failed", []) for c in getattr(r, _REPORT_ATTRIBUTE, [])
    ]
    if not failed:
        return
    from jaxleak_magic.show.causes import Cause, cause_lines, seen_causes
    from jaxleak_magic.show.words import plural

    seen = seen_causes((nodeid, Cause(**cause)) for nodeid, cause in failed)
    tests = plural(len({nodeid for nodeid, _ in failed}), "test")
    terminalreporter.write_sep("=", f"leaked tracers: {tests}, {plural(len(seen), 'root cause')}")
    for each in seen:
        for line in cause_lines(each, "test"):
            terminalreporter.write_line(line)


@pytest.fixture
def leakcheck(request: pytest.FixtureRequest) -> Callable[..., contextlib.AbstractContextManager[LeakReport]]:
    """``with leakcheck() as report: ...`` checks a block and fails the test at its end if it leaked.

    It takes the options of `jaxleak_magic.checking`. A test that uses it is not checked as a whole.
    """
    item: pytest.Item = request.node

    @contextlib.contextmanager
    def block(**options: Any) -> Generator[LeakReport]:
        from jaxleak_magic.python_door import checking

        with checking(**{"fixes": False, "notes": False, **options}) as report:
            yield report
        failure = _failure_of(item, report.report)
        if failure is not None:
            raise failure

    return block


def _is_wanted(item: pytest.Item) -> bool:
    if "leakcheck" in getattr(item, "fixturenames", ()):
        return False
    return bool(item.config.getoption("leakcheck")) or item.get_closest_marker("leakcheck") is not None


def _run_for(item: pytest.Item) -> CheckedRun:
    from jaxleak_magic.checked_run import CheckedRun, CheckOptions
    from jaxleak_magic.diagnose.model import SourceText
    from jaxleak_magic.diagnose.sources import SourceBook

    book, file = SourceBook(), str(item.path)
    lines = linecache.getlines(file)
    if lines:
        book.add(file, SourceText("".join(lines), file=os.path.relpath(file, item.config.rootpath)))
    how = item.config.getoption("--leakcheck-how")
    options = CheckOptions(retrace=how == "full", fixes=False, notes=False, fast=how == "fast")
    return CheckedRun(book, _namespace(item), file, options)


def _namespace(item: pytest.Item) -> dict[str, Any]:
    """What outlives a test as a notebook's variables outlive a cell: its module's, its fixtures, and its object."""
    module: dict[str, Any] = getattr(getattr(item, "module", None), "__dict__", {})
    found = {name: value for name, value in module.items() if not name.startswith("__")}  # __loader__: all of pytest
    found |= {name: value for name, value in getattr(item, "funcargs", {}).items() if name != "request"}
    instance = getattr(item, "instance", None)
    return found if instance is None else {**found, "self": instance}


def _failure(item: pytest.Item, run: CheckedRun, error: BaseException | None) -> BaseException | None:
    """What the test is to fail with because of a leak, or None; nothing of ours may fail it."""
    from jaxleak_magic.own_errors import say_internal_error

    try:
        report = run.finish(error)
    except Exception as problem:
        say_internal_error(f"{item.nodeid} was not checked", problem)
        return None
    return _failure_of(item, report)


def _failure_of(item: pytest.Item, report: Report) -> BaseException | None:
    """The exception for a report with leaks: a known leak is xfailed, an error of the test's own stays what it is."""
    from jaxleak_magic.show.causes import causes_of

    item.stash[_checked] = True
    _drop_programs(item.config, report)
    causes = causes_of(report)
    if not causes:
        return None
    item.stash[_found] = [dataclasses.asdict(cause) for cause in causes]
    known = _known_leak(item)
    by_leak = report.error is None or report.error.leak_id is not None
    if known is not None and by_leak and not item.config.getoption("runxfail"):
        if _unittest_error(item) is not None:
            item._excinfo = None  # pyright: ignore[reportAttributeAccessIssue] - of pytest's TestCaseFunction
        return pytest.xfail.Exception(known[0])
    text = _text(item, report)
    if report.error is not None:
        item.add_report_section("call", "leakcheck", text)
        return None
    return pytest.fail.Exception(text, pytrace=False)


def _drop_programs(config: pytest.Config, report: Report) -> None:
    """Drop what was compiled anew before it fills the memory: no later check would find and use it again."""
    config.stash[_programs] = config.stash.get(_programs, 0) + report.checked.compiled
    if config.stash[_programs] > PROGRAMS_KEPT:
        import jax

        jax.clear_caches()
        config.stash[_programs] = 0


def _text(item: pytest.Item, report: Report) -> str:
    """The whole report, or for root causes that an earlier test had already, a line for each."""
    from jaxleak_magic.show.causes import causes_of
    from jaxleak_magic.show.text import render_text

    seen, causes = item.config.stash[_first_seen], causes_of(report)
    if any(cause.key not in seen for cause in causes):
        for cause in causes:
            seen.setdefault(cause.key, item.nodeid)
        return render_text(report)
    return "\n".join(f"{c.sentence}.\n  {c.place}\n  The whole report is at {seen[c.key]}." for c in causes)


def _known_leak(item: pytest.Item) -> tuple[str, bool] | None:
    """Reason and strictness of the ``leaks`` marker, or None."""
    marker = item.get_closest_marker("leaks")
    if marker is None:
        return None
    strict = marker.kwargs.get("strict")
    if strict is None:
        strict = item.config.getini("xfail_strict")
    return str(marker.kwargs.get("reason", "") or next(iter(marker.args), "")), bool(strict)


def _unittest_error(item: pytest.Item) -> BaseException | None:
    """The error of a `unittest.TestCase`, which pytest notes on the item and does not raise."""
    noted = getattr(item, "_excinfo", None)
    return noted[0].value if noted else None
