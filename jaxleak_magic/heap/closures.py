"""Functions that close over an object, and what else they close over."""

from __future__ import annotations

import gc
import types

from jaxleak_magic.heap.objects import function_part


def captured_beside(value: object, filename: str | None, qualname: str | None) -> dict[str, object]:
    """What a function that closes over an object closes over, by the names of its free variables.

    Args:
        value: the object.
        filename: ``co_filename`` of the function's code.
        qualname: ``co_qualname`` of the function's code.

    Returns:
        all its free variables but the empty ones; nothing where no such function is alive.
    """
    cells = [each for each in gc.get_referrers(value) if type(each) is types.CellType]
    closures = [each for each in gc.get_referrers(*cells) if type(each) is tuple] if cells else []
    for function in gc.get_referrers(*closures) if closures else ():
        if type(function) is not types.FunctionType:
            continue
        code, closure = function_part(function, "__code__"), function_part(function, "__closure__")
        if closure is None or (code.co_filename, code.co_qualname) != (filename, qualname):
            continue
        found: dict[str, object] = {}
        for name, cell in zip(code.co_freevars, closure, strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # the cell is empty
                continue
        if any(each is value for each in found.values()):
            return found
    return {}
