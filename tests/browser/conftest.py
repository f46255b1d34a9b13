"""One server, one browser, and for each front end a warm kernel and one notebook that most tests share."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.book import Book
from tests.browser.lab import Server, running_browser, running_server
from tests.doors.leaking import KERNEL

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

LOAD = "%load_ext jaxleak_magic\nimport demo_reports, jax, jax.numpy as jnp"
EARLIER = "marker = 'before'; demo_reports.remember()"
ONE = "marker = 'before'; demo_reports.one(\"'be\" + \"fore'\", \"'after'\")"
TWO = "marker = 'before'; demo_reports.two(\"'be\" + \"fore'\", \"'after'\")"

Open = Callable[..., Book]

_numbers = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """To what is said of a failed test, add what its pages show."""
    report: Any = yield
    context = getattr(item, "funcargs", {}).get("context")
    if report.failed and context is not None:
        for page in context.pages:
            report.sections.append((f"page {page.url}", page.locator("body").inner_text()[-4000:]))
    return report


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running Jupyter server."""
    folder = tmp_path_factory.mktemp("notebooks")
    with running_server(folder, tmp_path_factory.mktemp("home"), [ROOT, HERE]) as running:
        yield running


@pytest.fixture(scope="session", params=["lab", "notebook"])
def front_end(request: pytest.FixtureRequest) -> str:
    """JupyterLab, and Notebook 7."""
    return request.param


@pytest.fixture(scope="session")
def context(browser: Any) -> Iterator[Any]:
    """A browser window that keeps what it has loaded from page to page."""
    context = browser.new_context(viewport={"width": 1000, "height": 1400})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture(scope="session")
def warm_kernel(server: Server, front_end: str) -> Callable[[], str]:
    """Gives the id of a kernel that the notebooks of a front end use one after the other.

    On a slow machine JupyterLab may start another kernel for a notebook that it opens, and shut down the one that it
    had. So there is a new one when the old one has ended, and the notebook that stays open has its own.
    """
    started = [server.start_kernel()]

    def living() -> str:
        if started[-1] not in server.kernels():
            started.append(server.start_kernel())
        return started[-1]

    return living


def write_notebook(path: Path, *sources: str, outputs: dict[int, list[Any]] | None = None) -> None:
    """Write a notebook of code cells with the outputs of some of them; no two notebooks share a cell id."""
    assert not path.exists()
    number = next(_numbers)
    cells = [
        {
            "cell_type": "code",
            "id": f"b{number}-{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": (outputs or {}).get(i, []),
            "source": text,
        }
        for i, text in enumerate(sources)
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}))


@pytest.fixture
def opened(server: Server, context: Any, front_end: str, warm_kernel: Any, request: pytest.FixtureRequest) -> Open:
    """Opens a new notebook of the given cells in the front end, with the warm kernel or another one."""

    def open_notebook(*sources: str, outputs: Any = None, kernel: str | None = None) -> Book:
        # A test that is run again after a failure gets a new file, too.
        name = re.sub(r"\W+", "_", request.node.name)
        path = server.folder / f"{name}{next(_numbers)}.ipynb"
        write_notebook(path, *sources, outputs=outputs)
        server.attach(path.name, kernel or warm_kernel())
        book = Book(context, server.address(front_end, path.name), path)
        request.addfinalizer(book.close)
        return book

    return open_notebook


@pytest.fixture(scope="session")
def shared(server: Server, context: Any, front_end: str) -> Iterator[Book]:
    """An open notebook whose first cell has run; tests add their own cells at its end."""
    path = server.folder / f"shared_{front_end}.ipynb"
    write_notebook(path, LOAD)
    server.attach(path.name, server.start_kernel())
    book = Book(context, server.address(front_end, path.name), path)
    book.run(0)
    yield book
    book.close()
