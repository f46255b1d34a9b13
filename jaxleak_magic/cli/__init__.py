"""The command line: ``jaxleak check FILE``, ``jaxleak fix FILE`` and ``jaxleak explain FILE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from jaxleak_magic.cli.inputs import InputError

USAGE_ERROR = 3
INTERRUPTED = 130

_STATUS = """exit status of check: 1 a leak was found; else 2 the code raised; else 0; 3 for a usage error or a file
that cannot be read. With several files or cells: 3, 1, 2, 0 in this order win."""


_VERIFY = "run each fix once in a process of its own: does the leak go, do the results stay?"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Argparse's own status, 2, means here that the user's code raised."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def _at_least_one(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError
    return number


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(prog="jaxleak", description="Find leaked JAX tracers.", epilog=_STATUS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    check = commands.add_parser("check", help="run files under the check and report what leaks", epilog=_STATUS)
    check.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a script or cell (.py), a notebook (.ipynb), or a folder: every .py and .ipynb file below it",
    )
    check.add_argument(
        "-j", "--jobs", type=_at_least_one, default=1, metavar="N", help="run N files at once; default: 1"
    )
    check.add_argument(
        "--keep-going",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run a notebook's other cells after one that raises (the default)",
    )
    check.add_argument("--format", choices=("text", "json", "html"), default="text", help="default: text")
    check.add_argument("--output", metavar="PATH", help="write the report to this file instead of stdout")
    check.add_argument("--keep-caches", action="store_true", help="do not trace functions anew; quicker, and sees less")
    check.add_argument("--fast", action="store_true", help="only count what outlives the run; sees least, costs least")
    check.add_argument(
        "--locate", action="store_true", help="run a second time where the line that stored a value is not known"
    )
    check.add_argument("--no-fixes", dest="fixes", action="store_false", help="look for no fixes")
    check.add_argument(
        "--no-notes", dest="notes", action="store_false", help="no notes on what is no leak and still surprises"
    )
    check.add_argument("--verify", action="store_true", help=_VERIFY)

    fix = commands.add_parser("fix", help="show or apply a fix that check offers")
    fix.add_argument("file", metavar="FILE", help="a script or cell (.py), or a notebook (.ipynb)")
    how = fix.add_mutually_exclusive_group()
    how.add_argument("--diff", action="store_true", help="show the diff and change nothing (the default)")
    how.add_argument("--write", action="store_true", help="change the file")
    fix.add_argument("--leak", type=int, metavar="N", help="take the fix of leak N; default: the first that has one")
    fix.add_argument("--verify", action="store_true", help=_VERIFY)

    explain = commands.add_parser("explain", help="explain a copied message or traceback of JAX; nothing is run")
    explain.add_argument("file", metavar="FILE", help="a text file with the message; - reads stdin")
    explain.add_argument(
        "--source",
        metavar="FILE",
        action="append",
        default=[],
        help="the code that it speaks of (.py or .ipynb), for your own names and lines; may be given several times",
    )
    explain.add_argument("--format", choices=("text", "json", "html"), default="text", help="default: text")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the words after the program's name; None takes those of this process.

    Returns:
        The exit status.
    """
    args = make_parser().parse_args(argv)
    try:
        if args.command == "check":
            from jaxleak_magic.cli.check import check

            return check(args)
        if args.command == "explain":
            from jaxleak_magic.cli.explain import explain

            return explain(args)
        from jaxleak_magic.cli.fix import fix

        return fix(args)
    except InputError as error:
        print(f"jaxleak: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # `jaxleak check ... | head`
        sys.stderr.close()
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("jaxleak: interrupted, no report", file=sys.stderr)
        return INTERRUPTED
