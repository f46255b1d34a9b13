"""What can be done with a checkout: `nox -s demo`, `nox -s tests`, `nox -s lint`, `nox -s notebooks`, ...

`nox -s tests` makes its environments by itself, on each JAX that is supported at both ends. A Python that is missing is
fetched by uv where that is possible; else its tests are left out with a warning, under CI with a failure.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import sys
from pathlib import Path

import nox

# pyenv keeps its Pythons off the PATH; its shims answer only for the version that is switched on.
os.environ["PATH"] = os.pathsep.join(
    [os.environ.get("PATH", os.defpath), *sorted(glob.glob(str(Path.home() / ".pyenv" / "versions" / "*" / "bin")))]
)

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = bool(os.environ.get("CI"))

GROUPS = nox.project.load_toml("pyproject.toml")["dependency-groups"]
NEWEST = next((version for version in ("3.13", "3.12") if shutil.which(f"python{version}")), "3.13")
COLAB = ["ipython==7.34.*", "ipykernel==6.17.*", "ipywidgets==7.7.*"]  # the oldest that we support


@nox.session
@nox.parametrize(
    "python,jax",
    [("3.11", "0.7.2"), ("3.11", "0.10.2"), (NEWEST, "newest")],
    ids=["oldest", "libraries", "newest"],
)
def tests(session: nox.Session, jax: str) -> None:
    """All tests: on the oldest JAX and Colab's IPython, on 0.10.2 with the libraries around it, on the newest JAX."""
    needed = ["-e", ".[graph]", *nox.project.dependency_groups({"dependency-groups": GROUPS}, "test")]
    if jax == "newest":
        needed += GROUPS["browser"] + GROUPS["docs"]
    else:
        needed += [f"jax=={jax}", f"jaxlib=={jax}"]
    if jax == "0.7.2":
        needed += COLAB
    if jax == "0.10.2":
        needed += GROUPS["libraries"]
    session.install(*needed)
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}
    environment["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # else the kernels of ipykernel 6.17 warn on stderr
    if jax == "0.10.2":
        environment["JAXLEAK_ALL_LIBRARIES"] = "1"  # a library that is missing here fails its tests
    if jax == "newest":
        environment["JAXLEAK_DOCS"] = "1"  # so do the tools for the documentation here
    pytest = ["python", "-m", "pytest", "-q"]
    if session.posargs:
        session.run(*pytest, *session.posargs, env=environment)
        return
    # In the order of the folders: by number of tests, the long files with few tests would come last, on one core.
    spread = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    session.run(*pytest, *spread, "-m", "not nightly and not browser", env=environment)
    if jax == "newest":  # the front ends are the same on every JAX
        # A report's buttons wait one second for the kernel, as a user would: a browser gets the machine to itself.
        session.run(*pytest, "--reruns", "2", "-m", "browser and not nightly", env=environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff and strict pyright."""
    session.install("-e", ".", *GROUPS["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("pyright", "--pythonpath", shutil.which("python", path=session.bin) or sys.executable)


@nox.session
def demo(session: nox.Session) -> None:
    """Check a leaking notebook and show the report: in JupyterLab where there is a display, else as text and HTML."""
    session.install("-e", ".[graph]", "jupyterlab", "ipykernel")
    check = ["python", "-m", "jaxleak_magic", "check", "notebooks/quickstart.ipynb"]
    session.run(*check, env={"JAX_PLATFORMS": "cpu"}, success_codes=[1])
    session.run(
        *check, "--format", "html", "--output", "jaxleak-report.html", env={"JAX_PLATFORMS": "cpu"}, success_codes=[1]
    )
    print(f"\nThe same as a page: {Path('jaxleak-report.html').absolute()}")
    if "--no-lab" not in session.posargs and _has_display():
        session.run("jupyter", "lab", "notebooks/quickstart.ipynb")


@nox.session
def notebooks(session: nox.Session) -> None:
    """Run the notebooks anew and keep their outputs, without this machine's paths."""
    session.install("-e", ".[graph]", "nbconvert", "ipykernel")
    for notebook in sorted(Path("notebooks").glob("*.ipynb")):
        session.run(
            *("jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(notebook)),
            env={"JAX_PLATFORMS": "cpu"},
        )
        text = re.sub(r"[^\s\"(]*ipykernel_\d+/\d+\.py", "cell.py", notebook.read_text(encoding="utf-8"))
        kept = json.loads(text)
        for cell in kept["cells"]:
            cell["metadata"].pop("execution", None)  # when it ran
        notebook.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into `site/`; a warning fails it. `nox -s docs -- serve` shows it while you write."""
    session.install("-e", ".", *GROUPS["docs"])
    command = session.posargs or ["build"]
    session.run("mkdocs", *command, "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
