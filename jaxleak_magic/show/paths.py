"""A path from a root to a leaked value as steps that a picture can be made of."""

from __future__ import annotations

from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Link, Report
from jaxleak_magic.show import words
from jaxleak_magic.show.escaping import name

NAMESPACES = ("global",)
"""Kinds of link whose holder is a namespace: the name in it is what the user knows, so it stands for the holder."""

_EDGES = {
    "closure_cell": "closes over {}",
    "key": "as a key",
    "argument_default": "default of {}",
    "bound_method": "bound to",
    "partial": "binds {}",
    "generator": "local {}",
    "frame_local": "local {}",
    "global": "",
    "weak": "weakly {}",
    "pytree_aux": "aux data",
    "cache": "caches",
}


@dataclass(frozen=True)
class Step:
    """A holder on a path, outermost first; every text is made visible.

    Attributes:
        title: short name of the holding object, or the name of the global.
        label: the step in the user's names; for a global without its name, which is the title.
        note: the line where it was defined and whose it is, in brief; may be empty.
        edge: how it holds the next one, in a word or two; may be empty.
        look: ``root``, ``cache``, ``lib``: how it differs from any object of the user's.
        key: equal for the same object anywhere in a report, None where that is not known.
        link: the link that it shows.
    """

    title: str
    label: str
    note: str
    edge: str
    look: frozenset[str]
    key: tuple[int, str] | None
    link: Link


def steps(chain: tuple[Link, ...], report: Report) -> list[Step]:
    """The steps of a chain, from the root down to the innermost holder of the value."""
    found: list[Step] = []
    for depth, link in enumerate(reversed(chain)):
        look = {"root"} if depth == 0 else set[str]()
        if link.kind == "cache":
            look.add("cache")
        elif link.owner != "user":
            look.add("lib")
        in_namespace = link.kind in NAMESPACES and bool(link.name)
        title = (link.name if in_namespace else link.holder) or link.name or link.type
        label = name(link.label)
        if in_namespace:
            label = label.removesuffix(f" {name(title)}")
        found.append(
            Step(
                name(title),
                label,
                ", ".join(words.step_notes(link, report)),
                _edge(link),
                frozenset(look),
                None if link.node is None else (link.node, (link.name or "") if in_namespace else ""),
                link,
            )
        )
    return found


def _edge(link: Link) -> str:
    form = _EDGES.get(link.kind, "{}")
    text = name(link.name or "")
    if link.kind in ("attribute", "class_attribute") and text:
        return "." + text.removeprefix(".")
    return form.replace("{}", text).strip()
