"""What a rule makes: edits of the user's texts, and what they do, for the static checks to allow just that."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxleak_magic.rewrite.scopes import FunctionNode
from jaxleak_magic.rewrite.texts import Text, TextEdit


@dataclass
class Draft:
    """Edits of several texts, and what they do.

    Attributes:
        edits: the edits of each text.
        lifted: functions that got parameters.
        bound: whether a function was bound with ``jax.tree_util.Partial``.
        children: (class, attribute) pairs that became pytree children.
        returned: (function, variable) pairs that are returned now.
        kept: functions that may close over the values, since JAX lifts their closures itself.
        kept_values: names by which those write the values.
        new_parameters: new names of parameters of flatten and unflatten functions.
        registered: classes that became pytrees.
        renamed_parameters: functions of which an unused parameter took the value's name.
        variables: names that became arguments beside those of the case.
        rows: names that mean a variable of a new function: one row in a mapped lambda, one step's in a loop's body.
    """

    edits: dict[Text, list[TextEdit]] = field(default_factory=dict)
    lifted: list[FunctionNode] = field(default_factory=list)
    bound: bool = False
    children: list[tuple[str, str]] = field(default_factory=list)
    returned: list[tuple[str, str]] = field(default_factory=list)
    kept: list[FunctionNode] = field(default_factory=list)
    kept_values: set[str] = field(default_factory=set)
    new_parameters: set[str] = field(default_factory=set)
    renamed_parameters: list[FunctionNode] = field(default_factory=list)
    registered: list[ast.ClassDef] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    rows: list[ast.Name] = field(default_factory=list)

    def add(self, text: Text, edits: Sequence[TextEdit]) -> None:
        """Take up edits of one text."""
        self.edits.setdefault(text, []).extend(edits)
