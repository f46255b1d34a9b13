"""Which JAX printed a text: the version that it names, or the range whose wording it has."""

from __future__ import annotations

import re

_NAMED = re.compile(r"\bjax(?:\[\w+\])?(?:\s+version)?\s*(?:==|[-:= ])\s*v?(\d+\.\d+\.\d+(?:\.\d+)?)\b", re.IGNORECASE)
_PYTHON = re.compile(r"\bpython ?(3\.\d+(?:\.\d+)?)\b", re.IGNORECASE)

_AFTER = (
    (r"is referred to by the local variable '|This VmapTracer with object id", "0.11.2"),
    (r"docs\.jax\.dev/en/latest/101/errors", "0.10.2"),
    (r"\b(?:Jit|Vmap|Grad)Tracer\(", "0.7.2"),
    (r"\b(?:Jit|Vmap|Grad)Tracer<", "0.6.2"),
    (r"docs\.jax\.dev/", "0.4.38"),
    (r">with<\w+Trace>|Leaked trace \w+Trace\b(?!\()", "0.4.35"),
)
_BEFORE = (
    (r"MainTrace\(|Leaked sublevel|Trace\(level=\d", "0.4.38"),
    (r"See https://jax\.readthedocs\.io/", "0.6.2"),
    (r">with<\w+Trace>", "0.7.2"),
    (r"\b(?:Jit|Vmap|Grad)Tracer<", "0.8.3"),
)
"""(words, version), measured on 0.4.30 to 0.12.0.1: the last version without them, and the first without them again."""


def jax_version(text: str) -> str:
    """The version that a text names (``"0.4.30"``), else its range (``">0.4.35,<0.7.2"``), else ``"unknown"``."""
    if named := _NAMED.search(text):
        return named[1]
    after = next((version for words, version in _AFTER if re.search(words, text)), None)
    before = next((version for words, version in _BEFORE if re.search(words, text)), None)
    bounds = [*([f">{after}"] if after else []), *([f"<{before}"] if before else [])]
    return ",".join(bounds) or "unknown"


def python_version(text: str) -> str:
    """The Python that a text names (in words or in a path), else ``"unknown"``."""
    named = _PYTHON.search(text)
    return named[1] if named else "unknown"
