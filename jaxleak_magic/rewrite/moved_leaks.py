"""A leak's facts after a rewrite of the texts: the same leak, with every place where it stands now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from jaxleak_magic.diagnose.model import CellRef, Leak, Place, TraceLevel
from jaxleak_magic.rewrite.texts import Shift, Text, TextEdit

_T = TypeVar("_T")


class MovedPlaces:
    """Says where a place of the old texts stands in the new ones.

    Args:
        before: the old texts.
        after: the new ones, in the same order.
        edits: what was changed.
    """

    def __init__(self, before: Sequence[Text], after: Sequence[Text], edits: Mapping[Text, list[TextEdit]]) -> None:
        self._texts: dict[tuple[CellRef | None, str | None], tuple[Text, Text, Shift]] = {}
        for old, new in zip(before, after, strict=True):
            if edits.get(old):
                self._texts[old.source.cell, old.source.file] = (old, new, Shift(edits[old]))

    def place(self, place: Place) -> Place | None:
        """The place in the new texts, or None where its line was taken out."""
        found = self._texts.get((place.cell, place.file))
        if found is None:
            return place
        old, new, shift = found
        moved, column = shift(old.first_of_line(place.line)), None
        if place.column is not None:
            there = shift(old.offset(place.line, 0) + place.column)
            if there is not None:
                moved, column = there, there - new.offset(new.line_of(there), 0)
        return None if moved is None else dataclasses.replace(place, line=new.line_of(moved), column=column)


def moved_leak(leak: Leak, places: MovedPlaces) -> Leak:
    """The leak with all its places in the new texts; those that are gone become None or fall out."""
    return dataclasses.replace(_moved(leak, places), fixes=())


def _moved(value: _T, places: MovedPlaces) -> _T:
    if isinstance(value, tuple):
        parts = tuple(_moved(part, places) for part in value)
        # A tuple of places says where something was done: a part that is gone is gone.
        return tuple(p for p, old in zip(parts, value, strict=True) if p is not None or old is None)  # type: ignore[return-value]
    if isinstance(value, Place):
        return places.place(value)  # type: ignore[return-value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type | CellRef):
        return value
    changes = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = _moved(old, places)
        if new is not old:
            changes[field.name] = new
    if isinstance(value, TraceLevel) and isinstance(changes.get("place"), Place):
        changes["line"] = changes["place"].line
    return dataclasses.replace(value, **changes) if changes else value  # type: ignore[return-value]
