"""Where a child stands in a container: small ones are looked through, large ones are read once."""

from __future__ import annotations

from collections import deque

import pytest

from jaxleak_magic.heap.paths import Root
from jaxleak_magic.heap.positions import Positions


class HashLikeNone:
    """A key that a lookup of None would compare with."""

    def __hash__(self):
        return hash(None)

    def __eq__(self, other):
        raise AssertionError("nothing of the user's may run")


def filled(size):
    return {f"k{n}": object() for n in range(size)}


@pytest.mark.parametrize("size", [0, 3, 16, 17, 200])
def test_the_key_none_is_told_from_no_key(size):
    child = object()

    def text_in(holder):
        return Positions({}).key_text(holder, child)

    assert text_in(filled(size)) is None
    assert text_in({HashLikeNone(): 1, **filled(size)}) is None
    assert text_in({**filled(size), None: child}) == "[None]"
    assert text_in({**filled(size), "here": child}) == "['here']"
    assert text_in({**filled(size), child: 1}) == "a key"


@pytest.mark.parametrize("size", [3, 200])
@pytest.mark.parametrize("kind", [list, tuple, deque])
def test_each_child_is_found_though_it_was_not_announced(kind, size):
    items = kind(object() for _ in range(size))
    first, last = items[0], items[size - 1]
    positions = Positions({id(items): {id(first)}})
    assert positions.index(items, first) == 0
    assert positions.index(items, last) == size - 1
    assert positions.index(items, object()) is None
    assert positions.index(items, first) == 0


@pytest.mark.parametrize("size", [2, 200])
def test_the_first_of_several_places_counts(size):
    child = object()
    assert Positions({}).index([object()] * size + [child, child], child) == size
    assert Positions({}).key({**filled(size), "one": child, "two": child}, child) == "one"


def test_the_best_name_of_a_root():
    child, other = object(), object()
    names = {"Out": {}, "_": child, "_private": child, "net": child, "later": child, 5: other}
    root = Root(names, "", "namespace")
    positions = Positions({id(names): {id(child), id(other)}})
    assert positions.variable(root, child) == "net"
    assert positions.variable(root, other) == "[5]"
