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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxleak_magic.diagnose.model import Report
from jaxleak_magic.diagnose.sources import SourceBook


@dataclass(frozen=True)
class CheckOptions:
    """How a run is checked.

    Attributes:
        retrace: trace every function anew, also those compiled earlier (False: ``--keep-caches``).
        fixes: propose rewrites.
    """

    retrace: bool = True
    fixes: bool = True


class CheckedRun:
    """A run under the check. ``start`` puts the hooks in, ``finish`` takes them out and explains what leaked.

    Args:
        sources: the texts of the cells and files known so far; may grow while the run goes on.
        namespace: the user's namespace, whose names are the first roots that the search tries.
        checked_file: ``co_filename`` under which the checked text is compiled, or None while it is not known; may be set later.
        options: see `CheckOptions`.
        extra_roots: named objects that are holders in their own right, e.g. ``{"Out": out_dict}``.
    """

    def __init__(
        self,
        sources: SourceBook,
        namespace: Mapping[str, Any],
        checked_file: str | None = None,
        options: CheckOptions = CheckOptions(),
        extra_roots: Mapping[str, Any] | None = None,
    ) -> None:
        self.sources = sources
        self.namespace = namespace
        self.checked_file = checked_file
        self.options = options
        self.extra_roots = extra_roots or {}

    def start(self) -> None:
        """Put the hooks in and enter ``jax.checking_leaks()``. Imports jax. Raises RuntimeError inside another run."""
        raise NotImplementedError

    def stop(self) -> None:
        """Take every hook and flag back. Safe to call twice; called by `finish` first."""
        raise NotImplementedError

    def finish(self, error: BaseException | None = None) -> Report:
        """Stop, find the leaks, explain them, and return the report; afterwards no tracer or trace is held."""
        raise NotImplementedError
