"""What part a function or value plays in the user's code, by syntax: derivative rule, callback, flatten, random key."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxleak_magic.diagnose.model import Place, TracerInfo
from jaxleak_magic.diagnose.referrers import function_name
from jaxleak_magic.diagnose.storage import Storage
from jaxleak_magic.diagnose.syntax import FunctionNode, Syntax, last_name
from jaxleak_magic.diagnose.trace_stack import Places
from jaxleak_magic.heap import Step

_RANDOM = ("random", "split", "fold_in", "PRNGKey", "key")


def is_random(created: Place | None, info: TracerInfo, places: Places) -> bool:
    """Whether the value is a random key, or was made by splitting one: by its dtype or by the creating statement."""
    if info.dtype is not None and info.dtype.startswith("key<"):
        return True
    if created is None or created.source is None:
        return False
    is_raw_key = info.dtype == "uint32" and info.shape is not None and info.shape[-1:] == (2,)
    return is_raw_key and any(word in created.source for word in _RANDOM)


def rule_place(step: Step, places: Places) -> Place | None:
    """Where a closure is made the primal or a rule of a custom derivative: decorated so, or given to ``defvjp``."""
    if step.filename is None or step.line is None:
        return None
    name = function_name(step)
    node = places.definition(step.filename, step.line, name)
    if node is None:
        return None
    syntax = places.syntax(step.filename)
    if isinstance(node, ast.FunctionDef) and any(_mentions_rule(d) for d in node.decorator_list):
        return places.in_text(step.filename, node.lineno, node.col_offset, node.name)
    around = syntax.function_around(node) or syntax.tree
    for call in ast.walk(around):
        if not isinstance(call, ast.Call) or not _mentions_rule(call.func):
            continue
        for argument in call.args:
            if argument is node or (isinstance(argument, ast.Name) and argument.id == name):
                return places.in_text(step.filename, call.lineno, call.col_offset, None)
    return None


def given_to_callback(step: Step, places: Places) -> bool:
    """Whether a function is an argument of ``jax.debug.callback``, ``pure_callback`` or ``io_callback``."""
    if step.filename is None or step.line is None:
        return False
    name = function_name(step)
    node = places.definition(step.filename, step.line, name)
    return node is not None and _is_callback_argument(places.syntax(step.filename), node, name)


def stored_by_callback(storage: Storage, places: Places) -> bool:
    """Whether the storing statement stands in a function that is given to a host callback."""
    if storage.filename is None or storage.statement is None or storage.place is None:
        return False
    syntax = places.syntax(storage.filename)
    write = next((w for w in syntax.writes if w.line == storage.statement.lineno and w.function is not None), None)
    if write is None or write.function is None:
        return False
    return _is_callback_argument(syntax, write.function, getattr(write.function, "name", "<lambda>"))


def _is_callback_argument(syntax: Syntax, function: FunctionNode, name: str) -> bool:
    for call in ast.walk(syntax.tree):
        if isinstance(call, ast.Call) and (last_name(call.func) or "").endswith("callback"):
            for argument in call.args:
                if argument is function or (isinstance(argument, ast.Name) and argument.id == name):
                    return True
    return False


def names_a_seed(storage: Storage) -> bool:
    """Whether the statement writes a variable that is called a seed or a random state."""
    if not isinstance(storage.statement, ast.Assign):
        return False
    target = ast.unparse(storage.statement.targets[0]).lower()
    return any(word in target for word in ("seed", "rng", "prng"))


_RULES = ("custom_vjp", "custom_jvp", "custom_gradient", "defvjp", "defjvp", "defjvps", "def_fwd", "def_bwd", "def_jvp")


def _mentions_rule(node: ast.expr) -> bool:
    return any(
        getattr(part, "attr", getattr(part, "id", "")).removeprefix("filter_") in _RULES
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name)
    )


def flatten_place(steps: Sequence[Step], places: Places) -> Place | None:
    """Where the pytree class puts its static part: the return of its hand-written flatten function, or None."""
    for step in reversed(steps):
        if step.kind != "attribute":
            continue
        name = step.type.rpartition(".")[2]
        for filename in places.sources.filenames():
            syntax = places.syntax(filename)
            flatten = _flatten_function(syntax, name)
            if flatten is None:
                continue
            if isinstance(flatten, ast.Lambda):
                return places.in_text(filename, flatten.lineno, flatten.col_offset, "<lambda>")
            returns = [n for n in ast.walk(flatten) if isinstance(n, ast.Return)]
            if len(returns) == 1:
                return places.in_text(filename, returns[0].lineno, returns[0].col_offset, flatten.name)
    return None


def _flatten_function(syntax: Syntax, class_name: str) -> ast.FunctionDef | ast.Lambda | None:
    for node in ast.walk(syntax.tree):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            found = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "tree_flatten"]
            if found:
                return found[0]
        if (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and (last_name(node.func) or "").startswith("register_pytree")
        ):
            first, flatten = node.args[:2]
            if not (isinstance(first, ast.Name) and first.id == class_name):
                continue
            if isinstance(flatten, ast.Lambda):
                return flatten
            if isinstance(flatten, ast.Name):
                return next(
                    (f for f in syntax.functions if isinstance(f, ast.FunctionDef) and f.name == flatten.id), None
                )
    return None
