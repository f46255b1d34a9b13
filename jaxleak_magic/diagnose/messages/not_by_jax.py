"""Texts and names that people paste and that no JAX has."""

from __future__ import annotations

import re

from jaxleak_magic.diagnose.model import Note

_CHECK_TRACER_LEAKS = re.compile(r"\bjax\.check_tracer_leaks\b|module 'jax' has no attribute 'check_tracer_leaks'")
_LEAK_ERROR = re.compile(r"(?:\w*Leak\w*Trac\w*|\w*Trac\w*Leak\w*)(?:Error|Exception)")
_LEAKED_TRACER = re.compile(r"\s*(?:JAX )?(?:leaked tracer|tracer leak(?:ed)?)\b", re.IGNORECASE)
_OWN = "LeakError"

NOT_BY_JAX = "not_by_jax"
"""`ErrorInfo.kind` of a text about leaked tracers that no JAX prints."""

NO_JAX_PRINTS = "No version of JAX from 0.3 to 0.12 prints this text."


def invented(error_type: str, message: str) -> bool:
    """Whether an exception speaks of leaked tracers in a form that no JAX has."""
    name = error_type.rpartition(".")[2]
    if name == _OWN:
        return False
    return _LEAK_ERROR.fullmatch(name) is not None or _LEAKED_TRACER.match(message) is not None


def notes_on_names(text: str) -> list[Note]:
    """Notes on names in the text that do not exist in JAX."""
    if _CHECK_TRACER_LEAKS.search(text) is None:
        return []
    return [
        Note(
            "not_in_jax",
            None,
            "JAX has no `jax.check_tracer_leaks`. What exists is the context manager `jax.checking_leaks()`, "
            'the option `jax.config.update("jax_check_tracer_leaks", True)` and the environment variable '
            "`JAX_CHECK_TRACER_LEAKS`; `%%leakcheck` uses them for you.",
        )
    ]
