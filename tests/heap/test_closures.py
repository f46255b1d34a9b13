"""What a function that closes over an object closes over beside it."""

from __future__ import annotations

from jaxleak_magic.heap import captured_beside


class Thing:
    """What is held."""


def make(held: Thing, other: object):
    def function() -> object:
        return held, other, late

    if other == "late":
        late = 3
    return function


def test_all_free_variables_by_name_without_the_empty_ones():
    held = Thing()
    function = make(held, "other")
    code = function.__code__
    found = captured_beside(held, code.co_filename, code.co_qualname)
    assert found == {"held": held, "other": "other"}


def test_another_function_is_not_meant():
    held = Thing()
    function = make(held, "late")
    assert captured_beside(held, function.__code__.co_filename, "another") == {}
    assert captured_beside(Thing(), function.__code__.co_filename, function.__code__.co_qualname) == {}
