"""`LeakReport` and `LeakError`: what users hold and catch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample_reports import SAMPLES, clean, error_only, library_cache, one_leak, two_leaks

from jaxleak_magic.errors import LeakError
from jaxleak_magic.report import LeakReport


@pytest.mark.parametrize("name", SAMPLES)
def test_every_state_shows_itself(name: str) -> None:
    report = LeakReport(SAMPLES[name]())
    assert "\n" not in repr(report)
    bundle = report._repr_mimebundle_()
    assert bundle["text/plain"] == str(report)
    assert set(bundle) == {"text/plain", "text/html"}
    assert report._repr_html_().startswith("<div")
    assert json.loads(report.to_json()) == report.to_dict()
    assert pickle.loads(pickle.dumps(report)) == report


def test_one_line_repr() -> None:
    assert repr(LeakReport(one_leak())) == "<LeakReport: rate leaked out of vmap(make_learner)>"
    assert repr(LeakReport(clean())) == "<LeakReport: No leaked tracers>"


def test_ipython_prints_it_whole() -> None:
    from IPython.lib.pretty import pretty

    assert pretty(LeakReport(one_leak())) == str(LeakReport(one_leak()))


def test_raise_if_leaks() -> None:
    for sample in (clean, error_only, library_cache):
        LeakReport(sample()).raise_if_leaks()
    with pytest.raises(LeakError, match=r"^2 leaks\n1\. `h` leaked out of `grad\(loss\)`\.\n2\. ") as caught:
        LeakReport(two_leaks()).raise_if_leaks()
    assert caught.value.report == two_leaks()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.report) == (str(caught.value), caught.value.report)


def test_an_error_without_a_report_is_not_clean() -> None:
    assert "failed" in str(LeakError(None))


def test_importing_it_is_light() -> None:
    """Also shows that the probe can fail: it sees graphviz once a graph is built."""
    probe = (
        "import sys, jaxleak_magic.report, jaxleak_magic.errors, jaxleak_magic.show.text\n"
        "heavy = {'jax', 'IPython', 'libcst', 'ipywidgets', 'anywidget', 'numpy', 'graphviz'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import graphviz\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n['graphviz']\n"
