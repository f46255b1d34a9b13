"""Shows a hand-made report on the running cell, with its bridge: what the notebook door does, without a check."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display, update_display
from sample_reports import one_leak, two_leaks

from jaxleak_magic.diagnose.model import CellRef, Edit, Fix, SourceText
from jaxleak_magic.show.bridge import attach_bridge
from jaxleak_magic.show.bundle import mimebundle


def show(old: str, new: str, uid: str, sample: Any = one_leak) -> Any:
    """Display a report whose first fix replaces ``old`` by ``new`` in the running cell."""
    shell: Any = get_ipython()
    header = shell.parent_header
    text = header["content"]["code"]
    cell = CellRef(header["metadata"]["cellId"], 3)
    changed = text.replace(old, new)
    diff = "\n".join(difflib.unified_diff(text.splitlines(), changed.splitlines(), lineterm=""))
    edit = Edit(cell, None, changed, diff)
    base = sample()
    fix = Fix("lift_closure_to_argument", "Return `rate`", None, changed, diff, (edit,), "leak_free")
    leak = dataclasses.replace(base.leaks[0], fixes=(fix,))
    source = SourceText(text, cell)
    report = dataclasses.replace(base, leaks=(leak, *base.leaks[1:]), source=source, sources=(source, *base.sources))
    display(mimebundle(report, uid), raw=True, display_id=uid)
    return attach_bridge(report, uid, lambda bundle: update_display(bundle, raw=True, display_id=uid))


__all__ = ["show", "two_leaks"]
