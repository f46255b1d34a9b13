"""Real messages of JAX 0.4.30 to 0.12.0.1, older wordings, tracebacks, and texts that no JAX prints."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxleak_magic.diagnose.messages import explain_text
from jaxleak_magic.diagnose.messages.explaining import ABSTRACT
from jaxleak_magic.diagnose.messages.reading import read_text
from jaxleak_magic.diagnose.messages.tracer_text import read_tracer, read_type
from jaxleak_magic.diagnose.model import PASTED_TEXT_ONLY, UNREAD_LINE, CellRef, SourceText
from jaxleak_magic.show.html import render_html
from jaxleak_magic.show.text import render_text
from tests.conftest import REPOSITORY

MESSAGES = json.loads(Path(__file__).with_name("data").joinpath("messages.json").read_text(encoding="utf-8"))
LEVELS = ("0.4.30", "0.4.35")  # their texts do not tell jit from scan, cond and the like

INNERMOST = {
    "jit": {"jit"},
    "vmap": {"vmap"},
    "grad": {"grad"},
    "jvp": {"jvp"},
    "jacfwd": {"jvp"},  # the text shows its two traces and not its name
    "jit_vmap_grad": {"grad"},
    "grad_vmap": {"vmap"},
    "remat_only": {"checkpoint"},
    "cond": {"cond"},
    "scan": {"scan"},
    "vmap_scan": {"scan"},
    "pmap": {"pmap", "shard_map"},  # JAX 0.8.3 and later make pmap of shard_map, and say so
    "shard_map": {"shard_map"},
    "custom_vjp_bwd_jit": {"jit"},
    "pallas": {"pallas_call"},
}


def names(messages):
    return [f"{m['jax']}-{m['scenario']}" for m in messages]


LEAKED = [m for m in MESSAGES if m["kind"] == "checking_leaks"]
ESCAPED = [m for m in MESSAGES if m["kind"] == "UnexpectedTracerError"]


def test_sample_holds_no_path_of_a_machine():
    text = json.dumps(MESSAGES)
    paths = re.findall(r"(?<![\w.>])/(?:home|root|tmp|usr|opt|work|Users)/[^\s\"\\]*", text)
    assert paths and all(path.startswith("/home/user/") for path in paths)


@pytest.mark.parametrize("message", LEAKED, ids=names(LEAKED))
def test_leak_report(message):
    report = explain_text(message["message"])
    assert report.outcome == "leaks" and report.error is None and report.notes == ()
    (leak,) = report.leaks
    innermost = leak.trace_stack[-1].transform
    if message["jax"] in LEVELS and innermost == ABSTRACT:
        assert INNERMOST[message["scenario"]] & {"jit", "checkpoint", "cond", "scan", "pmap", "pallas_call"}
        assert leak.trace_stack[-1].trace == "DynamicJaxprTrace"
    else:
        assert innermost in INNERMOST[message["scenario"]]
    if "_g" in message["message"]:
        assert (leak.variable, leak.mechanism, leak.holder.name) == ("_g", "global_write", "_g")
    elif "_box" in message["message"]:
        assert (leak.variable, leak.mechanism, leak.holder.name) == ("y", "closure_escape", "_box")
    assert leak.chains
    assert report.checked.unchecked[0] == PASTED_TEXT_ONLY


@pytest.mark.parametrize("message", LEAKED, ids=names(LEAKED))
def test_every_hop_becomes_a_link(message):
    text = message["message"]
    parsed = read_text(text)
    hops = [hop for block in parsed.leaked.tracers for hop in block.hops]
    assert len(hops) == text.count(" is referred to by ")
    assert all(hop.link.label and hop.link.kind for hop in hops)
    assert len(parsed.leaked.tracers) == len(re.findall("\n\n(?!<)", text))


@pytest.mark.parametrize("message", ESCAPED, ids=names(ESCAPED))
def test_use_after_the_transform(message):
    report = explain_text(message["message"])
    (leak,) = report.leaks
    assert (report.error.kind, report.error.leak_id, report.error.type) == (
        "unexpected_tracer",
        1,
        "UnexpectedTracerError",
    )
    assert report.error.message.split("\n")[0] == message["message"].split("\n")[0]
    assert report.notes == ()
    transform = message["scenario"].split("|")[1]
    assert leak.trace_stack[-1].transform == transform
    assert (leak.tracer.dtype, leak.tracer.shape) == ("float32", ())
    if transform == "jit":
        assert (leak.created.line, leak.created.column, leak.created.function) == (3, 8, "f")
        assert leak.trace_stack[-1].function == "f"


@pytest.mark.parametrize("message", MESSAGES, ids=names(MESSAGES))
def test_version_is_the_real_one_or_a_range_around_it(message):
    def number(version):
        return [int(part) for part in version.split(".")]

    told = explain_text(message["message"]).jax_version
    real = number(message["jax"])
    for bound in told.split(","):
        assert real > number(bound[1:]) if bound[0] == ">" else real < number(bound[1:])


@pytest.mark.parametrize("line", ["what is this?", "  indented <b>line</b>", "Leaked something", "<x> is referred to"])
@pytest.mark.parametrize("message", [LEAKED[0], ESCAPED[0], LEAKED[-1]], ids=["leaked", "escaped", "leaked-last"])
def test_unknown_lines_are_kept_word_for_word(message, line):
    report = explain_text(message["message"].rstrip("\n") + "\n\n" + line + "\n")
    assert [(note.kind, note.text) for note in report.notes] == [(UNREAD_LINE, line)]
    assert line.strip() in render_text(report)
    assert line.strip() in re.sub(r"&lt;", "<", render_html(report).replace("&gt;", ">"))
    assert line in [note["text"] for note in report.to_dict()["notes"]]


# older wordings


def test_levels_of_nested_traces():
    text = """Exception: Leaked trace MainTrace(3,JVPTrace). Leaked tracer(s):

Traced<ShapedArray(int32[2,3])>with<JVPTrace(level=3/1)> with
  primal = Traced<ShapedArray(int32[2,3])>with<BatchTrace(level=2/1)> with
    val = Traced<ShapedArray(int32[4,2,3])>with<DynamicJaxprTrace(level=1/0)>
    batch_dim = 0
  tangent = Traced<ShapedArray(float32[2,3])>with<BatchTrace(level=2/1)> with
    val = Array([[[1., 2., 3.],

          [4., 5., 6.]]], dtype=float32)
    batch_dim = 0
"""
    report = explain_text(text)
    (leak,) = report.leaks
    assert [level.trace for level in leak.trace_stack] == ["DynamicJaxprTrace", "BatchTrace", "JVPTrace"]
    assert [level.transform for level in leak.trace_stack] == [ABSTRACT, "vmap", "jvp"]
    assert (leak.tracer.type, leak.tracer.dtype, leak.tracer.shape) == ("JVPTracer", "int32", (2, 3))
    assert (report.jax_version, report.notes) == ("<0.4.38", ())


def test_tracers_in_a_list():
    text = (
        "Exception: Leaked level MainTrace(1,DynamicJaxprTrace). Leaked tracer(s): "
        "[Traced<ShapedArray(int32[])>with<DynamicJaxprTrace(level=1/0)>, "
        "Traced<ShapedArray(int32[2])>with<JVPTrace(level=3/1)>]."
    )
    first, second = explain_text(text).leaks
    assert (first.tracer.type, second.tracer.type, second.tracer.shape) == ("DynamicJaxprTracer", "JVPTracer", (2,))


def test_trace_without_tracers():
    (leak,) = explain_text("Exception: Leaked trace MainTrace(0,BatchTrace)").leaks
    assert leak.trace_stack[-1].transform == "vmap"
    assert (leak.tracer.dtype, leak.tracer.shape, leak.created, leak.chains) == (None, None, None, ())


def test_path_through_an_instance_and_a_module():
    text = """Leaked trace MainTrace(1,BatchTrace). Leaked tracer(s):

Traced<ShapedArray(int32[])>with<BatchTrace(level=1/0)> with
  val = DeviceArray([0, 1, 2], dtype=int32)
  batch_dim = 0
This Tracer was created on line /home/user/net.py:14 (layer)
<BatchTracer 11> is referred to by <function 12> closed-over variable x
<function 12> is referred to by <list 13>[0]
<list 13> is referred to by <dict 14>['a
key']
<dict 14> is referred to by <Net 15>.table
<Net 15> is referred to by __main__.net
"""
    report = explain_text(text)
    (leak,) = report.leaks
    assert [(link.kind, link.name) for link in leak.chains[0]] == [
        ("closure_cell", "x"),
        ("item", "[0]"),
        ("key", "['a\nkey']"),
        ("attribute", ".table"),
        ("global", "net"),
    ]
    assert (leak.holder.kind, leak.holder.name, leak.variable) == ("global", "net", "x")
    assert (leak.created.file, leak.created.line, leak.created.function) == ("/home/user/net.py", 14, "layer")
    assert report.notes == ()


@pytest.mark.parametrize(
    ("hop", "kind", "name", "mechanism"),
    [
        ("<Net 2>.h", "attribute", ".h", "attribute_write"),
        ("<Net 2> in vars 'h', 'g'", "attribute", "'h', 'g'", "attribute_write"),
        ("<type 2>.h", "class_attribute", ".h", "class_attr"),
        ("<list 2> at indices 0, 3", "item", "0, 3", "container_append"),
        ("<dict 2> at keys 'a', 'b'", "key", "'a', 'b'", "container_append"),
        ("<function 2> (g) closed-over variable y", "closure_cell", "y", "closure_escape"),
        ("<function 2> in closed-over variables 'y', 'z'", "closure_cell", "y, z", "closure_escape"),
        ("<_lru_cache_wrapper 2>", "cache", None, "lru_cache"),
        ("<generator 2>", "generator", None, "generator"),
        ("<partial 2>", "partial", None, "partial_object"),
        ("<set 2>", "item", None, "container_append"),
        ("the local variable 'y' of the frame f (/home/user/a.py:3)", "frame_local", "y", "other"),
        ("an unknown thing", "other", None, "other"),
    ],
)
def test_kinds_of_holders(hop, kind, name, mechanism):
    text = (
        f"Leaked trace BatchTrace. Leaked tracer(s):\n\nVmapTracer<float32[]>\n<BatchTracer 1> is referred to by {hop}"
    )
    report = explain_text(text)
    (leak,) = report.leaks
    ((link,),) = leak.chains
    assert (link.kind, link.name, leak.mechanism, report.notes) == (kind, name, mechanism, ())


@pytest.mark.parametrize(
    ("aval", "expected"),
    [
        ("ShapedArray(float32[3,4], weak_type=True)", ("float32", (3, 4))),
        ("~f32[]", ("float32", ())),
        ("bf16[8]", ("bfloat16", (8,))),
        ("key<fry>[2]", ("key<fry>", (2,))),
        ("Ref<default>{float32[8]}", ("float32", (8,))),
        ("bool[a,3]", ("bool", ("a", 3))),
        ("ConcreteArray(0.5, dtype=float32)", ("float32", ())),
        ("ConcreteArray([0.5 1. ], dtype=float32)", ("float32", None)),
        ("float0[]", (None, None)),
        ("", (None, None)),
    ],
)
def test_types(aval, expected):
    assert read_type(aval) == expected


def test_named_tracers_nest():
    tracer = read_tracer(["GradTracer(primal=VmapTracer(aval=float32[], batched=float32[3]), typeof(tangent)=f32[])"])
    assert (tracer.type, tracer.traces, tracer.dtype, tracer.shape) == (
        "LinearizeTracer",
        ("BatchTrace", "LinearizeTrace"),
        "float32",
        (),
    )


# tracebacks, and the user's own lines

CELL = SourceText(
    "import jax\nstash = []\n@jax.jit\ndef f(x):\n    y = jax.numpy.sin(x)\n    stash.append(y)\n    return y\n",
    CellRef("abc", 3),
)
ESCAPE = """\
---------------------------------------------------------------------------
UnexpectedTracerError                     Traceback (most recent call last)
Cell In[5], line 2
      1 # again
----> 2 print(stash[0] + 1)

File ~/env/lib/python3.11/site-packages/jax/_src/array.py:123, in _Array.__add__(self, other)
    122   other
--> 123     return add

    [... skipping hidden 3 frame]

UnexpectedTracerError: Encountered an unexpected tracer. Perhaps this tracer escaped through global state from a \
previously traced function.
The functions being transformed should not save traced values to global state.
The tracer that caused this error was created on line <ipython-input-3-abcdef>:5 (f). The tracer has shape (3,) and \
dtype float32.
When the tracer was created, the final 5 stack frames (most recent last) excluding JAX-internal frames were:
<ipython-input-4-aaa>:1 (<module>)
<ipython-input-3-abcdef>:5 (f)
The function being traced when the tracer leaked was f at <ipython-input-3-abcdef>:3 transformed by jit.
"""


def test_old_escaped_tracer_in_a_notebook():
    report = explain_text(ESCAPE, [CELL, SourceText("# again\nprint(stash[0] + 1)\n", CellRef("d", 5))])
    (leak,) = report.leaks
    assert report.notes == ()
    assert (leak.tracer.type, leak.tracer.dtype, leak.tracer.shape) == ("unknown", "float32", (3,))
    assert (leak.created.cell, leak.created.line, leak.created.source) == (CELL.cell, 5, "    y = jax.numpy.sin(x)")
    assert (leak.variable, leak.trace_stack[-1].transform, leak.trace_stack[-1].function) == ("y", "jit", "f")
    assert (leak.escaped.cell, leak.escaped.line) == (CellRef(None, 4), 1)
    assert (report.error.line, report.source.cell.execution_count) == (2, 5)


def test_lines_are_those_below_the_magic():
    cell = SourceText(CELL.text, CELL.cell, magic="%%leakcheck\n")
    text = "Leaked trace DynamicJaxprTrace. Leaked tracer(s):\n\nJitTracer(float32[])\n"
    (leak,) = explain_text(text + "This X was created on line /tmp/ipykernel_7/12.py:6:8 (f)", [cell]).leaks
    assert leak.created is None  # no words of JAX's
    (leak,) = explain_text(text + "This JitTracer was created on line /tmp/ipykernel_7/12.py:6:8 (f)", [cell]).leaks
    assert (leak.created.cell, leak.created.line, leak.created.source) == (CELL.cell, 5, "    y = jax.numpy.sin(x)")


def test_source_tells_the_transform_that_an_old_text_does_not():
    text = (
        "Leaked trace MainTrace(1,DynamicJaxprTrace). Leaked tracer(s):\n\n"
        "Traced<ShapedArray(float32[])>with<DynamicJaxprTrace(level=1/0)>\n"
        "This DynamicJaxprTracer was created on line /home/user/cell.py:5:8 (f)\n"
        "<DynamicJaxprTracer 1> is referred to by <list 2>[0]\n"
        "<list 2> is referred to by <dict 3>['stash']\n"
        "<dict 3> is referred to by <function 4>\n"
    )
    source = SourceText(CELL.text, None, "elsewhere/cell.py")
    (leak,) = explain_text(text, [source]).leaks
    assert (leak.trace_stack[-1].transform, leak.trace_stack[-1].function) == ("jit", "f")
    assert (leak.created.file, leak.variable, leak.stored.line) == ("elsewhere/cell.py", "y", 6)
    (leak,) = explain_text(text).leaks
    assert (leak.trace_stack[-1].transform, leak.stored, leak.created.source) == (ABSTRACT, None, None)


def test_a_line_that_fits_two_sources_is_given_in_none():
    two = [SourceText(CELL.text, CellRef("a", 1)), SourceText(CELL.text, CellRef("b", 2))]
    text = "Leaked trace BatchTrace. Leaked tracer(s):\n\nVmapTracer<float32[]>\nThis BatchTracer with object id 1 was "
    (leak,) = explain_text(text + "created on line:\n  /tmp/ipykernel_7/12.py:5:8 (f)", two).leaks
    assert (leak.created.cell, leak.created.file) == (None, "/tmp/ipykernel_7/12.py")


def test_unfiltered_and_filtered_traceback_are_one_report():
    body = (
        "Exception: Leaked trace MainTrace(3,BatchTrace). Leaked tracer(s):\n\n"
        "Traced<ShapedArray(float32[])>with<BatchTrace(level=3/0)> with\n"
        "  val = Traced<ShapedArray(float32[4])>with<DynamicJaxprTrace(level=2/0)>\n  batch_dim = 0\n"
        "This Tracer was created on line /home/user/stats.py:40 (moments)\n"
    )
    frames = (
        'Traceback (most recent call last):\n  File "/home/user/t.py", line 12, in <module>\n    f(7)\n    ~^^^\n'
        '  File "/home/user/jax/jax/_src/api.py", line 9, in vmap_f\n    return fun()\n'
    )
    text = (
        f"{frames}jax._src.traceback_util.UnfilteredStackTrace: {body}\n"
        "The stack trace below excludes JAX-internal frames.\n"
        "The preceding is the original exception that occurred, unmodified.\n\n--------------------\n\n"
        f"The above exception was the direct cause of the following exception:\n\n{frames}{body}"
    )
    for pasted in (text, "\n".join(f"> {line}" for line in text.split("\n")), f"\x1b[31m{text}\x1b[0m"):
        report = explain_text(pasted)
        (leak,) = report.leaks
        assert report.notes == () and report.error is None
        assert (leak.escaped.file, leak.escaped.line, leak.escaped.source) == ("/home/user/t.py", 12, "f(7)")
        assert (leak.created.line, leak.created.function) == (40, "moments")
        assert [level.transform for level in leak.trace_stack] == [ABSTRACT, "vmap"]


# errors that are no leaks, and texts of nobody's


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array with shape bool[].\n"
            "The error occurred while tracing the function g at /home/user/a.py:4 for jit. This concrete value was not "
            "available in Python because it depends on the value of the argument x.",
            "concretization",
            "`g` (line 4 of a.py)",
        ),
        (
            "The numpy.ndarray conversion method __array__() was called on traced array with shape float32[3]",
            "concretization",
            "",
        ),
        (
            "TypeError: true_fun and false_fun output must have identical types, got\n"
            "DIFFERENT ShapedArray(float32[]) vs. ShapedArray(int32[]).",
            "branch_mismatch",
            "`true_fun` gives ShapedArray(float32[]), `false_fun` gives ShapedArray(int32[]).",
        ),
        (
            "TypeError: cond branch outputs must have equal types but they differ.\n\nThe output of true_fun has type "
            "float32[3] but the corresponding output of false_fun has type int32[], so the dtypes do not match.",
            "branch_mismatch",
            "The output of true_fun has type float32[3], the output of false_fun int32[].",
        ),
        (
            "TypeError: scan body function carry input and carry output must have equal types, but they differ:\n\n"
            "The input carry c has type float32[] but the corresponding output carry component has type float32[3], so "
            "the shapes do not match.",
            "carry_mismatch",
            "The input carry c has type float32[], the output carry component float32[3].",
        ),
        ("TypeError: No constant handler for type: <class 'jax._src.JVPTracer'>", "unexpected_tracer", ""),
        ("ZeroDivisionError: division by zero", "not_tracer_related", None),
        ("ValueError: Leaked tracer: Traced<ShapedArray(f32[2])>with<BatchTrace(level=1/0)>", "not_by_jax", "vmap"),
        ("jax.errors.TracerLeakError: y escaped", "not_by_jax", ""),
        ("Tracer leaked from f", "not_by_jax", ""),
        ("", "not_recognised", ""),
        ("hello", "not_recognised", ""),
    ],
)
def test_other_texts(text, kind, words):
    report = explain_text(text)
    assert (report.error.kind, report.leaks) == (kind, ())
    if words is not None:
        assert words in report.error.explanation.where
    assert render_text(report) and render_html(report)


def test_a_name_that_does_not_exist_is_said_to():
    report = explain_text("AttributeError: module 'jax' has no attribute 'check_tracer_leaks'")
    (note,) = report.notes
    assert note.kind == "not_in_jax" and "jax.checking_leaks()" in note.text
    assert explain_text('jax.config.update("jax_check_tracer_leaks", True)').notes[0].kind == UNREAD_LINE


def test_a_named_version_wins():
    assert explain_text("jax==0.4.30\n" + ESCAPED[0]["message"]).jax_version == "0.4.30"


def test_no_jax_and_no_show_is_imported():
    code = "import sys, jaxleak_magic.diagnose.messages as m; m.explain_text('x'); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {"jax", "numpy", "IPython", "libcst", "markupsafe"}
    assert not any(name.startswith("jaxleak_magic.show") for name in loaded)


# fuzz


def mutated(random_, text):
    """A message with pieces dropped, doubled, swapped, cut or replaced."""
    other = random_.choice(MESSAGES)["message"]
    lines = text.split("\n")
    for _ in range(random_.randint(1, 6)):
        at, to = random_.randrange(len(lines)), random_.randrange(len(lines))
        match random_.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[to])
            case 2:
                lines[at], lines[to] = lines[to], lines[at]
            case 3:
                lines[at] = lines[at][: random_.randrange(len(lines[at]) + 1)]
            case 4:
                lines[at] = lines[at].replace(
                    random_.choice("<>[]()':. 0123f") or " ", random_.choice(["", "9" * 40, "["])
                )
            case 5:
                lines.insert(at, random_.choice(other.split("\n")))
            case 6:
                letters = [chr(random_.choice([9, 27, 34, 60, 96, 0x663, 0x202E, 0xD800, 0x1F600])) for _ in range(5)]
                lines[at] += "".join(letters)
            case _:
                lines[at] = random_.choice(["E   ", "> ", "  ", "----> 3 "]) + lines[at]
        lines = lines or [""]
    return "\n".join(lines)


def fuzz(count, seed):
    random_ = random.Random(seed)
    sources = [CELL, SourceText(CELL.text.replace("stash", "_g"), None, "cell.py")]
    for number in range(count):
        text = mutated(random_, random_.choice(MESSAGES)["message"] if number % 10 else ESCAPE)
        report = explain_text(text, sources if number % 2 else ())
        json.loads(report.to_json())
        if number % 20 == 0:
            render_text(report).encode()
            render_html(report).encode()


def test_mutated_messages_never_raise():
    fuzz(300, 1)


@pytest.mark.nightly
def test_many_mutated_messages_never_raise():
    fuzz(10_000, 2)
