"""The stories that the project began with are rewritten as an expert would write them."""

from __future__ import annotations

from jaxleak_magic.diagnose.model import (
    ClassFact,
    Explanation,
    FunctionFact,
    Leak,
    LeakFacts,
    Place,
    SourceText,
    TracerInfo,
)
from jaxleak_magic.rewrite import propose_fixes

SOLVER = """\
import jax
import jaxopt

def adapt(start, features, labels):
    def regularised(weights, anchor):  # data by closure
        return fit_error(weights, features, labels) + anchor

    solver = jaxopt.GradientDescent(regularised, maxiter=5)
    weights, _ = solver.run(start, start)
    return weights
"""

STATE = """\
import jax

class Learner:
    def __init__(self, schedule):
        self.schedule = schedule

jax.tree_util.register_pytree_node(Learner, lambda learner: ((), learner), lambda learner, _: learner)

def make_learner(rate):
    def schedule(step):
        return rate * 0.99**step

    return Learner(schedule)

learners = jax.vmap(make_learner)(rates)
"""


def leak_in(text: str, function: str, line: int, *variables: str, field: tuple[str, str] | None = None) -> Leak:
    facts = LeakFacts(
        captured=(FunctionFact(function, function, variables[0], Place(None, "cell.py", line)),),
        all_captured=variables,
        attributes=(ClassFact(*field, None),) if field else (),
        in_aux_data=field is not None,
    )
    tracer = TracerInfo("BatchTracer", "float32", (), "float32[]")
    return Leak(1, "leak", 1, "other", tracer, variables[0], (), None, None, None, None, (), Explanation("", "", "", ""), facts=facts)


def test_solver_objective_gets_its_data_through_run():
    source = SourceText(SOLVER, file="cell.py")
    (fix,) = propose_fixes(leak_in(SOLVER, "regularised", 5, "features", "labels"), [source], source)
    assert fix.refusal is None
    assert fix.source == SOLVER.replace("(weights, anchor):", "(weights, anchor, features, labels):").replace(
        "run(start, start)", "run(start, start, features, labels)"
    )


def test_schedule_is_bound_and_its_field_becomes_a_child():
    source = SourceText(STATE, file="cell.py")
    (fix,) = propose_fixes(leak_in(STATE, "schedule", 10, "rate", field=("Learner", "schedule")), [source], source)
    assert (fix.id, fix.refusal) == ("make_pytree_child", None)
    expected = STATE.replace("schedule(step)", "schedule(rate, step)")
    expected = expected.replace("Learner(schedule)", "Learner(jax.tree_util.Partial(schedule, rate))")
    expected = expected.replace("((), learner)", "((learner.schedule,), None)")
    assert fix.source == expected.replace("lambda learner, _: learner", "lambda _, children: Learner(*children)")
