"""Which branch of a conditional, or which side of a carry, has which type: read from JAX's message."""

from __future__ import annotations

import re

_MISMATCH = re.compile(
    r"[Tt]he (?P<one>(?:output of |input carry )?.+?) has type (?P<first>\S+?),? but the corresponding "
    r"(?P<other>.+?) has type (?P<second>[^\s,;]+[^\s,;.])"
)
_OLD_MISMATCH = re.compile(r"^(?:DIFFERENT )?(?P<first>\w+\(.*\)) vs\. (?P<second>\w+\(.*?\))\.?$", re.MULTILINE)
_OLD_NAMES = re.compile(r"(?P<one>\w+) and (?P<other>\w+) (?:output )?must have")
_BRANCH = re.compile(r"^(?P<alias>\w+(?: \d+)?) is (?P<function>\S+) at .*:(?P<line>\d+)$", re.MULTILINE)
_OUTPUT = re.compile(r"output of (?P<alias>\w+(?: \d+)?)(?P<path>.*)$")


def disagreement(message: str) -> str:
    """A sentence with a space before it, or the empty string where the message does not tell.

    Args:
        message: the text of a TypeError of ``cond``, ``switch``, ``scan`` or ``while_loop`` (JAX 0.3 to 0.12).
    """
    found = _MISMATCH.search(message)
    if found:
        functions = {each["alias"]: each["function"] for each in _BRANCH.finditer(message)}
        one, other = (_branch(found[side], functions) for side in ("one", "other"))
        if one and other:
            return f" {one} gives {found['first']}, {other} gives {found['second']}."
        return f" The {found['one']} has type {found['first']}, the {found['other']} {found['second']}."
    old, names = _OLD_MISMATCH.search(message), _OLD_NAMES.search(message)
    if old and names:
        return f" `{names['one']}` gives {old['first']}, `{names['other']}` gives {old['second']}."
    return ""


def _branch(side: str, functions: dict[str, str]) -> str | None:
    """``output of true_fun['a']`` with the user's own name of the branch: ```fresh` at ['a']``."""
    output = _OUTPUT.match(side)
    function = functions.get(output["alias"]) if output else None
    if output is None or function is None or function == "<lambda>":
        return None
    return f"`{function}`" + (f" at {output['path']}" if output["path"] else "")
