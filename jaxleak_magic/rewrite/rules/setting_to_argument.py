"""A setting that a function writes for others to read becomes an argument of those others."""

from __future__ import annotations

import ast

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.flow import Flow, function_name
from jaxleak_magic.rewrite.imports import drop_unused_import
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.reaching import Return
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.returned_values import emit_returns
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.scopes import Scope
from jaxleak_magic.rewrite.settings import Setting, setting_written_at
from jaxleak_magic.rewrite.use_edits import UseEdits


def propose(case: Case) -> tuple[str, Draft] | None:
    """The readers take the value as an argument; the writer passes it, and returns it where it is needed later."""
    place, program = case.leak.stored, case.program
    if place is None or case.leak.facts.captured:
        return None
    setting = setting_written_at(program, place)
    if setting is None:
        return None
    writer = program.enclosing_function(setting.written)
    if not isinstance(writer, ast.FunctionDef) or setting.written not in writer.body or len(writer.body) < 2:
        return None
    owner, variable = program.owner(setting.value), setting.value.id
    if owner is None or owner is not program.own_scope[writer]:
        return None
    reads = setting.reads()
    readers = list(dict.fromkeys(program.enclosing_function(read) for read in reads))
    if not readers:
        return None
    draft = Draft(variables=[variable])
    returns: list[Return] = []
    for reader in readers:
        if not isinstance(reader, ast.FunctionDef) or reader is writer:
            raise Refused(
                f"`{setting.text}` is also read outside of a function, or where it is written. Pass `{variable}` to "
                f"what needs it by hand."
            )
        _check_name_is_free(program, reader, variable)
        flow = Flow(program, reader, [variable], {variable: owner})
        flow.run()
        _check_uses(program, flow, setting, owner)
        UseEdits(program, draft).emit(flow)
        draft.lifted.append(reader)
        returns += [r.returned for r in flow.reached if r.returned is not None]
    for read in reads:
        text = program.text_of[read]
        draft.add(text, insertions.replace(text, read, variable))
    emit_returns(program, draft, returns)
    for statement in (setting.written, setting.definition()):
        if statement is not None:
            text = program.text_of[statement]
            draft.add(text, [insertions.delete_statement(text, statement)])
    if (definition := setting.definition()) is not None:
        drop_unused_import(program, draft, definition.value)
    names = listed([function_name(program, reader) for reader in draft.lifted])
    return f"Pass `{variable}` to {names} as an argument instead of `{setting.text}`", draft


def _check_name_is_free(program: Program, reader: ast.FunctionDef, variable: str) -> None:
    own = program.own_scope[reader]
    taken = any(variable in scope.sites for scope in program.own_scope.values() if scope.is_inside(own))
    used = any(isinstance(node, ast.Name) and node.id == variable for node in ast.walk(reader))
    if taken or used:
        raise Refused(f"`{reader.name}` uses the name `{variable}` already. Give it the value under another name.")


def _check_uses(program: Program, flow: Flow, setting: Setting, owner: Scope) -> None:
    text = program.text_of[setting.written]
    for use in flow.uses:
        inside = program.scope_at[use.node].is_inside(owner)
        if inside and text.start(use.node) < text.stop(setting.written):
            raise Refused(
                f"`{flow.name}` is called on line {use.node.lineno} before `{setting.text}` is set, so it is not sure "
                f"which value it means there. Pass the right one by hand."
            )
    if flow.carriers or flow.stores or not flow.uses:
        raise Refused(
            f"`{flow.name}` reads `{setting.text}` and is used where its value is not at hand. Let it take the value "
            f"as an argument, and pass it at each call."
        )


_CONTEXT = """\
import contextvars
import jax
import jax.numpy as jnp

temp = contextvars.ContextVar("temp")

def softened(x):
    return jax.nn.softmax(x / temp.get())

@jax.jit
def probabilities(x, t):
    temperature = 1.0 + t
    temp.set(temperature)
    return softened(x)

probabilities(jnp.arange(3.0), 0.5)
softened(jnp.arange(3.0))
"""

_CONTEXT_AFTER = """\
import jax
import jax.numpy as jnp


def softened(x, temperature):
    return jax.nn.softmax(x / temperature)

@jax.jit
def probabilities(x, t):
    temperature = 1.0 + t
    return softened(x, temperature), temperature

temperature = probabilities(jnp.arange(3.0), 0.5)[1]
softened(jnp.arange(3.0), temperature)
"""

_MODULE = """\
import jax
import jax.numpy as jnp
import settings

def converged(err):
    return err < settings.tol

@jax.jit
def refine(err):
    tol = err * 0.1
    settings.tol = tol
    return jnp.where(converged(err), 0.0, err)

out = refine(1.0)
converged(0.5)
"""

EXAMPLES = (
    Example(
        "a context variable",
        _CONTEXT,
        _CONTEXT_AFTER,
        stored_line=13,
    ),
    Example(
        "an attribute of a module",
        _MODULE,
        _MODULE.replace("converged(err):", "converged(err, tol):")
        .replace("err < settings.tol", "err < tol")
        .replace("    settings.tol = tol\n", "")
        .replace("converged(err), 0.0, err)", "converged(err, tol), 0.0, err), tol")
        .replace("out =", "out, tol =")
        .replace("converged(0.5)", "converged(0.5, tol)"),
        stored_line=11,
    ),
    Example(
        "a reader that is called before the setting is written",
        _MODULE.replace("tol = err * 0.1\n", "tol = err * 0.1\n    err = err + converged(err)\n"),
        refusal="before `settings.tol` is set",
        stored_line=12,
    ),
)

RULE = Rule(
    "lift_closure_to_argument",
    propose,
    lambda case: f"Pass `{case.leak.variable}` as an argument instead of a setting",
    EXAMPLES,
)
