"""Building HTML: the one place where text becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup
from markupsafe import escape as _escape

from jaxleak_magic.show.escaping import visible

NEWLINE = Markup("\n")

Child = str | Markup | None | Iterable["Child"]

_BACKTICKS = re.compile(r"`([^`]*)`")


def escape(text: str) -> Markup:
    """Text as HTML: made visible first, so that no control, bidirectional or surrogate character is left in it."""
    return text if isinstance(text, Markup) else _escape(visible(text))


def el(tag: str, *children: Child, **attributes: str | int | None) -> Markup:
    """An element. Children that are not `Markup` are escaped, as are attribute values; None stands for nothing.

    Args:
        tag: name of the element, as written in the code, never from data.
        children: texts, markup, or iterables of them.
        attributes: ``class_`` is written ``class``, ``data_x`` is written ``data-x``; None leaves one out.
    """
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    written = [f' {names[k]}="{escape(str(v))}"' for k, v in attributes.items() if v is not None]
    start = Markup(f"<{tag}{''.join(written)}>")
    return start if tag in ("img", "br") else start + joined(children) + Markup(f"</{tag}>")


def joined(children: Child) -> Markup:
    """Children one after the other, escaped where they are text."""
    if children is None:
        return Markup("")
    if isinstance(children, str):
        return escape(children)
    return Markup("").join(joined(child) for child in children)


def inline(text: str) -> Markup:
    """A sentence in which names stand between back-ticks, as HTML with ``<code>``."""
    parts: list[Markup] = []
    end = 0
    for match in _BACKTICKS.finditer(text):
        parts += [escape(text[end : match.start()]), el("code", match[1])]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
