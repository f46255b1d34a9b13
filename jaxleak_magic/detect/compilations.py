"""How many programs JAX compiled during a run and how long that took, by JAX's own monitoring events."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from jaxleak_magic.detect import _jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_TIMED = ("/jax/core/compile/jaxpr_to_mlir_module_duration", _COMPILED)
"""Event names as JAX 0.7.2 to 0.12.0.1 record them. Those of traces nest, so their times cannot be added up."""


class Compilations:
    """Counts while `counted` is entered.

    Attributes:
        programs: how many programs were compiled.
        seconds: seconds spent lowering and compiling them.
    """

    def __init__(self) -> None:
        self.programs = 0
        self.seconds = 0.0

    @contextmanager
    def counted(self) -> Generator[None]:
        """Count inside; the listener is taken out again at the end."""
        remove = _jax.listen_to_durations(self._record)
        try:
            yield
        finally:
            remove()

    def _record(self, event: str, duration: float, **_: Any) -> None:
        if event == _COMPILED:
            self.programs += 1
        if event in _TIMED:
            self.seconds += duration
