"""A Jupyter server with JupyterLab and Notebook 7, and a headless Chromium, for the tests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
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

# As strict as the front ends allow: nothing from elsewhere, no frames of others, no plug-ins.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws: blob: data:; worker-src 'self' blob:; "
    "object-src 'none'; frame-ancestors 'self'; base-uri 'self'"
)


def find_chromium() -> str:
    """The path of an installed Chromium; ``JAXLEAK_CHROMIUM`` names another one.

    Where there is none the test fails under CI, and else is skipped; both say how to get one.
    """
    found = os.environ.get("JAXLEAK_CHROMIUM") or next(filter(None, map(shutil.which, _CHROMIUMS)), None)
    return found or missing(
        "no Chromium found: `apt-get install chromium` (Debian), or set JAXLEAK_CHROMIUM to its path"
    )


def missing(how: str) -> str:
    """Fail under CI, and skip the test elsewhere; ``how`` says what is missing and how to get it."""
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


@dataclass(frozen=True)
class Server:
    """A running Jupyter server.

    Attributes:
        url: its address.
        folder: where its notebooks are.
    """

    url: str
    folder: Path

    def call(self, method: str, path: str, /, **body: object) -> Any:
        """Ask its REST interface, and give the answer."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"{self.url}/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def start_kernel(self) -> str:
        """Start a kernel, and give its id."""
        return self.call("POST", "api/kernels", name="python3")["id"]

    def kernels(self) -> list[str]:
        """The ids of the kernels that run."""
        return [kernel["id"] for kernel in self.call("GET", "api/kernels")]

    def kernel_of(self, name: str) -> str:
        """The id of the kernel that a notebook has now."""
        return next(session["kernel"]["id"] for session in self.call("GET", "api/sessions") if session["path"] == name)

    def attach(self, name: str, kernel: str) -> None:
        """Give a notebook a kernel that runs."""
        self.call("POST", "api/sessions", path=name, name=name, type="notebook", kernel={"id": kernel})

    def address(self, front_end: str, name: str) -> str:
        """The address of one notebook in a front end, ``"lab"`` or ``"notebook"``."""
        if front_end == "notebook" and importlib.util.find_spec("notebook") is None:
            missing("Notebook 7 is not installed: `pip install notebook`")
        return f"{self.url}/{'doc/tree' if front_end == 'lab' else 'notebooks'}/{name}"


@contextlib.contextmanager
def running_server(folder: Path, home: Path, python_path: list[Path], *, together: bool = False) -> Iterator[Server]:
    """A Jupyter server on a free port of this machine, which serves JupyterLab and Notebook 7.

    Args:
        folder: where its notebooks are.
        home: a folder for settings, so that those of the user neither help nor harm.
        python_path: what its kernels can import.
        together: all who have a notebook open work on one document, where jupyter-collaboration is installed.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    path = os.pathsep.join(map(str, python_path))
    env = {**os.environ, "PYTHONPATH": path, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home)}
    settings = {"headers": {"Content-Security-Policy": POLICY}}
    options = ["--no-browser", f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    options += ["--ServerApp.disable_check_xsrf=True", "--allow-root", "--LabApp.news_url=", f"--notebook-dir={folder}"]
    if importlib.util.find_spec("jupyter_collaboration") is not None:
        options += [f"--YDocExtension.disable_rtc={not together}"]
    options += [f"--ServerApp.tornado_settings={settings}"]
    (home / "labconfig").mkdir()
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}
    (home / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(quiet))
    log = home / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, server, log)
        yield Server(url, folder)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # a kernel of it does not end on a busy machine
            server.kill()
            server.wait()


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
