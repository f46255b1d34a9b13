"""The rules, one module each, and their register. A rule without examples cannot be registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.lift import Draft

Propose = Callable[[Case], tuple[str, Draft] | None]


@dataclass(frozen=True)
class Example:
    """A text before a rule and after it, or the refusal; the rule's tests are made from these.

    Attributes:
        shows: what the example shows, in a few words.
        before: the cell.
        after: the whole rewritten cell, or None where the rule refuses.
        refusal: words of the refusal, or None.
        function: name of the function that holds the value (``"<lambda>"``), or None where the leak has none.
        variables: its free variables that hold tracers.
        variable: name of the leaked value, where no function holds it.
        constant_lines: lines that computed the value where nothing traced goes into it.
        fields: (class, attribute) pairs on the leak's path.
        dtype: dtype of the leaked value.
        transforms: the user's transforms around the value, outermost first.
        escaped_line: line of the transform that ended, or None.
        stored_line: line of the statement that stored the value, or None.
    """

    shows: str
    before: str
    after: str | None = None
    refusal: str | None = None
    function: str | None = None
    variables: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    dtype: str = "float32"
    transforms: tuple[str, ...] = ("jit",)
    escaped_line: int | None = None
    stored_line: int | None = None
    variable: str | None = None
    constant_lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        id: the fix's id in the report.
        propose: gives a title and a draft; None where the rule does not apply; raises `Refused` where it applies but
            the meaning would not certainly stay.
        title: the title of a refusal, from the case.
        examples: at least one rewrite and one refusal.
    """

    id: str
    propose: Propose
    title: Callable[[Case], str]
    examples: Sequence[Example]

    def __post_init__(self) -> None:
        """Refuse a rule that shows nothing."""
        if not any(e.after is not None for e in self.examples) or not any(e.refusal for e in self.examples):
            raise ValueError(f"rule {self.id!r} needs an example of a rewrite and one of a refusal")


def all_rules() -> tuple[Rule, ...]:
    """Every rule, in the order in which they are tried."""
    from jaxleak_magic.rewrite.rules import (
        constant_outside_trace,
        inject_hyperparams,
        lift_closure_to_argument,
        make_pytree_child,
        nondiff_argument,
        remove_memo,
        return_instead_of_write,
        setting_to_argument,
        thread_state,
        use_library_transform,
        use_partial,
    )

    return (
        make_pytree_child.RULE,
        inject_hyperparams.RULE,
        use_partial.RULE,
        lift_closure_to_argument.RULE,
        nondiff_argument.RULE,
        setting_to_argument.RULE,
        use_library_transform.RULE,
        remove_memo.RULE,
        constant_outside_trace.RULE,
        return_instead_of_write.RULE,
        thread_state.RULE,
    )
