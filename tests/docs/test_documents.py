"""README and documentation: links lead somewhere, code runs, tables are the parsers', and the pages build."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.conftest import REPOSITORY
from tests.doors.test_pytest_plugin import PLUGIN

README = REPOSITORY / "README.md"
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
DOCUMENTS = [README, REPOSITORY / "CHANGELOG.md", *PAGES]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"")

NAMES_OF_SAMPLES = """
import jax, jax.numpy as jnp
rates = jnp.arange(3.0)
make_learner = lambda rate: rate * 2
state = 1.0
step = jax.jit(lambda state: state / 2)
"""


def page_id(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def fences(path: Path, language: str) -> list[str]:
    return [code for found, code in _FENCE.findall(path.read_text(encoding="utf-8")) if found == language]


def load_hooks():
    spec = importlib.util.spec_from_file_location("jaxleak_docs_hooks", REPOSITORY / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def slugs(markdown: str) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them of plain ones."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=page_id)
def test_every_relative_link_leads_to_a_file_and_a_heading(document):
    text = document.read_text(encoding="utf-8")
    for found in _LINK.findall(_FENCE.sub("", text)):
        target, anchor = urldefrag(found[0] or found[1])
        if urlsplit(target).scheme:
            continue
        path = (document.parent / unquote(target)).resolve() if target else document
        assert path.is_file(), f"{page_id(document)} links to {target}, which is no file"
        assert not anchor or anchor in slugs(path.read_text(encoding="utf-8")), f"{target} has no heading #{anchor}"


def test_tables_of_options_are_the_parsers():
    """UPDATE_GOLDEN=1 writes them anew."""
    text = README.read_text(encoding="utf-8")
    filled = load_hooks().fill_tables(text)
    if os.environ.get("UPDATE_GOLDEN"):
        README.write_text(filled, encoding="utf-8")
        text = filled
    assert text == filled, "the README's options are not those of the parsers: UPDATE_GOLDEN=1 pytest tests/docs"
    assert "| `--fix N` |" in text and "| `-q`, `--quiet` |" in text


def test_synopsis_names_the_options_of_each_command():
    from jaxleak_magic.cli import make_parser

    synopsis = next(code for code in fences(README, "") if "jaxleak_magic check PATH" in code)
    commands = next(action for action in make_parser()._actions if isinstance(action.choices, dict)).choices
    for part in synopsis.split("python -m jaxleak_magic ")[1:]:
        known = {option for action in commands[part.split()[0]]._actions for option in action.option_strings}
        assert (named := set(re.findall(r"--[\w-]+", part))) <= known, named - known


def test_every_magic_is_named(shell):
    from jaxleak_magic.magics import _MAGICS

    page = (REPOSITORY / "docs" / "reference" / "magics.md").read_text(encoding="utf-8")
    for kind, name in _MAGICS:
        assert f"`{'%' if kind == 'line' else '%%'}{name}" in page
        assert f"`{'%' if kind == 'line' else '%%'}{name}" in README.read_text(encoding="utf-8")


def test_pytest_page_and_readme_name_every_marker():
    from jaxleak_magic import pytest_plugin

    for document in (README, REPOSITORY / "docs" / "reference" / "pytest.md"):
        text = document.read_text(encoding="utf-8")
        assert all(f"@pytest.mark.{re.split(r'[:(]', marker)[0]}" in text for marker in pytest_plugin._MARKERS)


@pytest.mark.parametrize("document", [page for page in DOCUMENTS if page.name != "pytest.md"], ids=page_id)
def test_python_samples_run(document, bare_shell):
    """In the order of the page, in one shell, as a reader would type them."""
    samples = fences(document, "python")
    bare_shell.run_cell(NAMES_OF_SAMPLES)
    for sample in samples:
        result = bare_shell.run_cell(sample, store_history=True)
        assert result.success, f"{page_id(document)}:\n{sample}"
    if document in (README, REPOSITORY / "docs" / "tracers.md"):
        assert samples, "a page that is known to have samples shows none: is the pattern right?"


def test_samples_of_pytest_run(tmp_path):
    samples = fences(REPOSITORY / "docs" / "reference" / "pytest.md", "python")
    assert samples
    (tmp_path / "test_sample.py").write_text("\n".join(samples), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--leakcheck", "-q", *PLUGIN, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=300,
        check=False,
    )
    assert run.returncode == 0 and "1 passed, 1 xfailed" in run.stdout, run.stdout + run.stderr


def test_nightly_workflow_is_yaml_and_its_tests_exist():
    yaml = pytest.importorskip("yaml")
    (workflow,) = fences(REPOSITORY / "docs" / "contributing.md", "yaml")
    steps = yaml.safe_load(workflow)["jobs"]["contracts"]["steps"]
    tests = next(step["run"].split()[1:] for step in steps if step.get("run", "").startswith("pytest"))
    assert tests and all((REPOSITORY / path).exists() for path in tests)


def test_workflow_is_yaml_and_its_commands_exist():
    yaml = pytest.importorskip("yaml")  # comes with what the documentation is built with

    from jaxleak_magic.cli import make_parser

    (workflow,) = fences(README, "yaml")
    steps = yaml.safe_load(workflow)["jobs"]["leaks"]["steps"]
    commands = [step["run"].split() for step in steps if "run" in step]
    (ours,) = [words[1:] for words in commands if words[0] == "jaxleak"]
    assert make_parser().parse_args(ours).command == "check"
    assert ["pytest", "--leakcheck", "-n", "auto"] in commands


class _Page(HTMLParser):
    """Where a page's links lead, which anchors it has, and what it loads by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.update(filter(None, (found.get("id"), found.get("name"))))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        loaded = found.get("src") or (found.get("href") if tag == "link" else None)
        if loaded:
            self.loads.append(loaded)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built documentation."""
    if importlib.util.find_spec("mkdocs") is None and not os.environ.get("JAXLEAK_DOCS"):
        pytest.skip("mkdocs is not installed here; the session on the newest JAX has it")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        build, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stderr, run.stderr
    return folder


def test_links_of_the_built_pages_lead_somewhere(site):
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > len(PAGES)
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme or target.startswith("/"):
                continue
            found = (path.parent / unquote(target)).resolve() if target else path
            found = found / "index.html" if found.is_dir() else found
            assert found.is_file(), f"{path.relative_to(site)} links to {link}"
            assert not anchor or found not in pages or unquote(anchor) in pages[found].anchors, (path, link)


def test_built_pages_have_the_tables_and_the_signatures(site):
    magics = (site / "reference" / "magics" / "index.html").read_text(encoding="utf-8")
    assert "<code>--keep-caches</code>" in magics and "<code>%leakwatch" in magics
    python = (site / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    for name in ("checking", "check", "why_alive", "LeakReport", "LeakError", "PytreeClosure"):
        assert re.search(rf'id="jaxleak_magic\.[\w.]*\b{name}"', python), name
    report = (site / "reference" / "report" / "index.html").read_text(encoding="utf-8")
    assert 'id="jaxleak_magic.diagnose.model.Leak"' in report and "whose trace it belongs to" in report


def test_notebooks_are_pages_with_their_reports(site):
    names = [path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb")]
    assert names
    for name in names:
        assert "data-jaxleak" in (site / "notebooks" / name / "index.html").read_text(encoding="utf-8"), name


def test_sample_texts_are_found_in_fences():
    """The tests above read what this pattern finds: it must find a fence."""
    text = textwrap.dedent(
        """\
        ```python
        a = 1
        ```
        text
        ```
        plain
        ```
        """
    )
    assert _FENCE.findall(text) == [("python", "a = 1\n"), ("", "plain\n")]
