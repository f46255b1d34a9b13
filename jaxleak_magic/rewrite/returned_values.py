"""Values that are needed after a call: the function returns them too, and the call binds them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.reaching import Return
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.texts import Text, TextEdit


def emit_returns(program: Program, draft: Draft, returns: Sequence[Return]) -> None:
    """Let functions return values that are needed after their call, and bind them there."""
    for function in dict.fromkeys(r.function for r in returns):
        wanted = list(dict.fromkeys(r for r in returns if r.function is function))
        names = [r.variable for r in wanted]
        statement = wanted[0].statement
        text, calling = program.text_of[function], program.text_of[statement]
        last = function.body[-1]
        assert isinstance(last, ast.Return)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        added = "".join(f", {name}" for name in names)
        if last.value is None or (isinstance(last.value, ast.Constant) and last.value.value is None):
            raise Refused(
                f"`{function.name}` returns nothing. Let it return {listed(names)}, and pass that at the later calls."
            )
        if isinstance(last.value, ast.Tuple):
            if not isinstance(target, ast.Tuple) or len(target.elts) != len(last.value.elts) or not target.elts:
                raise Refused(
                    f"`{function.name}` returns a tuple. Let it return {listed(names)} too, bind it where "
                    f"`{function.name}` is called, and pass it at the later calls."
                )
            draft.add(text, [insertions.extend_tuple(text, last.value, names)])
            draft.add(calling, [insertions.extend_tuple(calling, target, names)])
        else:
            end = text.after_parentheses(text.stop(last.value), text.after_parentheses(text.stop(last), len(text.text)))
            draft.add(text, [TextEdit(end, end, 5, added)])
            if isinstance(target, ast.Tuple):
                draft.add(calling, insertions.wrap(calling, target, "(", ")" + added))
            elif target is not None:
                end = calling.stop(target)
                draft.add(calling, [TextEdit(end, end, 0, added)])
            else:
                _bind_statement(draft, calling, statement, names, function)
        draft.returned += [(function.name, name) for name in names]
        if program.scope_at[statement.value].kind != "module":
            draft.new_parameters.update(names)


def _bind_statement(
    draft: Draft, text: Text, statement: ast.Assign | ast.Expr, names: Sequence[str], function: ast.FunctionDef
) -> None:
    assert isinstance(statement, ast.Expr)
    if len(names) != 1 or text.tree.body[-1] is statement:
        raise Refused(
            f"The result of `{function.name}` is not bound to a name. Let it return {listed(names)} too, bind it, "
            "and "
            f"pass it at the later calls."
        )
    draft.add(text, insertions.wrap(text, statement.value, f"{names[0]} = ", "[1]"))
