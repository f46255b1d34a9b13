"""A hyperparameter that an optax optimiser closes over becomes part of the optimiser's state.

An optimiser is a pair of functions, which is static wherever it is kept; its state is a pytree. optax's own
``inject_hyperparams`` moves hyperparameters from the one into the other.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.case import Case
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.locations import location_of
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.reaching import Reach, Return
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.returned_values import emit_returns
from jaxleak_magic.rewrite.rules import Example, Rule
from jaxleak_magic.rewrite.texts import TextEdit

_BY_RATE = (
    "sgd adam adamw adamax adamaxw adagrad adadelta adabelief rmsprop lamb lars lion nadam nadamw novograd radam "
    "noisy_sgd sm3 yogi fromage amsgrad adan"
)
_FIRST_PARAMETER = {
    **{f"optax.{name}": "learning_rate" for name in _BY_RATE.split()},
    "optax.clip": "max_delta",
    "optax.clip_by_global_norm": "max_norm",
    "optax.scale": "step_size",
    "optax.add_decayed_weights": "weight_decay",
}
"""Name of the first parameter of optax 0.2's factories."""


@dataclass(frozen=True)
class _Made:
    """The call that makes the optimiser, the hyperparameter's name in it, and the argument that is the leaked value."""

    call: ast.Call
    factory: str
    parameter: str
    argument: ast.Name
    function: ast.FunctionDef


def propose(case: Case) -> tuple[str, Draft] | None:
    """The optimiser is made once outside of the transform, and its state gets the value."""
    place, program = case.leak.stored, case.program
    in_optimiser = any(fact.name.startswith("GradientTransformation") for fact in case.leak.facts.attributes)
    if place is None or case.leak.facts.captured or not in_optimiser:
        return None
    made = _made_at(program, place, case.leak.variable)
    if made is None:
        return None
    case.require_values()
    parent = program.parent[made.call]
    draft = Draft()
    if isinstance(parent, ast.keyword) and parent.arg == "tx":
        _in_train_state(program, draft, made, parent)
    elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        _kept_somewhere(program, draft, made, parent)
    else:
        return None
    return f"Keep `{made.parameter}` in the optimiser's state with `optax.inject_hyperparams`", draft


def _made_at(program: Program, place: Place, variable: str | None) -> _Made | None:
    for call, text in program.text_of.items():
        if not isinstance(call, ast.Call) or (text.source.cell, text.source.file) != (place.cell, place.file):
            continue
        factory = program.qualified(call.func)
        if factory not in _FIRST_PARAMETER or not call.lineno <= place.line <= (call.end_lineno or call.lineno):
            continue
        function = program.enclosing_function(call)
        given = [(_FIRST_PARAMETER[factory], a) for a in call.args[:1]] + [(k.arg, k.value) for k in call.keywords]
        for parameter, argument in given:
            if isinstance(argument, ast.Name) and argument.id == variable and parameter is not None:
                plain = isinstance(function, ast.FunctionDef)
                return _Made(call, factory, parameter, argument, function) if plain else None
    return None


def _injected(program: Program, made: _Made, at: ast.AST) -> str:
    """The optimiser with a placeholder, as it is written at module level."""
    inject = program.spelling("optax.inject_hyperparams", at)
    inside = [n for n in ast.walk(made.call) if isinstance(n, ast.Name) and n is not made.argument]
    owners = [program.owner(name) for name in inside]
    if inject is None or any(owner is not None and owner.kind != "module" for owner in owners):
        raise Refused(
            f"Make the optimiser once with `optax.inject_hyperparams`, outside of the transform, and put "
            f"`{made.argument.id}` into the `hyperparams` of its state."
        )
    text = program.text_of[made.call]
    start, stop = text.stop(made.call.func), text.stop(made.call)
    before, after = text.text[start : text.start(made.argument)], text.text[text.stop(made.argument) : stop]
    return f"{inject}({text.of(made.call.func)}){before}0.0{after}"


def _top_statement(program: Program, node: ast.AST) -> ast.stmt:
    while not isinstance(program.parent[node], ast.Module):
        node = program.parent[node]
    assert isinstance(node, ast.stmt)
    return node


def _add_before(program: Program, draft: Draft, statement: ast.stmt, line: str) -> None:
    text = program.text_of[statement]
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef | ast.ClassDef) else []
    start = min([text.start(statement), *(text.start(d) - 1 for d in decorators)])
    if text.indent_of_line(start) != "":
        raise Refused("The function that makes the optimiser shares its line with other code.")
    draft.add(text, [TextEdit(start, start, 0, line + text.newline * 2)])


def _free_name(program: Program, *names: str) -> str:
    scopes = [*program.own_scope.values(), *(program.scope_at[text.tree] for text in program.texts)]
    found = [name for name in names if not any(name in s.sites for s in scopes) and name not in program.known_names]
    if not found:
        raise Refused(f"The names {', '.join(f'`{name}`' for name in names)} are taken. Inject it by hand.")
    return found[0]


# -- a TrainState ----------------------------------------------------------------------------------------------------


def _in_train_state(program: Program, draft: Draft, made: _Made, keyword: ast.keyword) -> None:
    create = program.parent[keyword]
    statement = program.parent[create]
    known = isinstance(create, ast.Call) and (program.qualified(create.func) or "").endswith("TrainState.create")
    returned = isinstance(statement, ast.Return)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    named = len(targets) == 1 and isinstance(targets[0], ast.Name)
    if not known or not (returned or named) or not isinstance(statement, ast.Return | ast.Assign):
        raise Refused(
            f"Make the optimiser with `optax.inject_hyperparams` outside of the transform, and put "
            f"`{made.argument.id}` into the `hyperparams` of the state's `opt_state`."
        )
    top = _top_statement(program, made.function)
    optimiser = _free_name(program, "optimizer", "tx", "opt")
    _add_before(program, draft, top, f"{optimiser} = {_injected(program, made, top)}")
    text = program.text_of[statement]
    draft.add(text, insertions.replace(text, made.call, optimiser))
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets
        assert isinstance(target, ast.Name)
        state = target.id
        last = f"{state} = "
    else:
        state = _free_name(program, "state", "train_state")
        draft.new_parameters.add(state)
        start = text.start(statement)
        draft.add(text, [TextEdit(start, start + len("return"), 0, f"{state} =")])
        last = "return "
    new = _with_value(f"{state}.opt_state", made)
    line = f"{last}{state}.replace(opt_state={new})"
    draft.add(text, [insertions.add_after_statement(text, statement, line)])


def _with_value(state: str, made: _Made, value: str | None = None) -> str:
    entry = f'"{made.parameter}": {value or made.argument.id}'
    return f"{state}._replace(hyperparams={{**{state}.hyperparams, {entry}}})"


# -- an optimiser that is kept ---------------------------------------------------------------------------------------


def _kept_somewhere(program: Program, draft: Draft, made: _Made, store: ast.Assign) -> None:
    """The optimiser moves out of the function; where its state is made, the state gets the value."""
    location = location_of(program, store.targets[0])
    by_hand = Refused(
        f"Make the optimiser with `optax.inject_hyperparams` outside of `{made.function.name}`, and put "
        f"`{made.argument.id}` into the `hyperparams` of its state after `init`."
    )
    if location is None or store not in made.function.body or len(made.function.body) < 2:
        raise by_hand
    top = _top_statement(program, made.function)
    text = program.text_of[store]
    _add_before(program, draft, top, f"{text.of(store.targets[0])} = {_injected(program, made, top)}")
    draft.add(text, [insertions.delete_statement(text, store)])
    owner = program.owner(made.argument)
    if owner is None:
        raise by_hand
    reach = Reach(program, made.function, made.function.name)
    returns: list[Return] = []
    for load in location.loads():
        method = program.parent[load]
        call = program.parent[method]
        if not isinstance(method, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not method:
            raise by_hand
        if method.attr == "update":
            continue
        statement = program.parent[call]
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if method.attr != "init" or not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
            raise by_hand
        found = reach.at(made.argument.id, owner, call)
        if found.axis is not None or found.carriers:
            raise by_hand
        returns += [found.returned] if found.returned is not None else []
        home = program.text_of[statement]
        line = f"{target.id} = {_with_value(target.id, made, found.text)}"
        draft.add(home, [insertions.add_after_statement(home, statement, line)])
    emit_returns(program, draft, returns)


_STATE = """\
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

def make(rate):
    return TrainState.create(apply_fn=None, params=jnp.ones(2), tx=optax.sgd(rate, momentum=0.9))

states = jax.vmap(make)(jnp.array([0.1, 0.2]))
"""

_KEPT = """\
import jax
import jax.numpy as jnp
import optax

class Trainer:
    opt = None

trainer = Trainer()

@jax.jit
def plan(noise):
    step_size = 0.1 / (1.0 + noise)
    trainer.opt = optax.sgd(step_size)
    return noise + 1.0

more = plan(1.0)
state = trainer.opt.init(jnp.ones(2))  # once
trainer.opt.update(jnp.ones(2), state)[0]
"""
_PATH = (("GradientTransformation", "update"),)

EXAMPLES = (
    Example(
        "the rate of an optimiser in a TrainState that is made under vmap",
        _STATE,
        _STATE.replace(
            "def make", "optimizer = optax.inject_hyperparams(optax.sgd)(0.0, momentum=0.9)\n\ndef make"
        ).replace(
            "    return TrainState.create(apply_fn=None, params=jnp.ones(2), tx=optax.sgd(rate, momentum=0.9))\n",
            """\
    state = TrainState.create(apply_fn=None, params=jnp.ones(2), tx=optimizer)
    return state.replace(opt_state=state.opt_state._replace(hyperparams={**state.opt_state.hyperparams, """
            '"learning_rate": rate}))\n',
        ),
        fields=_PATH,
        variable="rate",
        stored_line=7,
    ),
    Example(
        "the rate of an optimiser that a jitted function stores",
        _KEPT,
        _KEPT.replace("@jax.jit", "trainer.opt = optax.inject_hyperparams(optax.sgd)(0.0)\n\n@jax.jit")
        .replace("    trainer.opt = optax.sgd(step_size)\n", "")
        .replace("return noise + 1.0", "return noise + 1.0, step_size")
        .replace("more =", "more, step_size =")
        .replace(
            "# once\n",
            '# once\nstate = state._replace(hyperparams={**state.hyperparams, "learning_rate": step_size})\n',
        ),
        fields=_PATH,
        variable="step_size",
        stored_line=13,
    ),
    Example(
        "a state of which only the shapes are computed",
        _STATE.replace("jax.vmap(make)(jnp.array([0.1, 0.2]))", "jax.eval_shape(make, 0.1)"),
        refusal="`eval_shape` computes no values",
        fields=_PATH,
        variable="rate",
        stored_line=7,
        transforms=("eval_shape",),
    ),
    Example(
        "a state that is put into a list at once",
        _STATE.replace("return TrainState", "return [TrainState").replace("momentum=0.9))", "momentum=0.9))]"),
        refusal="into the `hyperparams` of the state's `opt_state`",
        fields=_PATH,
        variable="rate",
        stored_line=7,
    ),
)

RULE = Rule(
    "make_pytree_child",
    propose,
    lambda case: f"Keep `{case.leak.variable}` in the optimiser's state",
    EXAMPLES,
)
