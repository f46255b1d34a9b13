"""The fresh process: runs one file under the check and leaves what came of it in a file."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from jaxleak_magic.cli.fresh_process import Job, Outcome
from jaxleak_magic.cli.inputs import Notebook, Script, read_input
from jaxleak_magic.own_errors import say_internal_error


def main() -> None:
    """Do the job whose file the command line names. The paths are those that ``run_in_fresh_process`` made."""
    package_parent, job_file, outcome_file = sys.argv[1:4]
    # ``-c`` put "" first and the bootstrap the package's folder: neither is there for `python FILE`.
    sys.path.remove(package_parent)
    if "" in sys.path[:1]:
        del sys.path[0]
    job: Job = pickle.loads(Path(job_file).read_bytes())
    try:
        source = read_input(Path(job.file))
        if job.replaced:
            from jaxleak_magic.cli.verify import source_with

            source = source_with(source, job.replaced)
        outcome = _run(source, job)
    except Exception as error:  # The user's own are part of the outcome: this one is ours.
        say_internal_error(f"{job.file}: there is no report", error)
        sys.exit(1)
    _leave(outcome, Path(outcome_file))


def _run(source: Script | Notebook, job: Job) -> Outcome:
    if isinstance(source, Notebook):
        from jaxleak_magic.cli.notebook import run_notebook

        return run_notebook(source, job)
    from jaxleak_magic.cli.script import run_script

    return run_script(source, job)


def _leave(outcome: Outcome, path: Path) -> None:
    """Write it whole or not at all: code of the user's may end the process in another thread."""
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(pickle.dumps(outcome))
    os.replace(unfinished, path)
