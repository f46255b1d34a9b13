"""A tracer as plain text: its class, dtype and shape, read without running a user's code."""

from __future__ import annotations

from typing import Any

from jaxleak_magic.diagnose.model import TracerInfo


def tracer_info(tracer: object) -> TracerInfo:
    """Class name, dtype, shape and a short text such as ``JitTracer float32[3]``."""
    name = type(tracer).__name__
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    try:
        aval: Any = object.__getattribute__(tracer, "aval")
        dtype = str(aval.dtype)
        shape = tuple(size if type(size) is int else str(size) for size in aval.shape)
    except Exception:  # an abstract value of another kind (a ref, a token): its class name is what we know
        dtype = shape = None
    text = name
    if dtype is not None and shape is not None:
        text = f"{dtype}[{','.join(map(str, shape))}]"
    return TracerInfo(name, dtype, shape, text)
