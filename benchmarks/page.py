"""All benchmarks by one command, as one page: Markdown with a plot.

    python benchmarks/page.py                       a quarter of an hour on two cores; writes benchmarks/figures.md
    python benchmarks/page.py --only referrers      only what has this in its title or command

Each section is one of the other benchmarks as it prints itself, with the command that gives it. What is compared runs
side by side in that one command: JAX's own checker, objgraph, and one garbage collection of the same heap. The plot
needs matplotlib; without it the page has no plot, and says so.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "figures.md"
PLOT = HERE / "referrers.svg"


@dataclass(frozen=True)
class Section:
    """A benchmark of the page.

    Attributes:
        title: what is measured.
        command: script of this folder with its arguments.
        text: what to read out of it.
    """

    title: str
    command: str
    text: str


SECTIONS = (
    Section(
        "Clean cells, and loading",
        "detection.py --part clean --part load --part recording",
        "A cell that leaks nothing, plainly, under JAX's own check, and under `%%leakcheck` in each of its ways.",
    ),
    Section(
        "From a leak to its report",
        "detection.py --part leaking",
        "JAX's own exception stops at the first leak; the report has all of them, with their fixes.",
    ),
    Section(
        "Who holds it, against the size of the heap",
        "referrers.py --objects 1e5 3e5 1e6 --rows near/6 buried/6 wide/6 --with jax objgraph --patience 15 --repeat 3",
        "In units of one `gc.collect()` of the same heap, which no search that looks at all objects can beat by much.",
    ),
    Section(
        "Who holds it, against depth and number of leaks",
        "referrers.py --objects 1e5 --rows near buried --with jax --patience 15 --repeat 3",
        "A row is where the leak hangs, how deep, and how many leaks there are.",
    ),
    Section("Fix proposals, 100 lines", "proposals.py --lines 100", "Beside what Python takes to compile the cell."),
    Section("Fix proposals, 500 lines", "proposals.py --lines 500", "The same for a long cell."),
    Section("Fix proposals, 2,000 lines", "proposals.py --lines 2000 --repeat 5", "The same for a whole module."),
    Section(
        "Report on the screen",
        "browser.py",
        "In a real browser, from the cell's end. A plain `HTML` output of the same report stands beside it.",
    ),
    Section("Size of the report", "report_size.py", "What one output brings into the notebook."),
    Section("Watching every cell", "watching.py", "What `%leakwatch on` adds to clean cells."),
    Section(
        "Memory",
        "memory.py --cells 80",
        "What each cell leaves behind. What a check leaves is what JAX keeps of any program that is compiled anew.",
    ),
    Section("PytreeClosure", "pytree_closure.py", "A call, beside the plain function and `jax.closure_convert`."),
)


def output_of(section: Section) -> str:
    """What a benchmark prints; its error where it fails, so that one that fails does not take the page with it."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", *section.command.split()]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"This benchmark failed: {done.stderr.strip().splitlines()[-1:]}"
    return done.stdout.strip()


def as_markdown(output: str) -> str:
    """Tables as they are, all else as it was printed."""
    table = [line for line in output.splitlines() if line.startswith("|")]
    return "\n".join(table) if table else f"```text\n{output}\n```"


def draw(output: str) -> bool:
    """Draw the search's time against the size of the heap; False where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "jaxleak-magic"
    found: dict[str, list[tuple[float, float]]] = {}
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 9 or not re.match(r"[\d,]+$", cells[0]):
            continue
        objects = float(cells[0].replace(",", ""))
        for name, column in (("ours", 4), ("JAX", 6), ("objgraph", 8)):
            if cells[column] != "–" and cells[1].endswith("/1"):
                found.setdefault(f"{name}, {cells[1].split('/')[0]}", []).append((objects, float(cells[column])))
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    colours = {"ours": "tab:green", "JAX": "tab:red", "objgraph": "tab:blue"}
    dashes = {"near": "-", "buried": "--", "wide": ":"}
    for name, points in found.items():
        tool, where = name.split(", ")
        axes.plot(*zip(*sorted(points), strict=True), dashes[where], color=colours[tool], marker="o", label=name)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="objects in the heap", ylabel="garbage collections of that heap")
    axes.set_title("Finding who holds one leaked value")
    axes.legend(fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.savefig(PLOT, bbox_inches="tight", metadata={"Date": None})
    return True


def machine() -> str:
    """Where the figures are from, in one line."""
    sys.path.insert(0, str(HERE))
    from referrers import machine as described

    return f"{described()}; jaxleak-magic {version_of_checkout()}"


def version_of_checkout() -> str:
    """The commit that was measured."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or version("jaxleak-magic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only sections that have this in their title or command; the page is printed")
    args = parser.parse_args()
    chosen = [s for s in SECTIONS if not args.only or args.only in f"{s.title} {s.command}"]
    parts = [
        "# Figures",
        f"Written by `python benchmarks/page.py` on {time.strftime('%Y-%m-%d')}: {machine()}. The scripts say what is "
        "measured and how; each ratio is of one run.",
    ]
    for section in chosen:
        print(f"{section.title} ...", file=sys.stderr, flush=True)
        output = output_of(section)
        parts += [f"## {section.title}", f"`python benchmarks/{section.command}`", section.text, as_markdown(output)]
        if "size of the heap" in section.title:
            drawn = draw(output)
            parts.append(f"![The search's time]({PLOT.name})" if drawn else "(No plot: matplotlib is not installed.)")
    page = "\n\n".join(parts) + "\n"
    if args.only:
        print(page)
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
