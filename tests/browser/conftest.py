"""One server, one browser, and for each front end one warm kernel and one notebook that most tests share."""

from __future__ import annotations

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
def kernel(server: Server, front_end: str) -> str:
    """The id of a kernel that the notebooks of a front end share."""
    return server.start_kernel()


def write_notebook(path: Path, *sources: str, outputs: dict[int, list[Any]] | None = None) -> None:
    """Write a notebook of code cells with the outputs of some of them; no two notebooks share a cell id."""
    assert not path.exists()
    number = len(list(path.parent.iterdir()))
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
def opened(server: Server, context: Any, front_end: str, kernel: str, request: pytest.FixtureRequest) -> Open:
    """Opens a new notebook of the given cells in the front end, with the shared kernel or another one."""

    def open_notebook(*sources: str, outputs: Any = None, kernel: str = kernel) -> Book:
        path = server.folder / (re.sub(r"\W+", "_", request.node.name) + ".ipynb")
        write_notebook(path, *sources, outputs=outputs)
        server.attach(path.name, kernel)
        book = Book(context, server.address(front_end, path.name), path)
        request.addfinalizer(book.close)
        return book

    return open_notebook


@pytest.fixture(scope="session")
def shared(server: Server, context: Any, front_end: str, kernel: str) -> Iterator[Book]:
    """An open notebook whose first cell has run; tests add their own cells at its end."""
    path = server.folder / f"shared_{front_end}.ipynb"
    write_notebook(path, LOAD)
    server.attach(path.name, kernel)
    book = Book(context, server.address(front_end, path.name), path)
    book.run(0)
    yield book
    book.close()
