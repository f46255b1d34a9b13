"""Pasted messages of JAX as reports: texts only, nothing is run and JAX is not imported."""

from __future__ import annotations

from jaxleak_magic.diagnose.messages.explaining import explain_text as explain_text
