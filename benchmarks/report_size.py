"""How large a report is in each form, against the number of leaks.

    python benchmarks/report_size.py [--leaks 1 2 20 200]

Each leak has lines of its own; where one line leaks often, its values are told as one leak. A notebook keeps the text
and the HTML form; the graph is a picture inside of the HTML one.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jaxleak_magic
from jaxleak_magic.show.bundle import ReportOutput


def leaky_module(leaks: int, folder: Path) -> dict[str, Any]:
    """A module whose function ``step`` leaks this many values, each made and stored on lines of its own."""
    lines = ["import jax", "", "kept = {}", "", "@jax.jit", "def step(x):"]
    for number in range(leaks):
        lines += [f"    value_{number} = x + {number}", f"    kept['value_{number}'] = value_{number}"]
    path = folder / f"leaky_{leaks}.py"
    path.write_text("\n".join([*lines, "    return x", ""]))
    return runpy.run_path(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaks", type=int, nargs="*", default=[1, 2, 20, 200])
    args = parser.parse_args()
    print("| leaks | text, kB | HTML, kB | with its graph, kB | JSON, kB |")
    print("|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for leaks in args.leaks:
            module = leaky_module(leaks, Path(folder))
            with jaxleak_magic.checking() as report:
                module["step"](1.0)
            assert len(report.leaks) == leaks
            output = ReportOutput(report.report, "0" * 32)
            plain = output.bundle()
            sizes = [plain["text/plain"], plain["text/html"]]
            output.draw()
            sizes += [output.bundle()["text/html"], report.to_json()]
            print(f"| {leaks} | " + " | ".join(f"{len(text.encode()) / 1000:.1f}" for text in sizes) + " |", flush=True)


if __name__ == "__main__":
    main()
