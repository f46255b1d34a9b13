"""Hand-made reports, one for each state that the renderers must show. The figures in them are made up."""

# ruff: noqa: E501
from __future__ import annotations

import dataclasses
import difflib

from jaxleak_magic.diagnose.model import (
    CellRef,
    Checked,
    Edit,
    Elapsed,
    ErrorInfo,
    Explanation,
    Fix,
    Holder,
    Leak,
    LeakFacts,
    Link,
    Note,
    Place,
    Report,
    SourceText,
    TraceLevel,
    TracerInfo,
)

CHECKED = Checked(checking_leaks=True, retraced=True, census=True)
ELAPSED = Elapsed(run_s=0.21, detect_s=0.01, explain_s=0.02, fix_s=0.01)
CELL = CellRef("c3", 3)
EARLIER = CellRef("c2", 2)


def report(text: str, **kw: object) -> Report:
    """A report on a cell ``In [3]`` with this text."""
    source = SourceText(text, CELL, None, "%%leakcheck\n")
    base = Report("0.12.0.1", "3.13.1", None, CHECKED, elapsed=ELAPSED, source=source, sources=(source,))
    return dataclasses.replace(base, **kw)  # type: ignore[arg-type]


def at(text: str, line: int, function: str | None = None, cell: CellRef = CELL) -> Place:
    """The place of a line of a cell's text."""
    return Place(cell, None, line, None, function, text.split("\n")[line - 1])


def rewritten(text: str, *changes: tuple[str, str], cell: CellRef = CELL) -> Edit:
    """An edit of a cell's text by replacing pieces of it."""
    new = text
    for old, instead in changes:
        assert old in new
        new = new.replace(old, instead)
    lines = difflib.unified_diff(text.splitlines(), new.splitlines(), "In [3]", "In [3]", n=1, lineterm="")
    return Edit(cell, None, new, "\n".join(lines))


LEARNER = '''\
import jax
import jax.numpy as jnp


class Learner:
    """Holds the step-size schedule of one run."""

    def __init__(self, schedule):
        self.schedule = schedule


jax.tree_util.register_pytree_node(
    Learner,
    lambda learner: ((), learner),
    lambda learner, _: learner,
)


def make_learner(rate):
    def schedule(step):
        return rate * 0.99**step

    return Learner(schedule)


rates = jnp.array([0.1, 0.3, 1.0])
learners = jax.vmap(make_learner)(rates)
sizes = jax.vmap(lambda learner: learner.schedule(10))(learners)
sizes'''


def one_leak() -> Report:
    """A schedule that closes over the mapped rate sits in the static part of a pytree."""
    edit = rewritten(
        LEARNER,
        ("lambda learner: ((), learner)", "lambda learner: ((learner.schedule,), None)"),
        ("lambda learner, _: learner", "lambda _, children: Learner(*children)"),
        ("def schedule(step)", "def schedule(rate, step)"),
        ("Learner(schedule)\n\n\nrates", "Learner(jax.tree_util.Partial(schedule, rate))\n\n\nrates"),
    )
    fix = Fix(
        "make_pytree_child",
        "Make `schedule` a child of `Learner` and lift `rate` to an argument",
        None,
        edit.source,
        edit.diff,
        (edit,),
        "same_results",
    )
    chain = (
        Link(
            "closure_cell",
            "schedule closes over rate",
            "function",
            "user",
            20,
            "rate",
            "schedule()",
            1,
            at(LEARNER, 20),
        ),
        Link(
            "attribute",
            "attribute .schedule of Learner",
            "Learner",
            "user",
            5,
            ".schedule",
            "Learner",
            2,
            at(LEARNER, 5),
        ),
        Link("global", "global variable learners", "module", "user", 27, "learners", "notebook", 99, at(LEARNER, 27)),
    )
    leak = Leak(
        1,
        "leak",
        1,
        "closure_in_aux_data",
        TracerInfo("BatchTracer", "float32", (), "BatchTracer(float32[])"),
        "rate",
        (TraceLevel("vmap", "make_learner", 27, "BatchTrace", ("BatchTrace",), at(LEARNER, 27)),),
        at(LEARNER, 19, "make_learner"),
        at(LEARNER, 23, "make_learner"),
        at(LEARNER, 27),
        Holder("global", "learners", "user"),
        (chain,),
        Explanation(
            "`rate` is the stand-in that `vmap` gave to `make_learner`, and it is still alive although `vmap` has returned.",
            "It entered on line 19, and line 23 put it into a `Learner`, inside the function `schedule`.",
            "`schedule` closes over `rate`. Inside `vmap`, `rate` stands for one element of the mapped array and means "
            "something only until `vmap` returns. Your registration of `Learner` puts the whole object into the static "
            "part of the pytree, so `vmap` cannot see the value inside it and hands it out unmapped.",
            "Make `schedule` a child of the pytree, and give it `rate` as an argument bound with `jax.tree_util.Partial`.",
        ),
        (fix,),
        LeakFacts(access="learners.schedule"),
    )
    return report(LEARNER, leaks=(leak,))


NETWORK = """\
import jax
import jax.numpy as jnp

history = []
norms = {}


class Net:
    def __init__(self):
        self.last = None

    def __call__(self, w, x):
        h = jnp.tanh(x @ w)
        self.last = h
        return h.sum()


net = Net()
history.append(net)


def loss(w, x):
    norms["w"] = jnp.linalg.norm(w)
    return net(w, x)


@jax.jit
def step(w, xs):
    return jax.vmap(jax.grad(loss), (None, 0))(w, xs).mean(0)


step(jnp.ones((4, 4)), jnp.ones((8, 4)))"""


def two_leaks() -> Report:
    """Two values out of one step: an attribute, and an item of a dict; ``net`` keeps the first, a global list keeps ``net``."""
    stack = (
        TraceLevel("jit", "step", 32, "DynamicJaxprTrace", ("DynamicJaxprTrace",), at(NETWORK, 32)),
        TraceLevel("vmap", "grad(loss)", 29, "BatchTrace", ("BatchTrace",), at(NETWORK, 29)),
        TraceLevel("grad", "loss", 29, "LinearizeTrace", ("LinearizeTrace",), at(NETWORK, 29)),
    )
    net = Link("global", "global variable net", "module", "user", 18, "net", "notebook", 99, at(NETWORK, 18))
    attribute = Link("attribute", "attribute .last of Net", "Net", "user", 8, ".last", "Net", 10, at(NETWORK, 8))
    item = Link("item", "item [0] of list", "list", "user", 4, "[0]", "list", 12, at(NETWORK, 4))
    history = Link("global", "global variable history", "module", "user", 4, "history", "notebook", 99, at(NETWORK, 4))
    edit = rewritten(
        NETWORK,
        ("        self.last = h\n        return h.sum()", "        return h.sum(), h"),
        ("    return net(w, x)", "    value, net.last = net(w, x)\n    return value"),
    )
    first = Leak(
        1,
        "leak",
        3,
        "attribute_write",
        TracerInfo("LinearizeTracer", "float32", (4,), "LinearizeTracer(float32[4])"),
        "h",
        stack,
        at(NETWORK, 13, "Net.__call__"),
        at(NETWORK, 14, "Net.__call__"),
        at(NETWORK, 29, "step"),
        Holder("global", "net", "user"),
        ((attribute, net), (attribute, item, history)),
        Explanation(
            "`h` was computed while `grad` ran `loss`, and `net.last` still holds it.",
            "Line 13 makes it and line 14 stores it on `net`.",
            "`net` lives longer than the trace: it is a global of this notebook. When `grad` is done, `h` stands for nothing.",
            "Return `h` from `loss` as an auxiliary value (`has_aux=True`) and store it outside of `step`.",
        ),
        (
            Fix(
                "return_instead_of_write",
                "Return `h` from `Net.__call__` instead of writing it to `self.last`",
                None,
                edit.source,
                edit.diff,
                (edit,),
                "leak_free",
            ),
        ),
        LeakFacts(access="net.last"),
    )
    second = Leak(
        2,
        "leak",
        1,
        "dict_memo",
        TracerInfo("LinearizeTracer", "float32", (), "LinearizeTracer(float32[])"),
        "norms['w']",
        stack,
        at(NETWORK, 23, "loss"),
        at(NETWORK, 23, "loss"),
        at(NETWORK, 29, "step"),
        Holder("global", "norms", "user"),
        (
            (
                Link("item", "item ['w'] of dict", "dict", "user", 5, "['w']", "dict", 20, at(NETWORK, 5)),
                Link("global", "global variable norms", "module", "user", 5, "norms", "notebook", 99, at(NETWORK, 5)),
            ),
        ),
        Explanation(
            "The norm of `w` was computed while `grad` ran `loss`, and `norms['w']` still holds it.",
            "Line 23 makes it and stores it.",
            "`norms` is a global dict: what is put into it while a transform runs stays there when the transform is over.",
            "Return the norm from `loss` as an auxiliary value, and fill `norms` outside of `step`.",
        ),
        (
            Fix(
                "return_instead_of_write",
                "Return the norm instead of writing it to `norms`",
                "`loss` is given to `grad` inside `vmap` inside `step`, so three callers would have to change. By hand: let "
                "`loss` return `(value, norm)`, call `jax.grad(loss, has_aux=True)`, and fill `norms` with what `step` returns.",
            ),
        ),
    )
    return report(NETWORK, leaks=(first, second))


def clean() -> Report:
    """Nothing was found, everything was checked."""
    return report("import jax\njax.jit(lambda x: x + 1)(1.0)", elapsed=Elapsed(0.08, 0.01, 0.0, 0.0))


def clean_partly_checked() -> Report:
    """Nothing was found, and a part could not be checked."""
    left = Checked(
        True,
        False,
        False,
        (
            "`step` was compiled in In [1] and not traced again (--keep-caches).",
            "Code run by jax.debug.callback in another thread is not seen.",
        ),
    )
    return report("step(x)", checked=left)


BRANCHES = """\
import jax
import jax.numpy as jnp

def clipped(x):
    return jax.lax.cond(x > 1, lambda x: x, lambda x: 1, x)

jax.jit(clipped)(2.0)"""


def error_only() -> Report:
    """The two branches of a cond differ in dtype; no leak."""
    edit = rewritten(BRANCHES, ("lambda x: 1, x", "lambda x: jnp.ones_like(x), x"))
    error = ErrorInfo(
        "TypeError",
        "cond branches must have equal output types but they differ.\n\nThe output of the true branch has type float32[] "
        "but the output of the false branch has type int32[].",
        5,
        11,
        "branch_mismatch",
        Explanation(
            "The two branches of `cond` return values of different types: `float32[]` and `int32[]`.",
            "Line 5, in `clipped`.",
            "JAX compiles both branches into one computation, so both must return the same dtype and shape.",
            "Let the second branch return `jnp.ones_like(x)`.",
        ),
        None,
        (
            Fix(
                "like_branches",
                "Make the second branch like the first",
                None,
                edit.source,
                edit.diff,
                (edit,),
                "same_results",
            ),
        ),
    )
    return report(BRANCHES, error=error)


def error_unrelated() -> Report:
    """An error of the user's that has nothing to do with tracers."""
    error = ErrorInfo("ZeroDivisionError", "division by zero", 2, 0, "not_tracer_related")
    return report("x = 0\n1 / x", error=error)


SCALES = """\
import jax

scale = None


@jax.jit
def normalise(x):
    global scale
    scale = x.std()
    return x / scale


normalise(xs)
print(scale + 1)"""


def leak_and_error() -> Report:
    """A global written inside jit is used afterwards."""
    leak = Leak(
        1,
        "leak",
        1,
        "global_write",
        TracerInfo("DynamicJaxprTracer", "float32", (), "JitTracer(float32[])"),
        "scale",
        (TraceLevel("jit", "normalise", 13, "DynamicJaxprTrace", ("DynamicJaxprTrace",)),),
        at(SCALES, 9, "normalise"),
        at(SCALES, 9, "normalise"),
        at(SCALES, 13),
        Holder("global", "scale", "user"),
        ((Link("global", "global variable scale", "module", "user", 9, "scale", "notebook", 99),),),
        Explanation(
            "`scale` was computed while `jit` traced `normalise`, and the global `scale` still holds it.",
            "Line 9 computes and stores it.",
            "While `jit` traces a function, values stand for numbers that are known only when the compiled code runs.",
            "Return `scale` from `normalise` and assign it where you call it.",
        ),
    )
    error = ErrorInfo(
        "UnexpectedTracerError",
        "Encountered an unexpected tracer. A function transformed by JAX had a side effect ...",
        14,
        6,
        "unexpected_tracer",
        None,
        1,
    )
    return report(SCALES, leaks=(leak,), error=error)


def earlier_cell() -> Report:
    """The function was defined in an earlier cell; a fix changes both cells."""
    first = (
        "memo = {}\n\ndef kernel(x):\n    if 'k' not in memo:\n        memo['k'] = x.mean()\n    return x * memo['k']"
    )
    second = "kernel_fast = jax.jit(kernel)\nkernel_fast(xs)"
    edits = (
        rewritten(
            first,
            ("    if 'k' not in memo:\n        memo['k'] = x.mean()\n", ""),
            ("memo['k']", "x.mean()"),
            cell=EARLIER,
        ),
        rewritten(second, ("jax.jit(kernel)", "jax.jit(kernel)  # computed anew in each call")),
    )
    leak = Leak(
        1,
        "leak",
        1,
        "dict_memo",
        TracerInfo("DynamicJaxprTracer", "float32", (), "JitTracer(float32[])"),
        "memo['k']",
        (TraceLevel("jit", "kernel", 2, "DynamicJaxprTrace", ("DynamicJaxprTrace",)),),
        at(first, 5, "kernel", EARLIER),
        at(first, 5, "kernel", EARLIER),
        at(second, 2),
        Holder("global", "memo", "user"),
        (
            (
                Link("item", "item ['k'] of dict", "dict", "user", 1, "['k']", "dict", 1, at(first, 1, None, EARLIER)),
                Link(
                    "global",
                    "global variable memo",
                    "module",
                    "user",
                    1,
                    "memo",
                    "notebook",
                    99,
                    at(first, 1, None, EARLIER),
                ),
            ),
        ),
        Explanation(
            "`memo['k']` holds a value of `jit`.", "In [2], line 5.", "A memo outlives the trace.", "Do not keep it."
        ),
        (Fix("remove_memo", "Compute `memo['k']` anew in each call", None, None, None, edits, "not_checked"),),
    )
    base = report(second, leaks=(leak,))
    return dataclasses.replace(base, sources=(*base.sources, SourceText(first, EARLIER)))


def refused_only() -> Report:
    """One leak whose only fix is refused, nothing known of where it was made."""
    leak = Leak(
        1,
        "leak",
        1,
        "other",
        TracerInfo("JVPTracer", None, None, "a tracer"),
        None,
        (),
        None,
        None,
        None,
        None,
        (),
        Explanation(
            "A value of a transform is still alive, and could not determine which variable holds it.",
            "",
            "It could not be determined.",
            "Look for what `solve` writes to.",
        ),
        (
            Fix(
                "thread_state",
                "Thread the state through `solve`",
                "`solve` is a method of a library's class: change the call by hand.",
            ),
        ),
    )
    return report("solve(x)", leaks=(leak,))


def _harmless(verdict: str, mechanism: str, kind: str, name: str, owner: str) -> Report:
    text = "import jax\n\ndef f(x):\n    return x * 2\n\njax.jit(f)(1.0)"
    leak = Leak(
        1,
        verdict,  # type: ignore[arg-type]
        2,
        mechanism,
        TracerInfo("DynamicJaxprTracer", "float32", (), "JitTracer(float32[])"),
        "x",
        (TraceLevel("jit", "f", 6, "DynamicJaxprTrace", ("DynamicJaxprTrace",)),),
        at(text, 3, "f"),
        None,
        at(text, 6),
        Holder(kind, name, owner),  # type: ignore[arg-type]
        ((Link("cache", f"{name} keeps it", "dict", owner, None, name, name, 1),),),  # type: ignore[arg-type]
        Explanation("`x` is still alive.", "Line 6.", f"Only `{name}` holds it.", "Nothing to do."),
    )
    return report(text, leaks=(leak,))


def library_cache() -> Report:
    """Only a cache inside a library keeps it."""
    return _harmless("library_cache", "jax_internal_cache", "cache", "jax._src.linear_util", "jax")


def exception() -> Report:
    """Only a stored exception keeps it."""
    return _harmless("exception", "exception_traceback", "global", "sys.last_exc", "python")


def transient() -> Report:
    """A generator that is still running keeps it."""
    return _harmless("transient", "generator", "generator", "batches", "user")


def notes() -> Report:
    """No leak, two notes."""
    text = "calls = 0\n\n@jax.jit\ndef f(x):\n    global calls\n    calls += 1\n    for i in range(200):\n        x = x + i\n    return x\n\nf(1.0)"
    return report(
        text,
        notes=(
            Note("impure_write", 6, "`calls` is written while `jit` traces `f`: once a compilation, not once a call."),
            Note("unrolled_loop", 7, "This loop was unrolled into 200 equations; `jax.lax.fori_loop` would give one."),
        ),
    )


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>\"'`&lt;\x1b[31m\u202eevil\ud800\x07\0"


def hostile() -> Report:
    """Every string that comes from the user or a library is an attack, and one name is endless."""
    evil = f"{EVIL} javascript:alert(4) <b>\\N \\"
    long = "x" * 5000
    text = f"{evil}\n\ty = {long}\n{evil}"
    place = Place(CELL, None, 1, 0, evil, evil)
    link = Link("attribute", evil, evil, "library", 1, evil, evil, 1, Place(None, evil, 3, None, evil, evil))
    root = Link("global", long, long, "user", 1, long, long, 2, place)
    explanation = Explanation(evil, evil, evil, long)
    edit = Edit(CELL, None, evil, f"--- {evil}\n+++ {evil}\n@@ -1 +1 @@ {evil}\n-{evil}\n+{evil}\n {long}\n")
    fixes = (
        Fix(evil, evil, None, evil, edit.diff, (edit, dataclasses.replace(edit, cell=None, file=evil)), "not_checked"),
        Fix(evil, evil, evil),
    )
    leak = Leak(
        1,
        "leak",
        10**9,
        evil,
        TracerInfo(evil, evil, (evil, 3), evil),
        evil,
        (TraceLevel(evil, evil, 1, evil, (evil, long)), TraceLevel(long, long, 2, long)),
        place,
        Place(None, evil, 2, None, evil, None),
        dataclasses.replace(place, line=3),
        Holder(evil, evil, "library"),
        ((link, root), (root,)),
        explanation,
        fixes,
        LeakFacts(access=evil),
    )
    second = dataclasses.replace(leak, id=2, variable=None, holder=Holder("global", long, "user"), facts=LeakFacts())
    third = dataclasses.replace(leak, id=3, verdict="library_cache")
    error = ErrorInfo(evil, f"{evil}\n{long}", 2, 0, evil, explanation, 1, fixes)
    return report(
        text,
        leaks=(leak, second, third),
        error=error,
        notes=(Note(evil, 3, evil, fixes),),
        checked=Checked(True, True, True, (evil,)),
        jax_version=evil,
        python_version=evil,
    )


def with_text_everywhere(sample: Report, text: str) -> Report:
    """The sample with every text of the user's or of a library replaced by ``text``."""

    def change(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(change(v) for v in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            kept = {"kind", "owner", "verdict", "checked", "refusal"} if not isinstance(value, Report) else {"file"}
            return dataclasses.replace(
                value,
                **{f.name: change(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in kept},
            )
        return text if isinstance(value, str) else value

    return change(sample)  # type: ignore[return-value]


SAMPLES = {
    f.__name__: f
    for f in (
        one_leak,
        two_leaks,
        clean,
        clean_partly_checked,
        error_only,
        error_unrelated,
        leak_and_error,
        earlier_cell,
        refused_only,
        library_cache,
        exception,
        transient,
        notes,
        hostile,
    )
}
"""All samples by name."""
