"""The HTML renderer: injection, structure that reads well without its style, scoping, size, contrast."""

from __future__ import annotations

import base64
import dataclasses
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from hostile_texts import hostile_texts
from sample_reports import SAMPLES, clean, one_leak, two_leaks, with_text_everywhere

from jaxleak_magic.show import graph
from jaxleak_magic.show.bundle import mimebundle
from jaxleak_magic.show.graph import graph_svg
from jaxleak_magic.show.html import render_html
from jaxleak_magic.show.markup import escape, inline
from jaxleak_magic.show.page import render_page
from jaxleak_magic.show.style import PALETTE
from jaxleak_magic.show.text import render_text

TAGS = {"div", "style", "h3", "h4", "p", "pre", "span", "i", "b", "code", "small", "mark", "ul", "ol", "li", "dl", "dt"}
TAGS |= {"dd", "details", "summary", "figure", "img", "footer"}
ATTRIBUTES = {"class", "title", "src", "alt", "open", "data-jaxleak", "data-jaxleak-fix", "style"}
VOID = {"img", "meta", "br"}


class Seen(HTMLParser):
    """Every tag, attribute and visible text of a document, and whether the tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.stack: list[str] = []
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.stack:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self) -> str:
        return "".join(self.texts)


def _judge(html: str) -> Seen:
    html.encode()
    seen = Seen(html)
    assert set(seen.tags) <= TAGS
    assert {name for name, _ in seen.attributes} <= ATTRIBUTES
    for name, value in seen.attributes:
        if name == "style":
            assert re.fullmatch(r"min-width:\d+px", value or "")
        if name == "src":
            assert (value or "").startswith("data:image/svg+xml;base64,")
    assert seen.tags.count("style") == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    return seen


@pytest.mark.parametrize("name", SAMPLES)
def test_only_our_own_tags_and_attributes(name: str) -> None:
    sample = SAMPLES[name]()
    _judge(render_html(sample, svg=graph_svg(sample)))


def test_hostile_text_is_shown() -> None:
    text = _judge(render_html(SAMPLES["hostile"]())).text
    assert "</script><script>alert(1)</script><img src=x onerror=alert(2)>" in text
    assert r"&lt;\x1b[31m\u202eevil\ud800\x07\x00 javascript:alert(4) <b>\N" in text


def _anything_stays_text(text: str) -> None:
    report = with_text_everywhere(one_leak(), text)
    seen = _judge(render_html(report))
    tags = [tag for tag in seen.tags if tag not in ("b", "br", "code", "span")]
    assert tags[:4] == ["div", "style", "h3", "p"]
    assert seen.tags.count("a") == 0


@given(hostile_texts)
@settings(max_examples=60, deadline=None)
def test_any_text_anywhere_stays_text(text: str) -> None:
    _anything_stays_text(text)


@pytest.mark.nightly
@given(hostile_texts)
@settings(max_examples=10_000, deadline=None)
def test_any_text_anywhere_stays_text_at_length(text: str) -> None:
    _anything_stays_text(text)


@given(st.text(st.characters() | st.sampled_from("<>&\"'`"), max_size=80))
def test_escape_and_inline_lose_nothing(text: str) -> None:
    assert "<" not in escape(text)
    shown = Seen(f"<p>{escape(text)}</p>").text
    assert shown.replace("\\", "") == Seen(f"<p>{escape(shown)}</p>").text.replace("\\", "")
    without = Seen(f"<p>{inline(text)}</p>").text
    assert without.replace("`", "") == shown.replace("`", "")


@pytest.mark.parametrize("name", ["one_leak", "two_leaks", "error_only", "notes", "earlier_cell"])
def test_says_what_the_text_says(name: str) -> None:
    """Every word of the text report, but for its drawing characters, is in the HTML too."""
    shown = set(re.findall(r"\w{3,}", " ".join(Seen(render_html(SAMPLES[name]())).texts)))
    text = set(re.findall(r"\w{3,}", render_text(SAMPLES[name]())))
    assert text - shown <= {"Leak", "belongs", "this", "one"}


def test_source_lines_read_well_without_the_style() -> None:
    html = re.sub(r"<style>.*?</style>", "", render_html(one_leak()), flags=re.S)
    pre = re.search(r'<pre class="src">(.*?)</pre>', html, re.S)
    assert pre
    assert Seen(f"<pre>{pre[1]}</pre>").text.split("\n")[:3] == [
        "19  def make_learner(rate):",
        "    made rate enters vmap here as a tracer",
        "20      def schedule(step):",
    ]


def _outer_selectors(sheet: str) -> list[str]:
    """The selectors that do not stand inside another rule; those inside ``@media`` do count."""
    found: list[str] = []
    inside: list[str] = []
    for head, end in re.findall(r"([^{};]*)([{};])", sheet):
        if end == "{":
            if all(each.startswith("@media") for each in inside) and not head.startswith("@"):
                found += re.split(r",(?![^()]*\))", head)
            inside.append(head)
        elif end == "}":
            inside.pop()
    assert inside == []
    return found


def test_each_output_has_its_own_scope_and_the_same_one_may_be_shown_twice() -> None:
    first, second = render_html(clean()), render_html(clean())
    (token,) = set(re.findall(r'data-jaxleak="(\w+)"', first))
    assert token not in second
    sheet = re.search(r"<style>(.*?)</style>", first, re.S)
    assert sheet
    selectors = _outer_selectors(sheet[1])
    assert len(selectors) > 5
    assert all(f".jl-{token[:8]}" in selector for selector in selectors), selectors
    assert " id=" not in first


def test_a_uid_cannot_leave_its_attribute() -> None:
    html = render_html(clean(), 'x"><script>{}')
    _judge(html)
    assert 'data-jaxleak="xscript"' in html


def test_every_offered_fix_has_a_placeholder_with_words_that_work_without_us() -> None:
    html = render_html(two_leaks())
    assert re.findall(r'data-jaxleak-fix="(\d+)">(.*?)</p>', html) == [("1", "Take it with <code>%leakfix 1</code>")]
    assert "data-jaxleak-fix" not in render_html(dataclasses.replace(two_leaks(), file="train.py"))


def test_two_leaks_fold_and_share_one_picture() -> None:
    html = render_html(two_leaks(), svg=graph_svg(two_leaks()))
    assert html.count('<details class="leak"') == 2
    assert html.count('<details class="leak" open="">') == 1
    (data,) = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", html)
    ElementTree.fromstring(base64.b64decode(data))


def test_a_two_leak_report_stays_under_30_kB() -> None:
    bundle = mimebundle(two_leaks())
    assert sum(len(text.encode()) for text in bundle.values()) < 30_000


def test_a_clean_report_is_one_line_and_a_quiet_foot() -> None:
    seen = Seen(render_html(clean()))
    assert [tag for tag in seen.tags if tag != "style"] == ["div", "h3", "footer", "p", "p"]


def test_page_of_one_and_of_many() -> None:
    one = render_page(one_leak())
    many = render_page([one_leak(), ("a <b>title</b>", SAMPLES["hostile"]()), two_leaks()])
    for page in (one, many):
        seen = Seen(page.removeprefix("<!doctype html>\n"))
        assert "script" not in seen.tags
        assert seen.tags.count("style") == 1
        assert "default-src 'none'" in page
    assert "a &lt;b&gt;title&lt;/b&gt;" in many
    assert "3 reports: 5 leaks, 1 error" in many
    assert "%leakfix" in one


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Backgrounds of JupyterLab 4.6 (--jp-layout-color0, 1), VS Code's default themes and our own.
GROUNDS = (("#ffffff", "#f5f7f9", "#f8f8f8"), ("#111111", "#212121", "#1f1f1f", "#181818", "#111417", "#1b2026"))


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("ink", ["fg", "mut", "red", "grn", "amb", "blu"])
def test_text_contrast_is_aa(ink: str, theme: int) -> None:
    own = {"red": ["redbg"], "grn": ["grnbg"], "amb": ["ambbg"], "mut": ["redbg", "ambbg"], "fg": ["redbg", "ambbg"]}
    grounds = [*GROUNDS[theme], *(PALETTE[name][theme] for name in own.get(ink, ()))]
    for ground in grounds:
        assert _contrast(PALETTE[ink][theme], ground) >= 4.5, ground


def _inverted(colour: str) -> str:
    """A colour after ``invert(.92) hue-rotate(180deg)``, as the CSS filter module defines them."""
    channels = [0.92 - 0.84 * int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rotation = ((-0.574, 1.43, 0.144), (0.426, 0.43, 0.144), (0.426, 1.43, -0.856))
    turned = (sum(f * c for f, c in zip(row, channels, strict=True)) for row in rotation)
    return "#" + "".join(f"{round(255 * min(max(c, 0), 1)):02x}" for c in turned)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_contrast_in_the_graph_is_aa(theme: int) -> None:
    seen = _inverted if theme else str
    pairs = [(look.get("fontcolor", graph._INK), [look["fillcolor"]]) for look in graph._LOOKS.values()]
    for ink, fills in pairs:
        assert _contrast(seen(ink), seen(fills[0])) >= 4.5, (ink, fills)
    for ground in GROUNDS[theme]:  # words on the edges, and the borders of what is clicked (3 : 1)
        assert _contrast(seen(graph._MUTED), ground) >= 4.5, ground
        for look in graph._LOOKS.values():
            assert _contrast(seen(look["color"]), ground) >= 3, (look, ground)
