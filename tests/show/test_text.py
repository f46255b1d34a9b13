"""The plain-text renderer: golden texts of every state, width, and what it does to hostile text."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from sample_reports import CELL, SAMPLES, at, one_leak, report, with_text_everywhere

from jaxleak_magic.diagnose.model import Checked, Elapsed, Leak
from jaxleak_magic.show.escaping import columns, visible, wrap
from jaxleak_magic.show.text import render_text

GOLDEN = Path(__file__).parent / "golden"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", SAMPLES)
def test_golden(name: str) -> None:
    """UPDATE_GOLDEN=1 writes the files anew: look at the diff before you commit it."""
    text = render_text(SAMPLES[name]()) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_but_source_is_wider_than_the_terminal(name: str, width: int) -> None:
    source = re.compile(r"^ +\d+  |^  ( |\+|-) ")
    for line in render_text(SAMPLES[name](), width).split("\n"):
        if name == "hostile" and source.match(line):
            continue
        if not source.match(line) or width >= 80:
            assert columns(line) <= width, line


@pytest.mark.parametrize("name", SAMPLES)
def test_colour_changes_nothing_but_colour(name: str) -> None:
    sample = SAMPLES[name]()
    painted = render_text(sample, color=True)
    assert ANSI.search(painted)
    assert ANSI.sub("", painted) == render_text(sample)


def test_hostile_text_is_shown_and_never_sent() -> None:
    text = render_text(SAMPLES["hostile"]())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert r"\x1b[31m\u202eevil\ud800\x07\x00" in text
    text.encode()


@given(st.text(st.characters(), max_size=60))
def test_any_text_anywhere_stays_printable(text: str) -> None:
    shown = render_text(with_text_everywhere(one_leak(), text))
    shown.encode()
    assert all(line.isprintable() for line in shown.split("\n"))


@given(st.text(st.characters(), max_size=200), st.integers(10, 90))
def test_wrap_keeps_every_word_and_the_width(text: str, width: int) -> None:
    shown = visible(text)
    lines = wrap(shown, width, "  ", "    ")
    assert all(columns(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(shown.split())


def test_names_that_are_not_known_are_not_invented() -> None:
    text = render_text(SAMPLES["refused_only"]())
    for word in ("None", "line", "made:", "Who keeps"):
        assert word not in text


def test_a_form_feed_ends_no_line_of_source() -> None:
    sample = one_leak()
    leak: Leak = dataclasses.replace(sample.leaks[0], created=at("x\x0cy\nz", 2), stored=None, escaped=None)
    text = render_text(report("x\x0cy\nz", leaks=(leak,)))
    assert re.search(r"^ *2  z$", text, re.M)


def test_the_cost_of_compiling_anew_is_told_where_it_was_much() -> None:
    checked = Checked(True, True, True, (), compiled=12, compile_s=7.5)
    much = report("x = 1\n", checked=checked, elapsed=Elapsed(run_s=9.0))
    assert "took 7.5" in render_text(much, width=400)
    assert "(12 programs, kept until" in render_text(much, width=400)
    assert "--fast" in render_text(much)
    for little in (Elapsed(run_s=100.0), Elapsed(run_s=0.5)):
        spent = dataclasses.replace(checked, compile_s=min(7.5, little.run_s))
        text = render_text(report("x = 1\n", checked=spent, elapsed=little))
        assert "--fast" not in text


def test_a_checked_file_offers_no_magic() -> None:
    sample = dataclasses.replace(one_leak(), file="train.py")
    assert "%leakfix 1" in render_text(one_leak())
    assert "%leakfix" not in render_text(sample)
    assert CELL.execution_count == 3
