"""The "is referred to by" lines of JAX's leak report as links of a path, with the root and the mechanism they tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxleak_magic.diagnose.model import Holder, Link, LinkKind, Owner

_HOP = re.compile(r"^\s*<(?P<child>\S+) (?P<id>\d{1,30})> is referred to by (?P<rest>.*)$", re.DOTALL)
_HOLDER = re.compile(r"^<(?P<type>\S+) (?P<id>\d{1,30})>(?P<how>.*)$", re.DOTALL)
_CLOSURE = re.compile(r"^(?: \((?P<function>.*)\))? closed-over variable (?P<name>\w+)$")
_CLOSURES = re.compile(r"^(?: \((?P<function>.*)\))? in closed-over variables (?P<names>.+)$")
_FRAME = re.compile(
    r"^the local variable '(?P<name>.*?)'(?P<inside>, .*? containing it,)? of the frame (?P<function>.+?)"
    r"(?: \((?P<file>.*):(?P<line>\d{1,9})\))?$",
    re.DOTALL,
)
_SELF = re.compile(r"^(?P<module>[A-Za-z_][\w.]*)\.(?P<name>\w+)$")
_UNHELD = re.compile(r"^\s*<\S+ \d+> has no referrers visible to the gc module")

_BY_TYPE: dict[str, LinkKind] = {
    "cell": "closure_cell",
    "method": "bound_method",
    "partial": "partial",
    "generator": "generator",
    "frame": "frame_local",
    "_lru_cache_wrapper": "cache",
    "set": "item",
    "frozenset": "item",
    "deque": "item",
    "weakref": "weak",
    "ReferenceType": "weak",
    "KeyedRef": "weak",
    "WeakKeyDictionary": "weak",
    "WeakValueDictionary": "weak",
    "WeakSet": "weak",
}
_JAX_TYPES = re.compile(
    r"(?:\w+Tracer|\w+Trace|TracingEqn|JaxprEqnRecipe|JaxprStackFrame|JaxprEqn|Jaxpr|ClosedJaxpr|ConstVar|FreeVar|LambdaBinding"
    r"|PjitInfo|PjitFunction|WrappedFun|HashableFunction|MainTrace|Sublevel|FlatTree)"
)
_JAX_FUNCTIONS = {"cache_miss", "wrapped", "memoized_fun", "reraise_with_filtered_traceback"}


@dataclass(frozen=True)
class Hop:
    """One line: the object that is held, by its id, what holds it (None where that has no id), and the link."""

    child: str
    child_id: int
    holder_id: int | None
    link: Link
    file: str | None = None
    """File of the frame whose local variable holds it, or None."""


def is_unheld(line: str) -> bool:
    """Whether a line says that JAX saw no referrer (JAX 0.12)."""
    return _UNHELD.match(line) is not None


def read_hop(line: str) -> Hop | None:
    """Read one line; None where it is none. A holder in an unknown form is kept as the label, word for word."""
    hop = _HOP.match(line)
    if hop is None:
        return None
    rest = hop["rest"].rstrip()
    holder = _HOLDER.match(rest)
    frame = _FRAME.match(rest)
    if holder:
        link = _link(hop["child"], holder["type"], holder["how"])
    elif frame:
        link = _frame_link(frame)
    elif own := _SELF.match(rest):
        link = Link("global", f"global {own['name']} of {own['module']}", "module", "user", None, own["name"], "module")
    else:
        link = Link("other", rest or "something without a name", "unknown", "user")
    file = frame["file"] if frame and not holder else None
    return Hop(hop["child"], int(hop["id"]), int(holder["id"]) if holder else None, link, file)


def chains_of(hops: Sequence[Hop]) -> list[tuple[Hop, ...]]:
    """The paths that the lines of one tracer make: a line that goes on from another object begins a new one."""
    chains: list[list[Hop]] = []
    for hop in hops:
        if chains and chains[-1][-1].holder_id == hop.child_id:
            chains[-1].append(hop)
        else:
            chains.append([hop])
    return [_with_globals(chain) for chain in chains]


def root_of(links: Sequence[Link]) -> Holder | None:
    """What keeps the value, as far as the path tells: the last step with a name of the user's."""
    named = [link for link in links if link.name and link.owner == "user"]
    for link in named:
        if link.kind == "global":
            return Holder("global", link.name or "", "user")
    for link in reversed(named):
        if link.kind in ("item", "key") and link.type in ("list", "dict", "tuple", "deque"):
            continue  # an item of something that has no name
        name = f"{link.holder}{link.name}" if link.kind == "attribute" else link.name or ""
        return Holder(link.kind, name, link.owner)
    return None


def variable_of(links: Sequence[Link]) -> str | None:
    """The user's name for the value: that of the first step, where it is a variable or an attribute."""
    first = links[0] if links else None
    if first is None or first.name is None:
        return None
    if first.kind in ("global", "closure_cell", "frame_local"):
        return first.name if first.name.isidentifier() and "containing" not in first.label else None
    return first.label if first.kind in ("attribute", "class_attribute") and first.owner == "user" else None


def mechanism_of(links: Sequence[Link]) -> str:
    """The mechanism's name (`jaxleak_magic.diagnose.model.MECHANISMS`), ``other`` where the path tells too little."""
    if not links:
        return "other"
    kinds = [link.kind for link in links]
    types = {link.type for link in links}
    first = links[0]
    if "cache" in kinds:
        return "lru_cache"
    if first.kind == "key" and re.search("cache|memo", " ".join(link.name or "" for link in links[1:]), re.IGNORECASE):
        return "dict_memo"
    for kind, name in (
        ("argument_default", "default_arg"),
        ("class_attribute", "class_attr"),
        ("generator", "generator"),
        ("weak", "weak_registry"),
    ):
        if kind in kinds:
            return name
    if types & {"_thread._local", "_local", "local"}:
        return "host_thread"
    if "traceback" in types:
        return "exception_traceback"
    if first.kind == "partial" or (len(kinds) > 1 and kinds[1] == "partial" and first.type in ("tuple", "dict")):
        return "partial_object"
    return {
        "closure_cell": "closure_escape",
        "attribute": "attribute_write",
        "item": "container_append",
        "key": "container_append",
        "global": "global_write",
    }.get(first.kind, "other")


def _link(child: str, holder: str, how: str) -> Link:
    owner: Owner = "jax" if _JAX_TYPES.fullmatch(holder) else "user"
    if match := _CLOSURE.match(how) or _CLOSURES.match(how):
        function = match["function"]
        names = match.groupdict().get("name") or ", ".join(re.findall(r"'(.*?)'", match["names"]))
        who = {"<lambda>": "a lambda", None: "a function"}.get(function, function)
        if function in _JAX_FUNCTIONS:
            owner = "jax"
        short = "a function" if function is None else "lambda" if function == "<lambda>" else f"{function}()"
        return Link("closure_cell", f"{who} closes over {names}", holder, owner, None, names, short)
    if how.startswith("."):
        kind: LinkKind = "partial" if holder == "partial" else "attribute"
        kind = "class_attribute" if holder in ("type", "ABCMeta", "EnumMeta") else kind
        return Link(kind, f"{holder}{how}", holder, owner, None, how, holder)
    if how.startswith((" in vars ", " at keys ", " at indices ")):
        kind = "attribute" if how.startswith(" in") else "key" if how.startswith(" at keys") else "item"
        names = how.split(" ", 3)[3]
        return Link(kind, f"{holder}{how}", holder, owner, None, names, holder)
    if how.startswith("[") and how.endswith("]"):
        kind = "item" if how[1:-1].isdecimal() else "key"
        return Link(kind, f"{holder}{how}", holder, owner, None, how, holder)
    if how:
        return Link("other", f"{holder}{how}", holder, owner, None, None, holder)
    if holder == "function" and child == "tuple":
        return Link("argument_default", "default arguments of a function", holder, owner, None, None, "a function")
    kind = _BY_TYPE.get(holder, "other")
    return Link(kind, f"held by a {holder}", holder, owner, None, None, holder)


def _frame_link(frame: re.Match[str]) -> Link:
    name, function = frame["name"], frame["function"]
    line = int(frame["line"]) if frame["line"] else None
    inside = frame["inside"].strip(" ,") if frame["inside"] else ""
    if function == "<module>" and not inside:
        return Link("global", f"global {name}", "frame", "user", line, name, "module")
    label = f"local variable {name} of {function}" + (f", {inside}" if inside else "")
    return Link("frame_local", label, "frame", "user", line, name, f"{function}()")


def _with_globals(chain: Sequence[Hop]) -> tuple[Hop, ...]:
    """A dict that a function holds without a name is its module's namespace; IPython's is ``user_ns``."""
    found = list(chain)
    for at in range(len(chain) - 1):
        key, function = chain[at].link, chain[at + 1].link
        of_function = function.type == "function" and function.kind == "other"
        of_shell = function.name in ("._user_ns", ".user_ns", ".user_global_ns")
        if key.kind != "key" or key.type != "dict" or not (of_function or of_shell):
            continue
        name = (key.name or "")[1:-1].strip("'\"")
        if name.isidentifier():
            found[at] = replace(chain[at], link=replace(key, kind="global", label=f"global {name}", name=name))
            label = "namespace of a function's module" if of_function else "namespace of the notebook"
            owner: Owner = "user" if of_function else "ipython"
            found[at + 1] = replace(chain[at + 1], link=replace(function, label=label, owner=owner))
    return tuple(found)
