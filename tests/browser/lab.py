"""A JupyterLab server and a headless Chromium for the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """The path of an installed Chromium; ``JAXLEAK_CHROMIUM`` names another one.

    Where there is none the test fails under CI, and else is skipped; both say how to get one.
    """
    found = os.environ.get("JAXLEAK_CHROMIUM") or next(filter(None, map(shutil.which, _CHROMIUMS)), None)
    if found:
        return found
    how = "no Chromium found: `apt-get install chromium` (Debian), or set JAXLEAK_CHROMIUM to its path"
    if os.environ.get("CI"):
        pytest.fail(how)
    pytest.skip(how)


@contextlib.contextmanager
def running_browser() -> Iterator[Any]:
    """A Playwright browser that runs the installed Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def running_lab(folder: Path, home: Path, python_path: list[Path]) -> Iterator[str]:
    """A JupyterLab server on a free port of this machine; gives its address.

    Args:
        folder: where its notebooks are.
        home: a folder for settings, so that those of the user neither help nor harm.
        python_path: what its kernels can import.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    path = os.pathsep.join(map(str, python_path))
    env = {**os.environ, "PYTHONPATH": path, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home)}
    options = ["--no-browser", f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    options += ["--ServerApp.disable_check_xsrf=True", "--allow-root", "--LabApp.news_url=", f"--notebook-dir={folder}"]
    log = home / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, server, log)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def answer_dialogs(page: Any) -> None:
    """Accept what JupyterLab asks by itself before a cell has run, as on a slow machine: its server was not heard for a
    while, a kernel must be chosen. Such a dialog lies over the notebook, and a click on a cell would wait for ever.
    """
    for _ in range(3):
        button = page.locator(".jp-Dialog .jp-mod-accept")
        if button.count() == 0:
            return
        print(f"JupyterLab asked: {page.locator('.jp-Dialog').first.inner_text()!r}")
        button.first.click()
        page.wait_for_timeout(300)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{url}/api/status", timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, f"JupyterLab did not start:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"JupyterLab did not answer:\n{log.read_text()[-3000:]}"
            time.sleep(0.2)
