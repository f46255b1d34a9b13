"""Runs cells and expressions under the check.

A cell that begins with ``%%leakcheck`` runs as an ordinary cell: an input transformer turns the magic's line into a
comment, ``pre_run_cell`` starts the check and ``post_run_cell`` ends it. So the value, ``_``, ``;``, top-level await,
line numbers and tracebacks are IPython's own. Where the magic stands inside another one (``%%time``, ``%%capture``)
there is no cell of its own to run, and the magic runs its body itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.utils.capture import capture_output

from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.errors import LeakError
from jaxleak_magic.exits import failure_of
from jaxleak_magic.heap.objects import is_a
from jaxleak_magic.last_expression import ends_with_semicolon, split_last_expression
from jaxleak_magic.magics.checked_cell import CheckedCell, find_magic_line, read_checked_cell
from jaxleak_magic.magics.engines import EngineReports
from jaxleak_magic.magics.options import MAGIC, MagicOptions, parse_options
from jaxleak_magic.magics.recording import CellInfo, CellRecorder
from jaxleak_magic.magics.showing import Presenter, forget_output
from jaxleak_magic.magics.watching import CellWatch
from jaxleak_magic.own_errors import say, say_internal_error
from jaxleak_magic.show.progress import StatusLine

StatusLines = Callable[[MagicOptions, Callable[[], int]], StatusLine | None]
"""Makes the status line of a check from its options and a count of the traces seen; None for none."""

_INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)


@dataclass
class _Running:
    """A cell that is running: IPython's event, the cell and, where it is checked, the check."""

    event: ExecutionInfo
    cell: CellInfo
    file: str | None = None
    run: CheckedRun | None = None
    options: MagicOptions = field(default_factory=MagicOptions)
    watched: bool = False
    by_engines: bool = False


class CellChecker:
    """The hooks in one shell, and the running cells.

    Args:
        shell: the shell whose cells are checked.
        present: shows a report; gets the report, the options and the raw cell (None for an expression).
        check_all: check every cell, not only those that begin with the magic.
    """

    def __init__(self, shell: InteractiveShell, present: Presenter, check_all: bool = False) -> None:
        self.recorder = CellRecorder(shell)
        self.check_all = check_all
        self.options = CheckOptions()
        self.present = present
        self.status_line: StatusLines = lambda options, traces: None
        self.last_report: Report | None = None
        self.watch: CellWatch | None = None
        self.engines = EngineReports(shell)
        self.present_engines: Callable[[Mapping[int, Report]], None] = lambda reports: None
        self._shell = shell
        self._cells: list[_Running] = []
        self._status: StatusLine | None = None
        self._transformer = _MagicLineToComment(self)

    def install(self) -> None:
        """Put the transformer and the two event callbacks in."""
        self._shell.input_transformer_manager.cleanup_transforms.insert(0, self._transformer)
        self._shell.events.register("pre_run_cell", self.pre_run_cell)
        self._shell.events.register("post_run_cell", self.post_run_cell)

    def uninstall(self) -> None:
        """Take them out again and end a check that is running."""
        transforms = self._shell.input_transformer_manager.cleanup_transforms
        if self._transformer in transforms:
            transforms.remove(self._transformer)
        for event, callback in (("pre_run_cell", self.pre_run_cell), ("post_run_cell", self.post_run_cell)):
            if callback in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, callback)
        self._drop(self._cells)
        self._cells = []
        if self.watch:
            self.watch.forget()
            with contextlib.suppress(RuntimeError):  # inside a check of another door: the hook stays, and does nothing
                self.stop_watching()

    def watch_cells(self, notify: Callable[[Report], None]) -> None:
        """Watch every cell from the next one on; a second call changes nothing. Raises RuntimeError inside a check.

        Args:
            notify: shows the line on a leak.
        """
        if self.watch:
            return
        watch = CellWatch(self.recorder.book, self._shell.user_ns, notify)
        if not watch.start():
            raise RuntimeError("this version of JAX does not let traces be counted")
        self.watch = watch

    def stop_watching(self) -> None:
        """Watch no more. Raises RuntimeError inside a check."""
        if self.watch:
            self.watch.stop()
            self.watch = None

    @property
    def inside_cell(self) -> bool:
        """Whether a cell is running, so that what is run now is run by that cell."""
        return bool(self._cells)

    @property
    def running_cell(self) -> CellInfo | None:
        """The cell of the user's that is running, however deep in it this is asked; None between cells."""
        return self._cells[0].cell if self._cells else None

    @property
    def checking(self) -> bool:
        """Whether the running cell is checked as a whole."""
        return any(cell.run for cell in self._cells)

    def pre_run_cell(self, info: ExecutionInfo) -> None:
        """IPython's event: record the cell, and start the check if it asks for one."""
        try:
            self._begin(info)
        except Exception as error:
            say_internal_error("this cell runs unchecked", error)

    def _begin(self, info: ExecutionInfo) -> None:
        if info.store_history:  # A cell of the user's own: what is still noted as running ended without telling.
            self._drop(self._cells)
            self._cells = []
        running = _Running(info, self.recorder.cell_info(info))
        self._cells.append(running)
        if len(self._cells) > 1:
            self.recorder.record_nested(running.cell, self._cells[0].cell)
            return
        running.file = self.recorder.record(running.cell)
        wanted = wanted_check(running.cell.raw)
        if wanted or self.check_all:
            running.options = wanted[1] if wanted else MagicOptions()
            running.run = self._start(running.file, running.options)
        elif self.engines.begin(running.cell.raw):
            running.by_engines = True
        elif self.watch and info.store_history:
            self.watch.begin()
            running.watched = True

    def post_run_cell(self, result: ExecutionResult | None) -> None:
        """IPython's event: end the check, show the report, and fail the cell where ``--raise`` asks for it."""
        running = self._pop(result)
        if running is None:
            return
        if running.watched:
            self._end_watched(running, result)
        if running.by_engines:
            self._end_by_engines()
        if running.run is None:
            failure = _failure_of_no_check(running.options)
        else:
            error = asyncio.CancelledError() if result is None else result.error_before_exec or result.error_in_exec
            failure = self._finish(running.run, running.options, error, running.cell.raw)
        if failure is not None and result is not None and result.success:
            result.error_in_exec = failure
            self._shell.last_execution_succeeded = False
            self._shell.showtraceback((type(failure), failure, None))

    def run_body(self, line: str, body: str) -> Any:
        """Run ``%%leakcheck`` as an ordinary cell magic, inside another magic; gives the body's last value."""
        __tracebackhide__ = True
        options = parse_options(line)
        outer = self._cells[0].cell if self._cells else None
        whole = find_magic_line(outer.raw) if outer else None
        if whole is None or not whole.text.rstrip().endswith(body.rstrip()):
            whole = CheckedCell(line, f"%%{MAGIC} {line}\n", 0, body)  # called as a function: there is no such cell
        above = 0 if body.lstrip().startswith("%%") else whole.index + 1
        padded = "#\n" * above + body
        transformed = self._shell.transform_cell(padded)
        count = (outer.ref.execution_count if outer else None) or self._shell.execution_count
        name = self._shell.compile.cache(transformed, count, raw_code=padded)
        if outer:
            self.recorder.record_body(name, whole, outer, above - whole.index)
        value = self._run_checked(name, options, self._evaluation(transformed, name, self._shell.user_ns))
        return None if ends_with_semicolon(transformed) else value

    def run_expression(self, options: MagicOptions, expression: str, local_ns: dict[str, Any]) -> Any:
        """Evaluate the expression (or run the statement) of ``%leakcheck EXPR`` under the check, and give its value."""
        __tracebackhide__ = True
        name, line = self._user_line()
        if name is None:
            name = self._shell.compile.cache(expression, self._shell.execution_count)
        padded = "\n" * (line - 1) + self._shell.transform_cell(expression.rstrip().removesuffix(";"))
        return self._run_checked(name, options, self._evaluation(padded, name, local_ns))

    def _run_checked(self, file: str, options: MagicOptions, evaluate: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        if self.checking:
            return evaluate()
        run = self._start(file, options)
        if run is None:
            value = evaluate()
            if failure := _failure_of_no_check(options):
                raise failure
            return value
        try:
            value = evaluate()
        except BaseException as error:
            self._finish(run, options, error, None)
            raise
        run.extra_roots = {**run.extra_roots, "_": value}
        failure = self._finish(run, options, None, None)
        if failure is not None:
            raise failure
        return value

    def _evaluation(self, text: str, name: str, local_ns: dict[str, Any]) -> Callable[[], Any]:
        """What runs a Python text and gives the value of its last expression; raises SyntaxError now."""
        compiler: Any = self._shell.compile  # keeps the __future__ imports of earlier cells
        tree: Any = self._shell.transform_ast(compiler.ast_parse(text, filename=name))
        body, last = split_last_expression(tree)
        statements = compiler(body, name, "exec")
        expression = compiler(last, name, "eval") if last else None

        def evaluate() -> Any:
            __tracebackhide__ = True
            exec(statements, self._shell.user_ns, local_ns)
            return eval(expression, self._shell.user_ns, local_ns) if expression else None

        return evaluate

    def _user_line(self) -> tuple[str | None, int]:
        """File name and line of the cell's code that calls the line magic."""
        frame = sys._getframe()
        while frame is not None:
            if self.recorder.book.get(frame.f_code.co_filename) is not None:
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return None, 1

    def _start(self, file: str, options: MagicOptions) -> CheckedRun | None:
        namespace = self._shell.user_ns
        base = self.options
        run = CheckedRun(
            self.recorder.book,
            namespace,
            checked_file=file,
            options=CheckOptions(
                retrace=base.retrace and not options.keep_caches,
                fixes=base.fixes,
                notes=base.notes and options.notes,
                fast=base.fast or options.fast,
                locate=base.locate or options.locate,
            ),
            extra_roots={"Out": namespace.get("Out")},
        )
        try:
            run.start()
        except BaseException as error:
            run.stop()
            forget_output(self._shell, options)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, RuntimeError | ImportError):
                say(f"this runs unchecked: {error}")
            else:
                say_internal_error("this runs unchecked", error)
            return None
        self._begin_status(run, options)
        return run

    def _begin_status(self, run: CheckedRun, options: MagicOptions) -> None:
        try:
            self._status = self.status_line(options, lambda: run.traces_seen)
            if self._status:
                self._status.start()
        except Exception as error:
            self._status = None
            say_internal_error("a long check is not seen to be running", error)

    def _end_status(self) -> None:
        status, self._status = self._status, None
        if status:
            status.stop()

    def _finish(
        self, run: CheckedRun, options: MagicOptions, error: BaseException | None, raw_cell: str | None
    ) -> BaseException | None:
        """End a check, show its report, and give the exception with which the cell is to fail, if any."""
        if is_a(error, *_INTERRUPTS):
            run.stop()
            self._end_status()
            forget_output(self._shell, options)
            say("the run was interrupted, so its leaks were not looked for")
            return None
        try:
            report = run.finish(failure_of(error))
            if run.options.locate and raw_cell is not None:
                report = run.located(report, lambda: self._run_again(run, raw_cell))
            self.last_report = report
            self._end_status()
            self.present(report, options, raw_cell)
        except KeyboardInterrupt:
            say("the search for leaks was interrupted: no report")
            forget_output(self._shell, options)
            return KeyboardInterrupt()
        except Exception as problem:
            say_internal_error("there is no report for this run", problem)
            forget_output(self._shell, options)
            return _failure_of_no_check(options)
        finally:
            run.stop()
            self._end_status()
        return LeakError(report) if options.raise_leaks and report.outcome == "leaks" else None

    def _end_watched(self, running: _Running, result: ExecutionResult | None) -> None:
        if self.watch is None:  # switched off by this very cell
            return
        error = asyncio.CancelledError() if result is None else result.error_before_exec or result.error_in_exec
        try:
            report = None if is_a(error, *_INTERRUPTS) else self.watch.end(running.file, failure_of(error))
        except KeyboardInterrupt:
            say("the search for leaks was interrupted: no report")
        except Exception as problem:
            say_internal_error("this cell was not watched", problem)
        else:
            self.last_report = report or self.last_report
        finally:
            self.watch.forget()

    def _end_by_engines(self) -> None:
        try:
            reports = self.engines.end()
            if reports:
                self.present_engines(reports)
                leaking = [report for report in reports.values() if report.outcome == "leaks"]
                self.last_report = next(iter(leaking), self.last_report)
        except KeyboardInterrupt:
            say("waiting for the engines' reports was interrupted: %px %leakcheck shows them")
        except Exception as problem:
            say_internal_error("the engines' reports are not shown", problem)

    def _run_again(self, run: CheckedRun, raw_cell: str) -> None:
        """Run a cell a second time under its own name, without its output (``--locate``)."""
        text = self._shell.transform_cell(raw_cell)
        with capture_output():
            self._evaluation(text, run.checked_file or "", self._shell.user_ns)()

    def _pop(self, result: ExecutionResult | None) -> _Running | None:
        """The cell that ended. IPython gives None where a coroutine was cancelled, and another info after an exit."""
        if result is None:
            return self._cells.pop() if self._cells else None
        for i, running in enumerate(self._cells):
            if running.event is result.info:
                self._drop(self._cells[i + 1 :])
                del self._cells[i:]
                return running
        if self._cells and self._cells[-1].cell.raw == getattr(result.info, "raw_cell", None):
            return self._cells.pop()
        return None

    def _drop(self, cells: list[_Running]) -> None:
        for cell in cells:
            if cell.run is not None:
                cell.run.stop()
                self._end_status()


class _MagicLineToComment:
    """Input transformer that comes first, so that it sees exactly what ``pre_run_cell`` is told later."""

    has_side_effects = True
    """Not used while IPython asks whether a cell is complete: a cell magic's cell ends at a blank line."""

    def __init__(self, checker: CellChecker) -> None:
        self._checker = checker

    def __call__(self, lines: list[str]) -> list[str]:
        wanted = None if self._checker.inside_cell else wanted_check("".join(lines))
        if wanted is None:
            return lines
        cell, _ = wanted
        if cell.body_is_magic:
            return lines[: cell.index] + lines[cell.index + 1 :]
        return [*lines[: cell.index], cell.magic.replace("%%", "# %%", 1), *lines[cell.index + 1 :]]


def _failure_of_no_check(options: MagicOptions) -> LeakError | None:
    """What ``--raise`` raises where there was no check: that must not pass for a clean run."""
    return LeakError(None) if options.raise_leaks else None


def wanted_check(raw: str) -> tuple[CheckedCell, MagicOptions] | None:
    """The cell and its options where it begins with the magic, has a body, and its options are right; else None.

    What is wrong with the others is said by the magic itself, which IPython then calls.
    """
    cell = read_checked_cell(raw)
    if cell is None or not cell.body.strip():
        return None
    try:
        options = parse_options(cell.options_line)
    except UsageError:
        return None
    return None if options.help or options.last else (cell, options)
