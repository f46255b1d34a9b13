"""Running a ``.py`` file under the check as ``python FILE`` would run it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import sys
import traceback
import types
from typing import Any

from jaxleak_magic.checked_run import CheckedRun
from jaxleak_magic.cli.fresh_process import CellReport, Job, Outcome
from jaxleak_magic.cli.inputs import Script
from jaxleak_magic.cli.results import plain_results
from jaxleak_magic.diagnose.model import SourceText
from jaxleak_magic.diagnose.sources import SourceBook
from jaxleak_magic.exits import failure_of
from jaxleak_magic.last_expression import split_last_expression


def run_script(script: Script, job: Job) -> Outcome:
    """Run a script, or a cell saved as a file, in a fresh ``__main__``; its last expression is evaluated too."""
    path = os.path.abspath(script.path)
    magic, text = without_magic(script.text)
    sources = SourceBook()
    sources.add(path, SourceText(text, file=job.file, magic=magic), line_offset=1 if magic else 0)
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = path
    sys.modules["__main__"] = module
    sys.argv = [job.file]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))

    code = "\n" + text if magic else text
    if job.how != "check":
        return _run_unchecked(code, path, module.__dict__, job)
    run = CheckedRun(sources, module.__dict__, checked_file=path, options=job.options)
    run.start()
    try:
        value = _execute(code, path, module.__dict__)
    except BaseException as error:
        _print_like_python(error, path)
        report = run.finish(failure_of(error))
        value = None
    else:
        run.extra_roots = {**run.extra_roots, "_": value}  # as in a notebook, where the last value is kept
        report = run.finish(None)
    if job.options.locate:
        with contextlib.redirect_stdout(io.StringIO()):  # what it prints was printed by the first run
            report = run.located(report, lambda: _execute(code, path, module.__dict__))
    return Outcome((CellReport(report),), results=plain_results(module.__dict__, value) if job.replaced else None)


def _run_unchecked(code: str, path: str, namespace: dict[str, Any], job: Job) -> Outcome:
    """Run without the check, for what it computes."""
    try:
        with job.context():
            value = _execute(code, path, namespace)
    except BaseException as error:  # an exit too
        return Outcome((), raised=failure_of(error) is not None, results=plain_results(namespace))
    return Outcome((), results=plain_results(namespace, value))


def without_magic(text: str) -> tuple[str, str]:
    """The ``%%leakcheck`` line of a cell that was saved as a file, and the rest."""
    first, *rest = text.splitlines(keepends=True) or [""]
    return (first, "".join(rest)) if first.split()[:1] == ["%%leakcheck"] else ("", text)


def _execute(source: str, path: str, namespace: dict[str, Any]) -> Any:
    """Run the statements; gives the value of a last expression. Top-level ``await`` works as in a notebook."""
    statements, last = split_last_expression(ast.parse(source, path))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | _future_flags(statements)
    codes = [compile(statements, path, "exec", flags=flags, dont_inherit=True)]
    if last:
        codes.append(compile(last, path, "eval", flags=flags, dont_inherit=True))
    if not any(code.co_flags & inspect.CO_COROUTINE for code in codes):
        return [eval(code, namespace) for code in codes][-1] if last else eval(codes[0], namespace)

    async def in_one_loop() -> Any:
        value = None
        for code in codes:
            value = eval(code, namespace)
            if code.co_flags & inspect.CO_COROUTINE:
                value = await value
        return value

    return asyncio.run(in_one_loop())


def _future_flags(tree: ast.Module) -> int:
    """Compiler flags of the file's ``from __future__`` imports, which hold for its last expression too."""
    import __future__

    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    features = {alias.name for node in imports for alias in node.names} & set(__future__.all_feature_names)
    return sum(getattr(__future__, name).compiler_flag for name in features)


def _print_like_python(error: BaseException, path: str) -> None:
    """The traceback on stderr from the user's file on, as ``python FILE`` prints it."""
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        return
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    try:
        traceback.print_exception(type(error), error, frames)
    except Exception:  # the exception's own __str__ or notes may raise
        print(type(error).__name__, file=sys.stderr)
