"""The door for plain Python: a block or a call under the check, in scripts, in marimo, and in notebooks too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType, FunctionType, MethodDescriptorType, TracebackType, WrapperDescriptorType
from typing import Any

from jaxleak_magic.checked_run import CheckedRun, CheckOptions
from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.diagnose.sources import SourceBook, lines_of_file
from jaxleak_magic.exits import failure_of
from jaxleak_magic.heap.objects import class_dict, function_part, is_a, mro
from jaxleak_magic.own_errors import say_internal_error
from jaxleak_magic.report import LeakReport

_INTERRUPTS = (KeyboardInterrupt, GeneratorExit)


class checking(contextlib.AbstractContextManager[LeakReport, None]):
    """Check the code of a ``with`` block: ``with jaxleak_magic.checking() as report: ...``.

    The report is filled when the block ends, also where it ends by an exception, which goes on as it is; where there is
    a leak too, the report is added to the exception as a note (PEP 678). After an interrupt there is no report.

    Args:
        keep_caches: do not trace functions anew that were compiled earlier: quicker, and blind to their leaks.
        fast: only count the traces that outlive the block: costs next to nothing, and sees least.
        fixes: propose rewrites.
        notes: look for what is no leak and still surprises.

    Raises:
        RuntimeError: on entering inside another check.
    """

    def __init__(
        self, *, keep_caches: bool = False, fast: bool = False, fixes: bool = True, notes: bool = True
    ) -> None:
        self._options = CheckOptions(retrace=not keep_caches, fast=fast, fixes=fixes, notes=notes)
        self._report = LeakReport.pending()
        self._run: CheckedRun | None = None

    def __enter__(self) -> LeakReport:
        """Start the check."""
        run = _run_for(_caller(), self._options)
        run.start()
        self._run = run
        return self._report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the check and fill the report; never swallows an exception and never adds one of its own."""
        run, self._run = self._run, None
        if run is None:
            return
        run.stop()
        if is_a(error, *_INTERRUPTS):
            return
        try:
            self._report.fill(run.finish(failure_of(error)))
        except Exception as problem:  # a block that has not failed must not fail for us
            say_internal_error("there is no report for this block", problem)
            return
        if error is not None and self._report.outcome == "leaks" and _takes_note(error):
            error.add_note(str(self._report))


def check(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LeakReport:
    """Call a function under the check, and give the report of what leaked from the call.

    Args:
        function: what is called with the other arguments. Its value counts as kept: a traced value in it is a leak.

    Raises:
        RuntimeError: inside another check.
        BaseException: what the function raises, with the report added as a note (PEP 678) where there is a leak too.
    """
    block = checking()
    run = _run_for(_caller(), block._options, function)
    run.start()
    block._run = run
    with contextlib.ExitStack() as ending:
        ending.push(block.__exit__)
        value = function(*args, **kwargs)
        name = function_part(function, "__name__") if type(function) is FunctionType else "function"
        run.namespace = {**run.namespace, f"{name}()": value}
    return block._report


def _takes_note(error: BaseException) -> bool:
    """Whether adding a note to an exception runs only the interpreter's own code, and none of its class's."""
    hooks = ("add_note", "__notes__", "__getattribute__", "__getattr__", "__setattr__")
    found = (class_dict(cls).get(name) for cls in mro(type(error)) for name in hooks)
    return all(hook is None or is_a(hook, WrapperDescriptorType, MethodDescriptorType) for hook in found)


def _caller() -> FrameType:
    """The frame of the code that stands around the check."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_plumbing(frame.f_globals.get("__name__")):
        frame = frame.f_back
    return frame


def _is_plumbing(module: object) -> bool:
    """Whether a module stands between the user's code and the check: contextlib, and our own pytest plugin."""
    return type(module) is str and (module == "contextlib" or module.startswith(f"{__package__}."))


def _run_for(frame: FrameType, options: CheckOptions, function: Any = None) -> CheckedRun:
    """A run of code in the given frame; nothing of the frame is kept but its module's namespace."""
    file = frame.f_code.co_filename
    book = _cells() or SourceBook()
    code = function_part(function, "__code__") if type(function) is FunctionType else frame.f_code
    for name in (file, code.co_filename):
        lines = lines_of_file(name, frame.f_globals)
        if lines and book.get(name) is None:
            book.add(name, SourceText("".join(lines), file=name))
    inside = frame.f_code.co_name != "<module>"
    out = frame.f_globals.get("Out")
    roots = {"Out": out} if isinstance(out, dict) else {}
    return CheckedRun(book, frame.f_globals, file, options, roots, inside_function=inside)


def _cells() -> SourceBook | None:
    """The cells of the notebook that this process runs, or None outside IPython."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is None:
        return None
    from jaxleak_magic.magics import loaded_magics
    from jaxleak_magic.magics.recording import CellRecorder

    loaded = loaded_magics(shell)
    if loaded is not None:
        return loaded.checker.recorder.book
    recorder = CellRecorder(shell)
    recorder.record_history()
    return recorder.book
