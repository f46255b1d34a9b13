"""`why_alive`: who holds an object, as text, for any object in any program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.heap.find import find_holders
from jaxleak_magic.heap.objects import type_name
from jaxleak_magic.heap.paths import Budget, Path, Root, Step
from jaxleak_magic.heap.roots import default_roots


@dataclass(frozen=True, repr=False)
class WhyAlive:
    """Who holds an object; printing it shows the text.

    Attributes:
        type: the object's type name.
        paths: paths from the object up to named roots, best first; the last may be incomplete.
        invisible: whether something holds it that Python's collector cannot see.
        unfinished_reason: what could not be searched, as a sentence, or None.
    """

    type: str
    paths: tuple[Path, ...]
    invisible: bool
    unfinished_reason: str | None

    @property
    def text(self) -> str:
        """The paths as an indented text, from the root down to the object."""
        lines: list[str] = []
        if not self.paths:
            lines.append(f"Nothing that Python's collector can see holds this {self.type}, but for running code.")
        for path in self.paths:
            lines.append(_heading(path, self.type))
            lines += [f"    {sentence(step)}" for step in reversed(path.steps)]
        if self.invisible:
            lines.append("It is also held by something that Python's collector cannot see, such as C code.")
        if self.unfinished_reason:
            lines.append(self.unfinished_reason)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def why_alive(
    obj: object, roots: Sequence[Root] | None = None, *, per_target: int = 3, seconds: float = 20.0
) -> WhyAlive:
    """Who holds an object: the shortest ways to it from variables of the program.

    Args:
        obj: any object.
        roots: where to end; by default the variables of the notebook or script, of the running functions of all
            threads, and of all modules.
        per_target: how many paths to give at most.
        seconds: time after which the search stops and says so.

    Returns:
        Plain data that holds neither the object nor anything else of the program; printing it shows a text.
    """
    name = type_name(type(obj))
    roots = default_roots() if roots is None else roots
    found = find_holders([obj], roots, per_target=per_target, budget=Budget(seconds=seconds))
    return WhyAlive(name, found.paths[0], 0 in found.invisible, found.unfinished_reason)


def sentence(step: Step) -> str:
    """A step as a short sentence with the holder as its subject."""
    name, holder = step.name, step.holder
    if name is None:
        return f"{holder} holds it" if step.kind != "item" else f"{holder} contains it"
    texts = {
        "closure_cell": f"{holder} closes over {name}",
        "attribute": f"{holder} has it as .{name}",
        "item": f"{holder} has it as {name}",
        "key": f"{holder} has it as {name}",
        "argument_default": f"{holder} has it as default of the argument {name}",
        "bound_method": f"the bound method {holder} is bound to it",
        "partial": f"{holder} has it as argument {name}",
        "generator": f"the suspended {holder} has it in its variable {name}",
        "frame_local": f"{holder} has it in its variable {name}",
        "global": f"{holder}: the variable {name}",
        "class_attribute": f"{holder} has it as class attribute {name}",
        "weak": f"{holder} holds it for {name}",
        "cache": f"the cache of {holder} has it as {step.detail.get('role', 'entry')}",
    }
    text = texts.get(step.kind, f"{holder} holds it as {name}")
    if "thread" in step.detail:
        text = f"in the thread {step.detail['thread']}, {text}"
    return f"{text}, kept by {step.detail['kept_by']}" if "kept_by" in step.detail else text


def _heading(path: Path, kind: str) -> str:
    if not path.complete:
        return f"A {kind} is held by something whose own holder cannot be seen:"
    return f"A {kind} is held, {path.hops} reference{'s' if path.hops != 1 else ''} deep:"
