"""References that ``gc`` cannot see: how many there are, and the NumPy object arrays among them.

NumPy does not let ``gc`` look into its arrays, so that an array of objects holds them without being anyone's referrer.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from jaxleak_magic.heap.roots import frame_locals

_CHUNK = 512
_ELEMENTS_READ = 5_000_000


def missing_references(objects: Sequence[object], holders: Mapping[int, object]) -> list[int]:
    """How many references to each object nothing accounts for: not ``holders``, and no running function's variable.

    Args:
        objects: what to count for.
        holders: everything by which ``gc`` shows them to be held, by id; the mapping itself is counted too.
    """
    ids = set(map(id, objects))
    seen: Counter[int] = Counter()
    for holder in chain(holders.values(), [holders]):
        seen.update(filter(ids.__contains__, map(id, gc.get_referents(holder))))
    seen.update(filter(ids.__contains__, _ids_in_running_functions()))
    counted = [*objects, object()]  # the last one is held by this list alone
    references = list(map(sys.getrefcount, counted))
    return [n - references[-1] - seen[id(o)] for n, o in zip(references[:-1], objects, strict=True)]


def _ids_in_running_functions() -> list[int]:
    ids: list[int] = []
    frames: list[Any] = list(sys._current_frames().values())  # pyright: ignore[reportPrivateUsage]
    while frames:
        frame = frames.pop()
        while frame is not None:  # at the end no variable of this function holds its own frame, which would be a cycle
            code = frame.f_code
            if code.co_flags & inspect.CO_OPTIMIZED:
                in_cells = {*code.co_cellvars, *code.co_freevars}
                ids += (id(value) for name, value in frame_locals(frame).items() if name not in in_cells)
            frame = frame.f_back
    return ids


def arrays_with(
    targets: Sequence[object], roots: Iterable[object], own: Collection[int]
) -> dict[int, list[list[object]]]:
    """NumPy object arrays that have the targets among their elements.

    Args:
        targets: objects to look for.
        roots: objects to look into besides all that ``gc`` tracks.
        own: ids of objects not to look into.

    Returns:
        For every target's id the chains of holders, the array first, up to one whose holders ``gc`` shows. Empty where
        NumPy has not been imported.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return {}
    above = _object_arrays(numpy.ndarray, roots, own)
    wanted = set(map(id, targets))
    found: dict[int, list[list[object]]] = {}
    waiting = [chain[0] for chain in above.values()]
    elements = 0
    while waiting:
        array: Any = waiting.pop()
        chain = above[id(array)]
        elements += _size(numpy.ndarray, array)
        if elements > _ELEMENTS_READ:
            break
        inside = {id(x): x for x in _elements(numpy.ndarray, array) if id(x) in wanted or _is_array(numpy.ndarray, x)}
        for i, element in inside.items():
            if i in wanted:
                found.setdefault(i, []).append(chain)
            elif i not in above:
                above[i] = [element, *chain]
                waiting.append(element)
        base = vars(numpy.ndarray)["base"].__get__(array)
        if _is_array(numpy.ndarray, base) and id(base) not in above:
            above[id(base)] = [base, *chain]
            waiting.append(base)
    return found


def _object_arrays(ndarray: type, roots: Iterable[object], own: Collection[int]) -> dict[int, list[object]]:
    """Every array of objects that something tracked refers to, directly or through an untracked dict or tuple."""
    result: dict[int, list[object]] = {}
    objects = gc.get_objects()
    for first in range(0, len(objects) + _CHUNK, _CHUNK):
        chunk = objects[first : first + _CHUNK] if first < len(objects) else list(roots)
        for thing in gc.get_referents(*chunk):
            if issubclass(type(thing), ndarray):
                if _is_array(ndarray, thing):
                    result.setdefault(id(thing), [thing])
            elif (type(thing) is dict or type(thing) is tuple) and not gc.is_tracked(thing) and id(thing) not in own:
                for value in gc.get_referents(thing):
                    if _is_array(ndarray, value):
                        result.setdefault(id(value), [value, thing])
    objects.clear()
    return result


def _is_array(ndarray: type, thing: object) -> bool:
    return issubclass(type(thing), ndarray) and vars(ndarray)["dtype"].__get__(thing).char == "O"


def _size(ndarray: type, array: object) -> int:
    return vars(ndarray)["size"].__get__(array)


def _elements(ndarray: type, array: object) -> Iterator[object]:
    return iter(vars(ndarray)["flat"].__get__(array))


def array_reference(array: object, child: object) -> str | None:
    """How a NumPy object array holds something: ``"[2, 0]"`` or ``"base"`` (of a view); None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray") or not _is_array(numpy.ndarray, array):
        return None
    for place, value in enumerate(_elements(numpy.ndarray, array)):
        if value is child:
            shape = vars(numpy.ndarray)["shape"].__get__(array)
            return f"[{', '.join(str(i) for i in numpy.unravel_index(place, shape))}]"
    return "base" if vars(numpy.ndarray)["base"].__get__(array) is child else None
