"""The magics ``%%leakcheck``, ``%leakcheck``, ``%leakwatch``, ``%leakfix`` and ``%%leakexplain``."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import (
    Magics,
    cell_magic,
    line_cell_magic,
    line_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.magics.checker import CellChecker
from jaxleak_magic.magics.explaining import explain_last, explain_pasted
from jaxleak_magic.magics.fixing import insert_fix, replace_running_cell
from jaxleak_magic.magics.options import (
    MAGIC,
    MagicOptions,
    help_text,
    parse_explain_options,
    parse_options,
    split_expression,
)
from jaxleak_magic.magics.showing import ReportShower
from jaxleak_magic.magics.watching import WATCH, WATCHED_SHELLS


@magics_class
class LeakcheckMagics(Magics):
    """The magics of one shell, with its hooks."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self.shower = ReportShower(shell)
        self.checker = CellChecker(shell, self.present)
        self.checker.status_line = self.shower.status_line
        self.checker.present_engines = self.shower.show_engines

    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def leakcheck(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Run a cell, and report every JAX tracer that leaked from it. (The options are added below.)

        Examples::

            %%leakcheck -o report
            learners = jax.vmap(make_learner)(rates)

            %leakcheck jax.jit(step)(state)
        """
        __tracebackhide__ = True
        if cell is not None:
            options = parse_options(line)
            if options.help:
                print(help_text())
                return None
            if options.last:
                raise UsageError(f"%%{MAGIC}: --last runs no cell; write %{MAGIC} --last on a line of its own")
            return self.checker.run_body(line, cell)
        options, expression = split_expression(line)
        if options.help:
            print(help_text())
            return None
        if options.last:
            self.shower.show(explain_last(self.checker.recorder.book, self._shell.user_ns), options)
            return None
        if expression:
            namespace = self._shell.user_ns if local_ns is None else local_ns
            return self.checker.run_expression(options, expression, namespace)
        self.shower.show(self._last_report(), options)
        return None

    @no_var_expand
    @line_magic
    def leakfix(self, line: str) -> None:
        """Take a fix of the last report: ``%leakfix N`` shows its diff and inserts the changed source below.

        The cells that you have stay as they are. Without ``N`` it takes the only fix that is offered.
        ``%%leakcheck --fix N`` replaces the cell that it stands in.
        """
        insert_fix(self._shell, self._last_report(), line)

    @no_var_expand
    @line_magic
    def leakwatch(self, line: str) -> None:
        """Watch every cell from the next one on, and tell of a leak in one line: ``%leakwatch on|off|status``.

        Nothing is traced anew and nothing is slowed down: only the traces that outlive a cell are counted. A leak in a
        function that was compiled earlier is not seen; ``%%leakcheck`` sees it.
        """
        word = line.strip() or "status"
        if word not in ("on", "off", "status"):
            raise UsageError(f"%{WATCH} takes on, off or status, and not {word!r}")
        try:
            if word == "on":
                self.checker.watch_cells(self.shower.notify)
            elif word == "off":
                self.checker.stop_watching()
        except RuntimeError as error:
            raise UsageError(f"%{WATCH} {word}: {error}; run it in a cell of its own") from None
        if word == "on":
            WATCHED_SHELLS.add(self._shell)
        elif word == "off":
            WATCHED_SHELLS.discard(self._shell)
        else:
            print(self.checker.watch or f"%{WATCH} is off.")

    @no_var_expand
    @cell_magic
    def leakexplain(self, line: str, cell: str) -> None:
        """Explain a message or a whole traceback of JAX that is pasted below this line; nothing is run.

        Options: ``-o NAME`` stores the report, ``--text`` shows plain text only, ``-q`` shows nothing.
        """
        self.shower.show(explain_pasted(cell, self.checker.recorder.book), parse_explain_options(line))

    def _last_report(self) -> Report:
        if self.checker.last_report is None:
            raise UsageError(f"no cell was checked yet: put %%{MAGIC} on the first line of one and run it")
        return self.checker.last_report

    def present(self, report: Report, options: MagicOptions, raw_cell: str | None) -> None:
        """Show a report, and put the fix into the running cell where its options ask for that."""
        self.shower.show(report, options)
        if options.fix is not None:
            replace_running_cell(self._shell, report, options.fix, raw_cell)


LeakcheckMagics.leakcheck.__doc__ = (LeakcheckMagics.leakcheck.__doc__ or "").replace(
    " (The options are added below.)", ""
) + "\n\n        ".join(["", *help_text().splitlines()])
