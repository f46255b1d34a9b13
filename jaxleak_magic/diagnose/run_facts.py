"""What is the same for all leaks of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxleak_magic.detect.run import LeakCheck
from jaxleak_magic.diagnose.trace_stack import Places


@dataclass(frozen=True)
class RunFacts:
    """A run, its texts and its namespace.

    Attributes:
        check: the finished run.
        places: places and syntax of the user's texts.
        checked_file: ``co_filename`` of the checked text, or None.
        namespace: the user's namespace.
        located: lines that were seen storing, by `watch_key` (``--locate``).
    """

    check: LeakCheck
    places: Places
    checked_file: str | None
    namespace: Mapping[str, Any]
    located: Mapping[str, tuple[str, int]]
