"""One checked run, from the hooks going in to the finished report: what every door calls.

run = CheckedRun(sources, namespace)
run.start()
try:
    ...                       # the user's code
except BaseException as error:
    report = run.finish(error)
    raise
report = run.finish(None)
"""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxleak_magic.diagnose.model import Checked, Elapsed, ErrorInfo, Leak, Note, Report, SourceText
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.exits import failure_of

if TYPE_CHECKING:
    from jaxleak_magic.detect.run import LeakCheck
    from jaxleak_magic.diagnose.locating import StoreWatcher


LAST_ONLY = "Only the last exception and what is alive now were looked at; nothing was run again."
WATCHED_ONLY = (
    "The cell was only watched: leaks in functions that were compiled before it are not seen. "
    "Run it with %%leakcheck on its first line to check them too."
)


@dataclass(frozen=True)
class CheckOptions:
    """How a run is checked.

    Attributes:
        retrace: trace every function anew, also those compiled earlier (False: ``--keep-caches``).
        fixes: propose rewrites.
        locate: where the stored line cannot be determined, run the code a second time and watch.
        fast: only count the traces that outlive the run, without JAX's own check and without tracing anything anew.
        notes: look for what is no leak and still surprises (False: ``--no-notes``).
    """

    retrace: bool = True
    fixes: bool = True
    notes: bool = True
    fast: bool = False
    locate: bool = False


class CheckedRun:
    """A run under the check. ``start`` puts the hooks in, ``finish`` takes them out and explains what leaked.

    Args:
        sources: the texts of the cells and files known so far; may grow while the run goes on.
        namespace: the user's namespace, whose names are the first roots that the search tries.
        checked_file: ``co_filename`` under which the checked text is compiled, or None; may be set later.
        options: see `CheckOptions`.
        extra_roots: named objects that are holders in their own right, e.g. ``{"Out": out_dict}``.
        watched: expressions that reach kept values (``learners.schedule``); the run notes which line stores there.
        inside_function: what runs is a part of a running function of the user's, whose local variables outlive it.
    """

    def __init__(
        self,
        sources: SourceBook,
        namespace: Mapping[str, Any],
        checked_file: str | None = None,
        options: CheckOptions = CheckOptions(),
        extra_roots: Mapping[str, Any] | None = None,
        watched: Sequence[str] = (),
        inside_function: bool = False,
    ) -> None:
        self.sources = sources
        self.namespace = namespace
        self.checked_file = checked_file
        self.options = options
        self.extra_roots = extra_roots or {}
        self.watched = tuple(watched)
        self.inside_function = inside_function
        self._watcher: StoreWatcher | None = None
        self._unwatch = ExitStack()

        self._check: LeakCheck | None = None
        self._faults: list[str] = []
        self._started = 0.0
        self._run_seconds = 0.0

    def start(self) -> None:
        """Put the hooks in and enter ``jax.checking_leaks()``. Imports jax. Raises RuntimeError inside another run."""
        from jaxleak_magic.detect.run import LeakCheck

        check = LeakCheck(self.options.retrace, self.sources.filenames, census_only=self.options.fast)
        check.inside_function = self.inside_function
        self._check = check
        try:
            check.start()
            if self.watched:
                from jaxleak_magic.diagnose.locating import StoreWatcher

                self._watcher = StoreWatcher(self.watched, self.namespace, lambda code: check.owners(code) == "user")
                self._unwatch.enter_context(self._watcher.watching())
        except BaseException:  # also an interrupt that was held back until the hooks were in
            self.stop()
            raise
        self._started = time.perf_counter()

    @property
    def traces_seen(self) -> int:
        """How many traces were born in the run up to now; may be asked from any thread."""
        check = self._check
        return 0 if check is None else len(check.census.births)

    def stop(self) -> None:
        """Take every hook and flag back. Safe to call twice; called by `finish` first."""
        self._unwatch.close()
        if self._check is not None:
            self._run_seconds = self._run_seconds or time.perf_counter() - self._started
            self._check.stop()

    def finish(self, error: BaseException | None = None) -> Report:
        """Stop, find the leaks, explain them, and return the report; afterwards no tracer or trace is held.

        Args:
            error: what the code raised, or None. Nothing of it is kept.
        """
        from jaxleak_magic.diagnose.leaks import find_leaks

        check = self._check
        if check is None:
            raise RuntimeError("finish() was called before start()")
        self.stop()
        try:
            begun = time.perf_counter()
            located = self._watcher.found if self._watcher else None
            leaks, info = find_leaks(
                check, self.sources, self.namespace, self.extra_roots, error, self.checked_file, located
            )
            notes = self._notes(check, leaks, error) if self.options.notes and not self.options.fast else ()
            explained = time.perf_counter()
            source = None if self.checked_file is None else self.sources.get(self.checked_file)
            if self.options.fixes and source is not None:
                leaks = self._with_fixes(leaks, source)
                notes, info = self._with_other_fixes(notes, info, source)
            elapsed = Elapsed(self._run_seconds, 0.0, explained - begun, time.perf_counter() - explained)
            return self._report(check, leaks, info, notes, elapsed, source)
        finally:
            check.census.clear()
            self._check = None

    def located(self, report: Report, run_again: Callable[[], object]) -> Report:
        """The report with the stored lines that it lacks, from a second run of the same code (``--locate``).

        Args:
            report: the report of this run.
            run_again: runs the code again; what it raises is dropped, an exit or an interrupt too.

        Returns:
            the second run's report, or ``report`` with a word on it where that cannot be used.
        """
        second = self._watching_run(report)
        if second is None:
            return report
        word = "The second run did not leak in the same way, so its lines could not be used."
        try:
            again = second.run(run_again)
            if len(again.real_leaks) == len(report.real_leaks):
                return again
        except KeyboardInterrupt:
            word = "The second run was interrupted, so its lines could not be used."
        except Exception as problem:  # the first report is worth more than what the second would add
            word = f"The second run could not be checked: {type(problem).__name__}."
        checked = dataclasses.replace(report.checked, unchecked=(*report.checked.unchecked, word))
        return dataclasses.replace(report, checked=checked)

    def run(self, code: Callable[[], object]) -> Report:
        """Check a call from start to finish; what it raises is in the report, but for an interrupt, which is raised."""
        self.start()
        error: BaseException | None = None
        try:
            code()
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = failure_of(raised)
        finally:
            self.stop()
        try:
            return self.finish(error)
        finally:
            error = None  # its traceback refers to this frame

    def _watching_run(self, report: Report) -> CheckedRun | None:
        """A second run that watches where leaks are kept whose stored line is not known; None where there is none."""
        unknown = [leak.facts.access for leak in report.real_leaks if leak.stored is None and leak.facts.access]
        if not unknown:
            return None
        return CheckedRun(
            self.sources,
            self.namespace,
            self.checked_file,
            self.options,
            self.extra_roots,
            tuple(dict.fromkeys(unknown)),
            self.inside_function,
        )

    def _notes(self, check: LeakCheck, leaks: tuple[Leak, ...], error: BaseException | None) -> tuple[Note, ...]:
        if not check.census.births:
            return ()
        from jaxleak_magic.diagnose.notes import find_notes
        from jaxleak_magic.diagnose.trace_stack import Places

        try:
            return find_notes(check, Places(self.sources, check.owners), self.checked_file, leaks, error)
        except Exception as fault:  # a note is worth less than the report
            self._faults.append(f"Notes could not be made: {type(fault).__name__} inside jaxleak-magic.")
            return ()

    def _with_fixes(self, leaks: tuple[Leak, ...], source: SourceText) -> tuple[Leak, ...]:
        if not any(leak.verdict == "leak" for leak in leaks):
            return leaks
        from jaxleak_magic.rewrite import propose_fixes_together

        texts = self._texts()
        try:
            fixes = propose_fixes_together(leaks, texts, source)
            return tuple(dataclasses.replace(leak, fixes=own) for leak, own in zip(leaks, fixes, strict=True))
        except Exception as fault:  # a rewrite is worth less than the report
            self._faults.append(f"Rewrites could not be proposed: {type(fault).__name__} inside jaxleak-magic.")
            return leaks

    def _with_other_fixes(
        self, notes: tuple[Note, ...], info: ErrorInfo | None, source: SourceText
    ) -> tuple[tuple[Note, ...], ErrorInfo | None]:
        if not notes and info is None:
            return notes, info
        from jaxleak_magic.rewrite import propose_error_fixes, propose_note_fixes

        texts = self._texts()
        try:
            with_fixes = tuple(dataclasses.replace(n, fixes=propose_note_fixes(n, texts, source)) for n in notes)
            if info is not None and not info.fixes:
                info = dataclasses.replace(info, fixes=propose_error_fixes(info, texts, source))
            return with_fixes, info
        except Exception as fault:  # a rewrite is worth less than the report
            self._faults.append(f"Rewrites could not be proposed: {type(fault).__name__} inside jaxleak-magic.")
            return notes, info

    def explain(self, error: BaseException) -> Report | None:
        """The report of an exception of an unchecked run from its frames and what is alive; nothing is run.

        Args:
            error: an exception that was raised earlier. Nothing of it is kept.

        Returns:
            None where no traced value can be found in its frames: its text may tell more.
        """
        from jaxleak_magic.detect.run import LeakCheck
        from jaxleak_magic.diagnose.leaks import find_leaks

        check = LeakCheck(False, self.sources.filenames)
        begun = time.perf_counter()
        leaks, info = find_leaks(check, self.sources, self.namespace, self.extra_roots, error, None)
        if not leaks:
            return None
        place = None if info is None else info.place
        source = next(
            (t for t in self._texts() if place is not None and (t.cell, t.file) == (place.cell, place.file)), None
        )
        return self._of_what_is_alive(check, leaks, info, source, begun, LAST_ONLY)

    def explain_watched(self, check: LeakCheck, error: BaseException | None) -> Report | None:
        """The report of a run that was only watched; None where nothing of the user's keeps a traced value.

        Args:
            check: what the watch knows of the run (see `jaxleak_magic.detect.watch`).
            error: what the code raised, or None. Nothing of it is kept.
        """
        from jaxleak_magic.diagnose.leaks import find_leaks

        begun = time.perf_counter()
        leaks, info = find_leaks(check, self.sources, self.namespace, self.extra_roots, error, self.checked_file)
        if not any(leak.verdict == "leak" for leak in leaks):
            return None
        source = None if self.checked_file is None else self.sources.get(self.checked_file)
        return self._of_what_is_alive(check, leaks, info, source, begun, WATCHED_ONLY)

    def _of_what_is_alive(
        self,
        check: LeakCheck,
        leaks: tuple[Leak, ...],
        info: ErrorInfo | None,
        source: SourceText | None,
        begun: float,
        word: str,
    ) -> Report:
        """The report of a search without a checked run; ``word`` says what that leaves unchecked."""
        explained = time.perf_counter()
        if self.options.fixes and source is not None:
            leaks = self._with_fixes(leaks, source)
        elapsed = Elapsed(0.0, 0.0, explained - begun, time.perf_counter() - explained)
        report = self._report(check, leaks, info, (), elapsed, source)
        checked = dataclasses.replace(report.checked, unchecked=(word, *self._faults))
        return dataclasses.replace(report, checked=checked)

    def _texts(self) -> tuple[SourceText, ...]:
        return tuple(t for name in self.sources.filenames() if (t := self.sources.get(name)) is not None)

    def _report(
        self,
        check: LeakCheck,
        leaks: tuple[Leak, ...],
        info: ErrorInfo | None,
        notes: tuple[Note, ...],
        elapsed: Elapsed,
        source: SourceText | None,
    ) -> Report:
        import jax

        unchecked: list[str] = [*self._faults]
        if not check.retraced:
            how = "With --fast, functions" if self.options.fast else "Functions"
            unchecked.append(
                f"{how} that were compiled before this cell were not traced again, so leaks in them are not seen."
            )
        if not check.census.available:
            unchecked.append(
                "This version of JAX does not let traces be counted; only values still alive were looked for."
            )
        if source is not None and "checking_leaks(" in source.text:
            unchecked.append("The code's own jax.checking_leaks() did not raise: what leaked in it is in this report.")
        return Report(
            jax_version=jax.__version__,
            python_version=platform.python_version(),
            file=None if source is None else source.file,
            checked=Checked(
                check.checking_leaks,
                check.retraced,
                check.census.available,
                tuple(unchecked),
                check.compilations.programs,
                round(check.compilations.seconds, 6),
            ),
            leaks=leaks,
            error=info,
            notes=notes,
            elapsed=elapsed,
            source=source,
            sources=self._texts(),
        )
