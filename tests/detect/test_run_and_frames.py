"""What a checked run says beside its births: compilations, whole tracebacks, and the tracers in an error's frames."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxleak_magic.detect import _jax
from jaxleak_magic.detect.code_owner import CodeOwners
from jaxleak_magic.detect.run import LeakCheck, check_is_running
from jaxleak_magic.detect.traceback_tracers import concretized_dead_tracer, dead_tracer, frames_of
from jaxleak_magic.detect.watch import LeakWatch

CLASSES = tuple(_jax.tracer_classes())
kept = []


class Hostile:
    """It may neither be walked through nor compared."""

    def __iter__(self):
        raise AssertionError("nothing of the user's may run")

    __eq__ = __len__ = __getitem__ = __iter__
    __hash__ = None


@pytest.fixture
def check():
    kept.clear()
    check = LeakCheck(True, lambda: [__file__])
    check.start()
    yield check
    check.stop()
    kept.clear()


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def store(x):
    kept.append(x * 2)
    return x


def test_a_run_says_that_it_runs_what_was_compiled_and_how_long_that_took(check):
    assert check_is_running() is True
    jax.jit(lambda x: jnp.sin(x) + 1)(1.0).block_until_ready()
    assert check.compilations.programs > 0
    assert 0 < check.compilations.seconds < 600


def test_no_run_runs_afterwards():
    assert check_is_running() is False


@pytest.mark.parametrize("filtering", ["auto", "quiet_remove_frames", "remove_frames", "tracebackhide", "off"])
def test_frames_of_jax_are_hidden_and_not_removed_in_a_run(filtering):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", filtering)
    try:
        check = LeakCheck(True, tuple)
        check.start()
        inside = jax.config.jax_traceback_filtering
        check.stop()
        assert inside == ("off" if filtering == "off" else "tracebackhide")
        assert jax.config.jax_traceback_filtering == filtering
    finally:
        jax.config.update("jax_traceback_filtering", before)


def test_the_tracer_that_was_used_too_late_is_found_in_a_list_of_a_frame(check):
    jax.jit(store)(1.0)

    def use(values, other):
        return jnp.sin(values[0])

    error = error_of(jax.jit(lambda x: use(kept, Hostile()) + x), 1.0)
    found = dead_tracer(error, check.census)
    assert type(found) in CLASSES
    assert found is kept[0]
    assert frames_of(error)
    del found, error


def test_a_tracer_whose_trace_still_runs_is_no_dead_one(check):
    def fails(x):
        values, hostile = [x * 2], Hostile()  # both are in the frame
        raise ValueError(len(values), type(hostile))

    assert dead_tracer(error_of(jax.jit(fails), 1.0), check.census) is None

    def wants_a_number(x):
        return float(x)

    error = error_of(jax.jit(wants_a_number), 1.0)
    assert isinstance(error, jax.errors.ConcretizationTypeError)
    assert concretized_dead_tracer(error, check.census) is None


def test_the_leaked_value_of_which_python_wants_a_number(check):
    jax.jit(store)(1.0)
    error = error_of(lambda: float(kept[0]))
    assert concretized_dead_tracer(error, check.census) is kept[0]


def test_code_of_cells_is_the_users_and_other_made_code_is_not():
    owners = CodeOwners(_jax.jax_directories())
    for name, owner in {
        "<ipython-input-1-abc>": "user",
        "<stdin>": "user",
        "<string>": "python",
        "<@beartype(f)>": "python",
        jnp.__file__: "jax",
        pytest.__file__: "library",
        "/home/someone/train.py": "user",
    }.items():
        assert owners(compile("1", name, "exec")) == owner, name


def test_a_watch_keeps_what_is_left_of_the_run_and_nothing_of_what_has_gone():
    watch = LeakWatch(tuple)
    assert watch.install()
    try:
        watch.begin()
        jax.jit(lambda x: x + 1)(1.0)
        assert watch.end() is None
        watch.begin()
        jax.jit(store)(1.0)
        found = watch.end()
        assert found is not None
        assert [birth.transform for birth in found.census.births] == ["jit"]
    finally:
        watch.uninstall()
