"""The one ``args`` of a library's call, which its callable gets as a last argument: free for a value, or taken."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.flow import Flow
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.uses import Use


@dataclass(frozen=True)
class ArgumentSlot:
    """The slot of one function's uses.

    Args:
        program: all texts.
        draft: takes the edits.
    """

    program: Program
    draft: Draft

    def free_number(self, flow: Flow) -> int | None:
        """Number of the parameter that a library fills from ``args``, where neither the function nor a call uses it."""
        numbers = {use.row.slot_parameter for use in flow.uses if use.kind == "slot" and use.row is not None}
        positional = [*flow.function.args.posonlyargs, *flow.function.args.args]
        if (
            len(numbers) != 1
            or len(flow.variables) != 1
            or (number := numbers.pop()) is None
            or number >= len(positional)
        ):
            return None
        scope, parameter = self.program.own_scope[flow.function], positional[number].arg
        is_free = not self.program.loads(scope, parameter) and self.program.only_site(scope, parameter) is not None
        without_default = number < len(positional) - len(flow.function.args.defaults)
        taken = any(a.arg == flow.variables[0] for a in positional)
        if not is_free or not without_default or taken or positional[number].annotation is not None:
            return None
        return number if all(self._leaves_free(use, number) for use in flow.uses) else None

    def _leaves_free(self, use: Use, number: int) -> bool:
        if not isinstance(use.node, ast.Call):
            return use.kind == "term"
        if any(isinstance(a, ast.Starred) for a in use.node.args) or any(k.arg is None for k in use.node.keywords):
            return False
        if use.kind == "slot":
            assert use.row is not None
            assert use.row.slot is not None
            given = _given(use.node, *use.row.slot)
            return (given is None and len(use.node.args) <= use.row.slot[1]) or _is_none(given)
        return use.kind == "call" and use.direct and number < len(use.node.args) and _is_none(use.node.args[number])

    def fill(self, flow: Flow, number: int) -> None:
        """Give the free parameter the value's name, and put the value into the slot of each use."""
        function = flow.function
        text = self.program.text_of[function]
        parameter = [*function.args.posonlyargs, *function.args.args][number]
        self.draft.add(text, insertions.replace(text, parameter, flow.variables[0]))
        self.draft.renamed_parameters.append(function)
        for use in flow.uses:
            if not isinstance(use.node, ast.Call):
                continue
            text, (value,) = self.program.text_of[use.node], use.values
            if use.kind == "slot":
                assert use.row is not None
                assert use.row.slot is not None
                keyword, position = use.row.slot
                given = _given(use.node, keyword, position)
                if given is not None:
                    self.draft.add(text, insertions.replace(text, given, value))
                elif len(use.node.args) == position:
                    self.draft.add(text, insertions.append_arguments(text, use.node, [f"{keyword}={value}"]))
                else:
                    self.draft.add(text, insertions.append_keywords(text, use.node, [f"{keyword}={value}"]))
            else:
                self.draft.add(text, insertions.replace(text, use.node.args[number], value))

    def uses_without_slot(self, flow: Flow) -> list[Use]:
        """The uses with the callable bound where it is given away, since its slot is taken."""
        uses: list[Use] = []
        for use in flow.uses:
            if use.kind == "term" and use.values and not flow.stores:
                uses.append(Use("bind", use.node, use.values))
            elif use.kind == "slot" and any(u.kind == "term" and u.values for u in flow.uses) and not flow.stores:
                continue
            elif (
                use.kind == "slot" and use.row is not None and use.row.keeps_closures and isinstance(use.node, ast.Call)
            ):
                given = _given(use.node, use.row.keyword or "", use.row.position)
                if given is None:
                    raise Refused(
                        f"`{flow.name}` is given away in an unusual form. Pass {listed(flow.variables)} by hand."
                    )
                uses.append(Use("bind", given, use.values))
            elif use.kind in ("slot", "term"):
                raise Refused(
                    f"The `args` of `{flow.name}` are in use already. Put {listed(flow.variables)} into them too and "
                    "unpack "
                    f"it in `{flow.name}`."
                )
            else:
                uses.append(use)
        return uses


def _given(call: ast.Call, keyword: str, position: int) -> ast.expr | None:
    """The argument given by keyword or position, or None."""
    for each in call.keywords:
        if each.arg == keyword:
            return each.value
    return call.args[position] if position < len(call.args) else None


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
